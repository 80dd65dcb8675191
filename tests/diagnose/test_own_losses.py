"""Losses as users bring them: solvers that refuse NaN, targets of all kinds, faults in single samples."""

import time
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from catalogue import cross_entropy, draw, misplaced, old_sine, smoothed, squares, steep_ranks, vanishing
from torch import Tensor, nn

from newton_losses import ArgumentError
from newton_losses.diagnose import _diagnose, diagnose
from newton_losses.diagnose._descent import Descent, Line
from newton_losses.diagnose._parts import check_parts
from newton_losses.diagnose._probe import Probe
from newton_losses.diagnose._verdict import _one_step
from newton_losses.perturbed import FenchelYoungLoss
from newton_losses.smoothing import SmoothedLoss


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


KINDS = {
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
def test_targets_of_all_kinds_are_picked_alike(kind: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for budget in ("GRADIENT_BUDGET", "FIRST_BUDGET", "HESSIAN_BUDGET", "DESCENT_BUDGET"):
        monkeypatch.setattr(_diagnose, budget, 1e6)  # the clock would choose the samples
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


def test_errors_of_the_loss_name_the_batch_that_was_given() -> None:
    with pytest.raises(RuntimeError, match="64"):
        diagnose(lambda y, target: (y - target).square().sum(1), draw(64, 3, seed=0), draw(32, 3, seed=1))


class _WrongForSome(torch.autograd.Function):
    """sin, whose backward has the wrong sign and thrice the size where a mark is set."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mark: Tensor) -> Tensor:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        x, mark = ctx.saved_tensors
        return outer * torch.cos(x) * torch.where(mark, -3.0, 1.0), None


@pytest.mark.parametrize("wrong", [0, 1, 3])
@pytest.mark.parametrize("outputs", [1, 4])
def test_a_backward_that_is_wrong_for_few_samples(wrong: int, outputs: int) -> None:
    def loss(y: Tensor, mark: Tensor) -> Tensor:
        return (_WrongForSome.apply(2 * y, mark[:, None]) - 0.5).square().sum(1)

    report = diagnose(loss, draw(64, outputs, seed=0), torch.arange(64) < wrong)
    assert report.derivatives.first == ("wrong" if wrong else "right")
    assert report.derivatives.wrong_samples == wrong / 64
    if wrong:
        assert report.verdict == "fix"
        assert report.reasons[0].startswith(f"The gradient is wrong for {wrong / 64:.0%} of the samples")
        assert report.derivatives.first_error > 1


KINKED = {
    "hinge": lambda y, t: (1 - y * t.sign()).relu().sum(1),
    "absolute": lambda y, t: (y - t).abs().sum(1),
    "largest": lambda y, t: y.max(1).values - y.min(1).values + (y - t).abs().amax(1),
    "sorted": lambda y, t: (y.sort(1).values - t).abs().sum(1),
    "smoothed absolute": lambda y, t: torch.nn.functional.smooth_l1_loss(y, t, reduction="none", beta=1e-3).sum(1),
    "triplet": lambda y, t: (0.2 + (y - t).norm(dim=1) - (y + t).norm(dim=1)).relu(),
}


@pytest.mark.parametrize("name", KINKED)
@pytest.mark.parametrize("where", ["random", "at kinks", "near kinks"])
def test_kinks_are_not_taken_for_a_wrong_gradient(name: str, where: str) -> None:
    target = draw(100, 5, seed=1)
    y = {
        "random": draw(100, 5, seed=0),
        "at kinks": target.round(),  # many ties, margins of exactly one, and some at the target
        "near kinks": target.sign() + 1e-4 * draw(100, 5, seed=2),
    }[where]
    if where == "at kinks":
        target[:3] = y[:3]
    report = diagnose(KINKED[name], y, target)
    assert report.derivatives.wrong_samples == 0


@pytest.mark.parametrize("scale", [1.0, 30.0, 100.0])
@pytest.mark.parametrize("loss", [cross_entropy, vanishing], ids=["cross-entropy", "saturated"])
def test_vanished_gradients_are_not_called_wrong(loss: Any, scale: float) -> None:
    """Their slopes are below the rounding of the values that they are compared with."""
    for seed in range(3):
        y, labels = draw(100, 6, seed=seed, scale=scale), draw(100, 6, seed=seed + 50).argmax(1)
        assert diagnose(loss, y, labels).derivatives.first == "right"


@pytest.mark.parametrize(("num_samples", "count"), [(5, 100), (30, 100), (30, 16)])
def test_noise_that_a_batch_averages_is_a_remark(num_samples: int, count: int) -> None:
    scores, ranks = draw(count, 5, seed=3), draw(count, 5, seed=4).argsort(1).argsort(1).float()
    report = diagnose(smoothed(num_samples), scores, ranks)
    assert 1 < report.noise.gradient < count**0.5
    assert report.verdict == "yes"
    assert report.recommendation.curvature == "fisher"
    assert any(reason.startswith("The estimate is noise in a single sample") for reason in report.reasons)


def test_the_noise_of_a_count_is_no_fault_of_the_targets() -> None:
    """Of few draws and samples, two calls may give the same whole numbers by chance."""
    scores, ranks = draw(4, 5, seed=3), draw(4, 5, seed=4).argsort(1).argsort(1).float()
    for seed in range(30):
        loss = SmoothedLoss(misplaced, num_samples=1, generator=torch.Generator().manual_seed(seed))
        check_parts(Probe(loss, scores, (ranks,), None))


def test_a_minimum_is_not_a_loss_to_mend() -> None:
    target = draw(20, 3, seed=0)
    report = diagnose(squares, target, target.clone())
    assert "minimum" in report.reasons[0]
    assert str(report).splitlines()[1] == "Nothing to measure here: take other outputs."
    assert "Mend" not in str(report)
    broken = diagnose(lambda y: _WrongForSome.apply(y, y.new_ones(1).bool()).sum(1), draw(20, 3, seed=0))
    assert str(broken).splitlines()[1] == "Mend the loss first."


def test_one_sample_gets_the_hessian() -> None:
    """The Fisher of one sample is its own gradient, and only shortens it."""
    for seed in range(4):
        scores, ranks = draw(1, 5, seed=seed), draw(1, 5, seed=seed + 50).argsort(1).argsort(1).float()
        report = diagnose(steep_ranks, scores, ranks)
        assert report.recommendation is None or report.recommendation.curvature == "hessian"
    assert diagnose(old_sine, scores, ranks).recommendation.curvature == "fisher"  # it has no Hessian


@pytest.mark.parametrize(
    ("solved", "text"), [(1.0, "100%"), (0.95, "95%"), (0.947, "94.7%"), (0.9496, "94.96%"), (0.5, "50%")]
)
def test_a_share_is_on_its_side_of_the_threshold(solved: float, text: str) -> None:
    line = Line("gradient", (1.0,), (0.0,), 0.0)
    assert f" {text} of the decrease" in _one_step(Descent(1.0, 0.0, solved, line, (), 1))


def sharp(y: Tensor, target: Tensor) -> Tensor:
    """Infinite for a sample that has any output below zero; its gradient can be finite even so."""
    return -(target * torch.log(torch.relu(y))).sum(1)


def test_samples_that_are_not_finite_have_no_part_in_the_numbers() -> None:
    y, target = draw(64, 3, seed=0), draw(64, 3, seed=1).softmax(1)
    kept = (y > 0).all(1)
    assert 2 <= int(kept.sum()) <= 16
    report, alone = diagnose(sharp, y, target), diagnose(sharp, y[kept], target[kept])
    assert report.spectra.fisher.values == pytest.approx(alone.spectra.fisher.values, rel=1e-5)


def test_a_hessian_is_timed_with_as_many_samples_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only calls move on, whatever the number of samples: what one call takes is not multiplied."""
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def ticking(y: Tensor, target: Tensor) -> Tensor:
        now[0] += 1e-4
        return sharp(y, target)

    cost = diagnose(ticking, draw(64, 3, seed=0), draw(64, 3, seed=1).softmax(1)).cost
    assert cost.samples == 64
    assert cost.hessian < 4 * cost.gradient


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


def test_an_operator_without_a_name_is_not_a_message() -> None:
    report = diagnose(nn.MSELoss(), draw(20, 3, seed=0), draw(20, 3, seed=1))
    if not report.derivatives.forward:  # later versions of torch may have it
        assert report.derivatives.operator == "an operator of torch"
