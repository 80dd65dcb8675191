"""Losses, outputs and targets as users bring them: all shapes and kinds, solvers that refuse NaN, faults in samples."""

from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from known_losses import draw, misplaced, smoothed, squares, steep_ranks
from torch import Tensor, nn

from newton_losses import ArgumentError, NewtonLoss, ShapeError, expand
from newton_losses.diagnose import diagnose
from newton_losses.perturbed import FenchelYoungLoss
from newton_losses.smoothing import SmoothedLoss


@pytest.mark.parametrize(
    "y", [draw(1, 3, seed=0), draw(7, seed=0), draw(6, 2, 3, seed=0), draw(8, 3, seed=0).double(),
          draw(8, 3, seed=0).bfloat16(), draw(8, 3, seed=0).requires_grad_(), torch.zeros(5, 2)],
    ids=["one sample", "no output dimension", "images", "float64", "bfloat16", "with graph", "all equal"],
)  # fmt: skip
def test_shapes_and_dtypes(y: Tensor) -> None:
    def loss(y: Tensor, target: Tensor) -> Tensor:
        return (y - target).reshape(len(y), -1).square().sum(1)

    report = diagnose(loss, y, torch.ones_like(y).detach())
    assert report.verdict != "fix"
    assert report.outputs == y.numel() // len(y)
    assert report.samples == len(y)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reduced_losses(reduction: str) -> None:
    y, target = draw(20, 3, seed=0), draw(20, 3, seed=1)
    report = diagnose(getattr(nn, "MSELoss")(reduction=reduction), y, target)  # noqa: B009
    assert report.verdict != "fix"
    assert report.derivatives.first == report.derivatives.second == "right"
    exact = expand(nn.MSELoss(reduction=reduction), y.double(), target.double())
    assert report.spectra.hessian.largest == pytest.approx(float(exact.curvature.dense()[0, 0]))


def test_mistakes_of_the_caller_raise() -> None:
    with pytest.raises(ShapeError, match="one value per sample"):
        diagnose(lambda y: y, torch.randn(4, 3))
    with pytest.raises(ArgumentError, match="samples to measure at"):
        diagnose(squares, torch.randn(0, 3), torch.randn(0, 3))
    with pytest.raises(ArgumentError, match="floating"):
        diagnose(squares, torch.arange(6).reshape(2, 3), torch.zeros(2, 3))


def test_targets_by_name() -> None:
    y, target = draw(20, 3, seed=0), draw(20, 3, seed=1)
    assert str(diagnose(squares, y, target=target)) == str(diagnose(squares, y, target))
    with pytest.raises(ArgumentError, match=r"diagnose: .* named in the call: targets"):
        diagnose(squares, y, targets=target)
    with pytest.raises(ArgumentError, match=r"squares\(y, target\) was called with the outputs and no targets"):
        diagnose(squares, y)


def test_a_newton_loss_is_not_diagnosed_in_place_of_its_loss() -> None:
    """It was said to mix the samples of the batch."""
    y, target = draw(20, 3, seed=0), draw(20, 3, seed=1)
    newton = NewtonLoss(squares)
    with pytest.raises(ArgumentError, match=r"a NewtonLoss.* Pass the loss that it was made from, newton\.loss"):
        diagnose(newton, y, target)
    assert diagnose(newton.loss, y, target).verdict == "open"


def test_nothing_is_disturbed() -> None:
    loss = smoothed(4)
    y, ranks = draw(10, 5, seed=0), draw(10, 5, seed=1).argsort(1).argsort(1)
    before, own = torch.get_rng_state(), loss.generator.get_state()
    diagnose(loss, y, ranks)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(loss.generator.get_state(), own)
    assert y.grad is None


class Centring(nn.Module):
    """As a teacher's outputs are centred: by a running mean, which every call updates."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        shares = (target - self.mean).softmax(1)
        self.mean.lerp_(target.mean(0).to(self.mean.dtype), 0.1)
        self.count = self.count + 1
        return -(shares * y.log_softmax(1)).sum(1)


@pytest.mark.parametrize("hold", [lambda loss: loss, lambda loss: lambda y, t: loss(y, t), lambda loss: loss.forward])
def test_what_the_loss_keeps_is_put_back(hold: Any) -> None:
    loss = Centring()
    mean, count = loss.mean, loss.count
    diagnose(hold(loss), draw(16, 3, seed=0), 3 + draw(16, 3, seed=1))
    assert loss.mean is mean
    assert loss.count is count
    assert (float(mean.abs().max()), int(count)) == (0.0, 0)


def test_generators_within_a_closure_are_put_back_and_seeded() -> None:
    loss, y, ranks = smoothed(4), draw(10, 5, seed=0), draw(10, 5, seed=1).argsort(1).argsort(1)
    own = loss.generator.get_state()
    reports = []
    for _ in range(2):
        reports.append(diagnose(lambda y, t: loss(y, t), y, ranks))
        assert torch.equal(loss.generator.get_state(), own)
        torch.rand(3)
    loss.generator.manual_seed(5)
    reports.append(diagnose(lambda y, t: loss(y, t), y, ranks))
    assert reports[0].to_dict() == reports[1].to_dict() == reports[2].to_dict()


def test_a_module_with_weights_is_compared_in_both_precisions() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.eye(3))

        def forward(self, y: Tensor, target: Tensor) -> Tensor:
            return ((y - target) @ self.weight).square().sum(1)

    loss = Weighted()
    report = diagnose(loss, draw(10, 3, seed=0), draw(10, 3, seed=1))
    assert report.precision is not None
    assert loss.weight.dtype == torch.float32


def test_without_float64_the_checks_are_left_out() -> None:
    weight = torch.eye(3)
    report = diagnose(lambda y: (y @ weight).square().sum(1), draw(10, 3, seed=0))
    assert report.precision is None
    assert report.derivatives.first == report.derivatives.second == "unchecked"
    assert report.verdict != "fix"


def test_samples_that_are_not_finite_are_counted() -> None:
    def loss(y: Tensor) -> Tensor:
        return (y * y.sqrt()).sum(1) + torch.sin(3 * y).sum(1)

    y = draw(40, 3, seed=0).abs()
    y[:10] = -1
    report = diagnose(loss, y)
    assert report.verdict == "fix"
    assert "25% of the samples have no finite loss" in report.reasons[0]


def strict_solver(costs: Tensor) -> Tensor:
    """The cheapest entry as one-hot; like scipy's solvers it refuses what is not a number."""
    if not torch.isfinite(costs).all():
        raise ValueError("matrix contains invalid numeric entries")
    return torch.nn.functional.one_hot(costs.argmin(-1), costs.shape[-1]).to(costs.dtype)


def test_a_solver_gets_no_nan_where_a_gradient_is_zero() -> None:
    costs = draw(32, 5, seed=0)
    costs[0, 2] = -100.0  # solved as wanted under all noise: the gradient of this sample is exactly zero
    wanted = strict_solver(costs)
    wanted[1:] = strict_solver(draw(31, 5, seed=1))
    loss = FenchelYoungLoss(strict_solver, num_samples=50, generator=torch.Generator().manual_seed(0))
    report = diagnose(loss, costs, wanted)
    assert report.gradients.minimum == 0.0
    assert report.descent.best < report.descent.start


class Wanted(NamedTuple):
    ranks: Tensor
    weight: numpy.ndarray


def weighted(scores: Tensor, ranks: Tensor, weight: Tensor) -> Tensor:
    return weight * steep_ranks(scores, ranks)


@dataclass(frozen=True, slots=True)
class Annotated:
    ranks: Tensor
    inner: Any


@dataclass
class Checked:
    """What a new one is made of is looked at, and part of it is made."""

    weight: Tensor

    def __post_init__(self) -> None:
        assert len(self.weight) > 1
        self.doubled = 2 * self.weight


@dataclass
class Mapped(UserDict[str, Tensor]):
    """As the outputs of some libraries' models: its entries are read by name."""

    ranks: Tensor
    weight: Tensor

    def __post_init__(self) -> None:
        super().__init__(ranks=self.ranks, weight=self.weight)


KINDS = {
    "dataclass": (
        lambda r, w: (Annotated(r, Checked(w)),),
        lambda y, t: weighted(y, t.ranks, t.inner.weight),
    ),
    "dataclass in a dict": (
        lambda r, w: ({"both": Annotated(r, Checked(w))},),
        lambda y, t: weighted(y, t["both"].ranks, t["both"].inner.weight),
    ),
    "dataclass that is a dict": (lambda r, w: (Mapped(r, w),), lambda y, t: weighted(y, t["ranks"], t["weight"])),
    "dict": (lambda r, w: ({"ranks": r, "weight": w},), lambda y, t: weighted(y, t["ranks"], t["weight"])),
    "named tuple": (
        lambda r, w: (Wanted(r, w.numpy()),),
        lambda y, t: weighted(y, t.ranks, torch.as_tensor(t.weight)),
    ),
    "lists": (
        lambda r, w: (list(r), w.tolist()),
        lambda y, r, w: torch.stack([weighted(*one[:2], one[2])[0] for one in zip(y[:, None], r, w, strict=False)]),
    ),
    "arrays in a list": (
        lambda r, w: ([r.numpy(), w.numpy()],),
        lambda y, t: weighted(y, *(torch.as_tensor(one) for one in t)),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 40])
def test_targets_of_all_kinds_are_picked_alike(kind: str, count: int) -> None:
    pack, loss = KINDS[kind]
    scores, weight = draw(count, 5, seed=0), draw(count, seed=2).abs()
    ranks = draw(count, 5, seed=1).argsort(1).argsort(1).float()
    report, plain = diagnose(loss, scores, *pack(ranks, weight)), diagnose(weighted, scores, ranks, weight)
    assert report.derivatives.first == report.derivatives.second == "right"
    assert report.descent.start == pytest.approx(plain.descent.start, rel=1e-6)
    assert report.spectra.negative_share == pytest.approx(plain.spectra.negative_share, rel=1e-6)
    assert report.precision.wrong == 0


@pytest.mark.parametrize("count", [2, 3, 64])
def test_a_table_that_all_samples_share_is_no_target(count: int) -> None:
    def nearest(y: Tensor, prototypes: Tensor) -> Tensor:
        return -(y[:, None] - prototypes).square().sum(2).neg().logsumexp(1)

    def labelled(y: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
        return (y - prototypes[labels]).square().sum(1)

    y, prototypes = draw(count, 3, seed=0), draw(count, 3, seed=1)
    with pytest.raises(ArgumentError, match="other values than within it: a target has one entry per sample"):
        diagnose(nearest, y, prototypes)
    with pytest.raises(ArgumentError, match=r"fails .IndexError.*: a target has one entry per sample"):
        diagnose(labelled, y, torch.arange(count).flip(0), prototypes)
    assert diagnose(lambda y: nearest(y, prototypes.to(y.dtype)), y).gradients.nonfinite == 0
    assert diagnose(nearest, y, draw(5, 3, seed=1)).derivatives.first == "right"


def test_a_target_that_broadcasts_is_named_with_both_shapes() -> None:
    """It has one entry per sample, as it should."""
    report = diagnose(lambda y, t: (y - t).square().sum(1), draw(16, 1, seed=0), draw(16, seed=1))
    assert report.verdict == "fix"
    assert report.separable is False
    for words in ("(16, 1)", "(16,)", "unsqueeze(1)"):
        assert words in report.reasons[0]


def test_errors_of_the_loss_name_the_batch_that_was_given() -> None:
    with pytest.raises(RuntimeError, match="64"):
        diagnose(lambda y, target: (y - target).square().sum(1), draw(64, 3, seed=0), draw(32, 3, seed=1))


def test_a_shape_in_an_error_is_that_of_the_batch_that_was_given() -> None:
    with pytest.raises(ShapeError, match=r"\(64, 3\)"):
        diagnose(lambda y: y.square(), torch.ones(64, 3))


@pytest.mark.parametrize(("num_samples", "count"), [(5, 100), (30, 100), (30, 16)])
def test_noise_that_a_batch_averages_is_a_remark(num_samples: int, count: int) -> None:
    scores, ranks = draw(count, 5, seed=3), draw(count, 5, seed=4).argsort(1).argsort(1).float()
    report = diagnose(smoothed(num_samples), scores, ranks)
    assert 1 < report.noise.gradient < count**0.5
    assert report.verdict != "fix"
    assert any(reason.startswith("A single sample's gradient is mostly noise") for reason in report.reasons)


def test_the_noise_of_a_count_is_no_fault_of_the_targets() -> None:
    """Of few draws and samples, two calls may give the same whole numbers by chance."""
    scores, ranks = draw(4, 5, seed=3), draw(4, 5, seed=4).argsort(1).argsort(1).float()
    for seed in range(8):
        loss = SmoothedLoss(misplaced, num_samples=1, generator=torch.Generator().manual_seed(seed))
        diagnose(loss, scores, ranks)  # raises no error


def test_a_minimum_is_not_a_loss_to_fix() -> None:
    target = draw(20, 3, seed=0)
    report = diagnose(squares, target, target.clone())
    assert "minimum" in report.reasons[0]
    assert str(report).splitlines()[1] == "Nothing to measure here: take other outputs."
    assert "Fix" not in str(report)
    broken = diagnose(lambda y: y.sqrt().sum(1), draw(20, 3, seed=0))
    assert str(broken).splitlines()[1] == "Fix the loss first."


def sharp(y: Tensor, target: Tensor) -> Tensor:
    """Infinite for a sample that has any output below zero; its gradient can be finite even so."""
    return -(target * torch.log(torch.relu(y))).sum(1)


def test_samples_that_are_not_finite_have_no_part_in_the_numbers() -> None:
    y, target = draw(64, 3, seed=0), draw(64, 3, seed=1).softmax(1)
    kept = (y > 0).all(1)
    assert 2 <= int(kept.sum()) <= 16
    report, alone = diagnose(sharp, y, target), diagnose(sharp, y[kept], target[kept])
    assert report.spectra.fisher.values == pytest.approx(alone.spectra.fisher.values, rel=1e-5)


def test_outputs_that_are_not_finite_are_blamed_for_some_samples_too() -> None:
    y, target = draw(40, 3, seed=0), draw(40, 3, seed=1)
    y[3] = torch.nan
    reason = diagnose(squares, y, target).reasons[0]
    assert "look at the network that made their outputs" in reason
    assert "logarithm" not in reason
    target[4] = torch.nan
    assert "for 1 of them, look at the network" in diagnose(squares, y, target).reasons[0]
    assert "for 1 of them, look for a logarithm" in diagnose(squares, y, target).reasons[0]
    root = diagnose(lambda y, t: (y - t).abs().sqrt().sum(1), target[5:], torch.cat([draw(34, 3, seed=2), target[39:]]))
    assert "their losses are finite: look for a root" in root.reasons[0]


def test_a_loss_with_parameters_of_its_own() -> None:
    """Their graph is nobody's business here; torch warns of one where a number is taken, and a warning is an error."""

    class Learnt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, y: Tensor, target: Tensor) -> Tensor:
            return (self.weight.exp() * (torch.sin(3 * y) - target).square()).sum(1)

    loss = Learnt()
    report = diagnose(loss, draw(20, 3, seed=0), draw(20, 3, seed=1))
    assert report.derivatives.first == report.derivatives.second == "right"
    assert loss.weight.grad is None


def test_a_sum_over_the_batch_is_no_loss_to_measure() -> None:
    """Every norm and every λ would be too large by the number of samples, or its square."""
    y, target = draw(20, 3, seed=0), draw(20, 3, seed=1)
    report = diagnose(lambda y, t: squares(y, t).sum(), y, target)
    assert report.verdict == "fix"
    assert "doubles when every sample is given twice" in report.reasons[0]
    told = diagnose(lambda y, t: squares(y, t).sum(), y, target, reduction="sum")
    assert told.verdict == "open"
    assert told.gradients.maximum == pytest.approx(diagnose(squares, y, target).gradients.maximum)
    assert diagnose(lambda y, t: squares(y, t).mean(), y, target).verdict == "open"


@pytest.mark.parametrize("by_name", [False, True])
def test_it_says_that_it_knows_no_mask(by_name: bool) -> None:
    def loss(y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return (y - target).square().mul(mask).sum(1)

    y, target, mask = draw(20, 3, seed=0), draw(20, 3, seed=1), draw(20, 3, seed=2) > 0
    for given, is_told in ((mask, True), (torch.ones_like(mask), False)):
        report = diagnose(loss, y, target, mask=given) if by_name else diagnose(loss, y, target, given)
        assert any("the mask leaves out" in reason for reason in report.reasons) == is_told


@pytest.mark.parametrize(("small", "is_told"), [(1e-2, False), (1e-4, True)])
def test_an_output_too_quiet_for_adam_is_named(small: float, is_told: bool) -> None:
    unit = torch.tensor([small, 1.0, 0.0])  # of which the last has no gradient at all
    report = diagnose(lambda y, t: ((y - t) * unit).square().sum(1), draw(20, 3, seed=0), draw(20, 3, seed=1))
    assert any("Adam's eps" in reason for reason in report.reasons) == is_told
