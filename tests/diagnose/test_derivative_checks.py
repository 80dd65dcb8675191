"""What is said of a loss's derivatives: losses of which it is known which of them there are, and how wrong."""

from typing import Any

import pytest
import torch
from catalogue import KeepsInput, cross_entropy, draw, honest_waves, squares, steep_ranks
from torch import Tensor

from newton_losses.diagnose import diagnose

pytestmark = pytest.mark.usefixtures("quick_machine")


@pytest.mark.parametrize("loss", [squares, honest_waves, steep_ranks])
def test_forward_mode_works_for_plain_losses(loss: Any) -> None:
    report = diagnose(loss, draw(12, 3, seed=0), draw(12, 3, seed=1))
    assert report.derivatives.forward is True
    assert report.derivatives.operator is None
    assert report.derivatives.first == report.derivatives.second == "right"
    assert report.derivatives.first_error < 1e-4
    assert report.derivatives.second_error < 1e-4
    assert "stopped" not in str(report)


def test_forward_mode_works_for_a_loss_of_torch() -> None:
    report = diagnose(cross_entropy, draw(12, 3, seed=0), draw(12, 3, seed=1).argmax(1))
    assert (report.derivatives.forward, report.derivatives.operator) == (True, None)


def test_an_operator_of_torch_without_a_forward_rule_is_named() -> None:
    def distances(y: Tensor, target: Tensor) -> Tensor:
        return torch.cdist(y[:, None], target[:, None])[:, 0, 0]

    report = diagnose(distances, draw(12, 3, seed=0), draw(12, 3, seed=1))
    assert report.derivatives.forward is False
    # The name alone, and not torch's whole sentence about it.
    assert "cdist" in report.derivatives.operator
    assert len(report.derivatives.operator.split()) == 1
    (line,) = (line for line in str(report).splitlines() if "forward mode" in line)
    assert line.endswith(f" {report.derivatives.operator}")


def scaled_backward(factor: float) -> Any:
    """½‖x‖² per row whose backward is off by this factor."""

    class Half(KeepsInput):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.square().sum(-1) / 2

        @staticmethod
        def backward(ctx: Any, outer: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return factor * outer[..., None] * x

    return Half.apply


@pytest.mark.parametrize("factor", [0.995, 0.95, 1.05])
def test_a_backward_that_is_a_little_off_is_found(factor: float) -> None:
    report = diagnose(scaled_backward(factor), draw(30, 4, seed=0))
    assert report.derivatives.first == "wrong"
    # The error is relative to the larger of both slopes.
    assert report.derivatives.first_error == pytest.approx(abs(1 - factor) / max(1, factor), rel=1e-3)
    assert report.verdict == "fix"
    assert "gradient is wrong" in report.reasons[0]


def test_the_same_operator_without_a_mistake_is_right() -> None:
    report = diagnose(scaled_backward(1.0), draw(30, 4, seed=0))
    assert report.derivatives.first == report.derivatives.second == "right"
    assert report.verdict == "no"
