"""Losses as users bring them: solvers that refuse NaN, targets of all kinds, faults in single samples."""

from typing import NamedTuple

import numpy
import pytest
import torch
from catalogue import draw, steep_ranks
from torch import Tensor

from newton_losses import ArgumentError
from newton_losses.diagnose import _diagnose, diagnose
from newton_losses.perturbed import FenchelYoungLoss


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
