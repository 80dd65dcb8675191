"""Statistics of gradient norms: batches whose norms are made by hand, so that every figure is known."""

import pytest
import torch
from torch import Tensor

from newton_losses.diagnose import Gradients, diagnose
from newton_losses.diagnose._gradients import measure_gradients

pytestmark = pytest.mark.usefixtures("quick_machine")

# 101 norms k²: the 99th percentile is the hundredth of them, and neither the mean nor anything else is the median.
NORMS = [float(k * k) for k in range(1, 102)]


def gradients_with(norms: list[float]) -> Tensor:
    """Two outputs, all samples in the direction (3, 4)/5; not in the order of their norms."""
    shuffled = torch.randperm(len(norms), generator=torch.Generator().manual_seed(0))
    return torch.tensor(norms, dtype=torch.float64)[shuffled, None] * torch.tensor([0.6, 0.8], dtype=torch.float64)


def assert_known(found: Gradients) -> None:
    assert found.norms == pytest.approx(NORMS)
    assert (found.minimum, found.maximum) == pytest.approx((1.0, 101.0**2))
    assert found.median == pytest.approx(51.0**2)
    assert found.typical == pytest.approx(51.0**2)
    assert found.p99 == pytest.approx(100.0**2)
    assert found.ratio == pytest.approx(100.0**2 / 51.0**2)


def test_of_hand_made_gradients() -> None:
    assert_known(measure_gradients(torch.zeros(101), gradients_with(NORMS)))


def test_of_a_loss_with_these_gradients() -> None:
    """A linear loss: the gradient of a sample is its weight."""
    weight = gradients_with(NORMS)
    y = torch.randn(101, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    report = diagnose(lambda y, weight: (y * weight).sum(1), y, weight)
    assert report.gradients is not None
    assert_known(report.gradients)


def test_zeros_count_for_the_median_and_not_for_the_typical_norm() -> None:
    found = measure_gradients(torch.zeros(7), gradients_with([0.0, 0.0, 0.0, 0.0, 3.0, 5.0, 8.0]))
    assert (found.minimum, found.median, found.typical, found.maximum) == pytest.approx((0.0, 0.0, 5.0, 8.0))
    assert found.vanishing == pytest.approx(4 / 7)
    # The 99th percentile is 94 % of the way from the last but one to the last.
    assert found.p99 == pytest.approx(5.0 + 0.94 * 3.0)
    assert found.ratio == pytest.approx((5.0 + 0.94 * 3.0) / 5.0)
