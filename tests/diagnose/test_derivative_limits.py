"""Derivatives that are right and hard to measure, and wrong ones whose cause is known."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from newton_losses import diagnose
from newton_losses.sorting import SortingLoss


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [8.0, 20.0])
@pytest.mark.parametrize("labels", ["random", "right"])
def test_a_cross_entropy_whose_gradients_have_vanished_is_right(scale: float, labels: str) -> None:
    """Of a sample that is sure, finite differences see the rounding of its logits and nothing else."""
    y = draw(100, 2) * scale
    target = y.argmax(1) if labels == "right" else draw(100, 2, seed=1).argmax(1)
    report = diagnose(lambda y, target: functional.cross_entropy(y, target, reduction="none"), y, target)
    assert report.derivatives.first == "right"
    assert report.verdict == "no"


def test_the_same_for_a_logistic_loss() -> None:
    y, target = draw(100, 1) * 25, (draw(100, 1, seed=1) > 0).float()
    report = diagnose(
        lambda y, t: functional.binary_cross_entropy_with_logits(y, t, reduction="none").sum(1), y, target
    )
    assert report.derivatives.first == "right"


class Wrong(torch.autograd.Function):
    """Three times the gradient, for small gradients only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2 / 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.where(x.abs() < 0.1, 3 * x, x)


def test_small_gradients_are_still_looked_at() -> None:
    y = torch.where(torch.arange(64)[:, None] % 4 == 0, 0.01, 1.0) * draw(64, 1).sign()
    assert diagnose(lambda y: Wrong.apply(y).sum(1), y).derivatives.first == "wrong"


def test_the_reference_numerics_are_named_where_single_precision_is_not_to_blame() -> None:
    report = diagnose(
        SortingLoss("neuralsort", temperature=1.0, numerics="reference"), draw(100, 10), draw(100, 10, seed=1)
    )
    assert report.verdict == "fix"
    assert report.precision.wrong < 0.01
    assert 'numerics="stable"' in report.reasons[0]
    assert "custom backward" not in str(report)


def test_a_line_on_which_every_move_is_too_long_ends_where_it_begins() -> None:
    """A valley so narrow that a thousandth of the outputs' spread crosses it."""
    y = draw(64, 2) * torch.tensor([1.0, 1e-4])
    report = diagnose(lambda y: (y * y * torch.tensor([1.0, 1e4], dtype=y.dtype)).sum(1) / 2, y)
    assert report.descent.gradient.best <= report.descent.start
    assert 0 <= report.descent.solved <= 1


def test_convex_is_said_of_as_many_samples_as_were_looked_at() -> None:
    assert "of 100 samples none" in str(diagnose(lambda y: y.square().sum(1), draw(100, 2)))
