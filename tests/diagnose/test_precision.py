"""float32 against float64: a loss of which float32 loses a share that is known by hand."""

import pytest
import torch
from catalogue import draw, squares
from torch import Tensor

from newton_losses.diagnose import diagnose

pytestmark = pytest.mark.usefixtures("quick_machine")

# From here on float32 holds whole numbers only, and float64 all the digits that are needed.
WHOLE = 2.0**23


def rounding(y: Tensor) -> Tensor:
    """½‖y‖² whose gradient is y in float64, and y rounded to a whole number (ties to even) in float32."""
    return ((y + WHOLE) - WHOLE).square().sum(1) / 2


def test_the_share_that_float32_loses() -> None:
    y = torch.tensor([[1.0], [1.25], [2.25], [3.0], [3.5]])  # in float32 the gradients are 1, 1, 2, 3, 4
    precision = diagnose(rounding, y).precision
    assert precision is not None
    # Relative errors, ascending: 0, 0, 1/9, 1/7, 1/5.
    assert precision.error == pytest.approx(1 / 9)
    assert precision.wrong == pytest.approx(3 / 5)
    # The 99th percentile of five is 96 % of the way from the fourth to the fifth.
    assert precision.p99_float32 == pytest.approx(3 + 0.96 * 1.0)
    assert precision.p99_float64 == pytest.approx(3 + 0.96 * 0.5)
    assert precision.broken


def test_the_reason_and_the_text_tell_it() -> None:
    report = diagnose(rounding, torch.tensor([[1.0], [1.25], [2.25], [3.0], [3.5]]))
    assert report.verdict == "fix"
    assert "60%" in report.reasons[0]
    assert "4 in float32, 3.5 in float64" in report.reasons[0]  # the 99th percentiles
    assert "1.1e-01" in str(report)


def test_an_honest_loss_loses_no_more_than_rounding() -> None:
    precision = diagnose(squares, draw(50, 4, seed=0), draw(50, 4, seed=1)).precision
    assert precision is not None
    # 2(y − t) of numbers that both precisions hold: one rounding of the difference, half a unit in the last place each.
    assert 0 < precision.error < torch.finfo(torch.float32).eps
    assert precision.wrong == 0
    assert precision.p99_float32 == pytest.approx(precision.p99_float64, rel=1e-6)
    assert not precision.broken
