"""Losses as users bring them: solvers that refuse NaN, targets of all kinds, faults in single samples."""

import torch
from catalogue import draw
from torch import Tensor

from newton_losses.diagnose import diagnose
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
