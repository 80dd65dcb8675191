"""Losses with known answers, for the tests of `diagnose`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from newton_losses.smoothing import SmoothedLoss
from newton_losses.sorting import SortingLoss


@dataclass(frozen=True)
class Known:
    """A loss at outputs, whether something is wrong with it, and words that the reasons have to hold."""

    name: str
    loss: Any
    y: Tensor
    targets: tuple[Tensor, ...]
    faulty: bool
    words: tuple[str, ...]


def draw(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def squares(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().sum(1)


def cross_entropy(y: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(y, labels, reduction="none")


def absolute(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).abs().sum(1)


def hinge(y: Tensor, target: Tensor) -> Tensor:
    return (1 - y * target.sign()).relu().square().sum(1) + (y - target).relu().sum(1)


def staircase(y: Tensor, target: Tensor) -> Tensor:
    return ((y - target).square() + 0.3 * (2 * y).round()).sum(1)


def distance(y: Tensor, target: Tensor) -> Tensor:
    return torch.cdist(y[:, None], target[:, None])[:, 0, 0]


def detached_weights(y: Tensor, target: Tensor) -> Tensor:
    """Weights that depend on the outputs and are no part of the derivative, as in a LambdaLoss."""
    return (torch.softmax(y, 1).detach() * (y - target).square()).sum(1)


def steep_ranks(scores: Tensor, wanted: Tensor) -> Tensor:
    differences = scores[:, :, None] - scores[:, None, :]
    return ((torch.sigmoid(10 * differences).sum(2) - 0.5) - wanted).square().sum(1)


def centred(y: Tensor, target: Tensor) -> Tensor:
    """Mixes the batch: every sample is compared with the batch's mean."""
    return (y - y.mean(0) - target).square().sum(1)


def stepped(y: Tensor, target: Tensor) -> Tensor:
    """No gradient at all."""
    return (y.round() - target).square().sum(1).detach()


def saturated_entropy(y: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy on probabilities that are rounded to 0 and 1: exact in float64, not in float32."""
    wanted = torch.nn.functional.one_hot(labels, y.shape[1]).to(y.dtype)
    return torch.nn.functional.binary_cross_entropy(torch.softmax(y, 1), wanted, reduction="none").sum(1)


def vanishing(y: Tensor, labels: Tensor) -> Tensor:
    """Gradients over thirty orders of magnitude; the smallest lose all their digits in float32, and it is no harm."""
    return 1 - torch.softmax(20 * y, 1).gather(1, labels[:, None])[:, 0]


class KeepsInput(torch.autograd.Function):
    """What an operator with a backward of its own has in common with all others here."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)


class _WrongSine(KeepsInput):
    """sin, whose backward has lost a factor."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 0.5 * outer * torch.cos(x)


class _CutSine(_WrongSine):
    """sin with the right gradient, cut from the graph: its second derivative is zero without a word."""

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return outer * torch.cos(x).detach()


class _HalfBentSine(_WrongSine):
    """sin with the right gradient, whose own backward has lost half of the second derivative, as some soft-DTW's."""

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return outer * (torch.cos(x) + torch.cos(x).detach()) / 2


class _OldSine(torch.autograd.Function):
    """sin in the old style, once differentiable: no forward mode, no second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return outer * torch.cos(x)


def old_sine(y: Tensor, target: Tensor) -> Tensor:
    """All of the gradient goes through the old operator, so that nothing of it can be differentiated again."""
    return -_OldSine.apply(2 * y + target).sum(1)


def waves(sine: Any) -> Any:
    def loss(y: Tensor, target: Tensor) -> Tensor:
        return (sine(2 * y) - target).square().sum(1) + 0.05 * y.square().sum(1)

    return loss


wrong_gradient, cut_second, wrong_second, half_cut_second, honest_waves = (
    waves(sine) for sine in (_WrongSine.apply, _CutSine.apply, _HalfBentSine.apply, _OldSine.apply, torch.sin)
)


def misplaced(scores: Tensor, ranks: Tensor) -> Tensor:
    """How many items have the wrong rank: a step function."""
    return (scores.argsort(1).argsort(1) != ranks).sum(1)


def smoothed(num_samples: int) -> SmoothedLoss:
    """With the noisier baseline, since noise is what it is there for."""
    generator = torch.Generator().manual_seed(0)
    return SmoothedLoss(misplaced, 1.0, num_samples, variance_reduction="value", generator=generator)


def catalogue() -> list[Known]:
    y, target, labels = draw(100, 6, seed=0), draw(100, 6, seed=1), draw(100, 6, seed=2).argmax(1)
    scores, far, values = draw(100, 5, seed=3), draw(100, 5, seed=3, scale=10.0), draw(100, 5, seed=4)
    ranks = values.argsort(1).argsort(1).float()
    known = [
        Known("squares", squares, y, (target,), False, ("on the outputs solves it", "convex")),
        Known("mean squares", torch.nn.MSELoss(), y, (target,), False, ("on the outputs solves it", "convex")),
        Known("cross-entropy", cross_entropy, y, (labels,), False, ("on the outputs solves it", "convex")),
        Known("steep ranks", steep_ranks, scores, (ranks,), False, ("does not solve it", "non-convex")),
        Known("waves", honest_waves, y, (target,), False, ("does not solve it", "non-convex")),
        Known("absolute", absolute, y, (target,), False, ("not smooth", "piecewise linear")),
        Known("staircase", staircase, y, (target,), False, ("not smooth", "jump")),
        Known("hinge", hinge, y, (target,), False, ("not smooth",)),
        Known("distance", distance, y, (target,), False, ("no rule for the second derivative of cdist", "fisher")),
        Known("detached weights", detached_weights, y, (target,), False, ("not that of the value", ".detach()")),
        Known("saturated entropy", saturated_entropy, 30 * y, (labels,), True, ("log space",)),
        Known("vanishing", vanishing, y, (labels,), False, ("does not solve it", "uneven")),
        Known("mixed batch", centred, y, (target,), True, ("mixes the samples",)),
        Known("no gradient", stepped, y, (target,), True, ("does not depend on the outputs", "smoothing")),
        Known("wrong gradient", wrong_gradient, y, (target,), True, ("The gradient is wrong", "_WrongSine")),
        Known("cut second", cut_second, y, (target,), False, ("_CutSine is silently wrong", "fisher")),
        Known("wrong second", wrong_second, y, (target,), False, ("_HalfBentSine is silently wrong", "fisher")),
        Known("half cut second", half_cut_second, y, (target,), False, ("no second derivative", "_OldSine", "fisher")),
        Known("no second", old_sine, y, (target,), False, ("no second derivative", "_OldSine", "fisher")),
        Known("one draw", smoothed(1), scores[:8], (ranks[:8],), True, ("The estimate is noise",)),
        Known("few samples", smoothed(2), scores, (ranks,), False, ("mostly noise", "times as many draws")),
        Known("many samples", smoothed(1000), scores, (ranks,), False, ()),
    ]  # fmt: skip
    for algorithm, option in (("softsort", {"temperature": 0.1}), ("neuralsort", {"temperature": 1.0}),
                              ("logistic", {"steepness": 10.0}), ("cauchy", {"steepness": 10.0})):  # fmt: skip
        stable = SortingLoss(algorithm, **option)
        known.append(Known(f"stable {algorithm}", stable, far, (values,), False, ("does not solve it", "non-convex")))
    for algorithm, option in (("softsort", {"temperature": 0.1}), ("neuralsort", {"temperature": 1.0})):
        reference = SortingLoss(algorithm, numerics="reference", **option)
        words = ("numerics are broken", 'numerics="stable"')
        known.append(Known(f"reference {algorithm}", reference, far, (values,), True, words))
    return known
