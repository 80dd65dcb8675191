"""What is said of a loss's derivatives: losses of which it is known which of them there are, and how wrong."""

from typing import Any

import pytest
import torch
from known_losses import KeepsInput, cut_second, draw, half_cut_second, honest_waves, squares, steep_ranks, wrong_second
from torch import Tensor
from torch.nn import functional

from newton_losses import Expansion
from newton_losses.diagnose import diagnose
from newton_losses.sorting import SortingLoss


@pytest.mark.parametrize("loss", [squares, honest_waves, steep_ranks])
def test_plain_losses_are_right(loss: Any) -> None:
    report = diagnose(loss, draw(12, 3, seed=0), draw(12, 3, seed=1))
    assert report.derivatives.first == report.derivatives.second == "right"
    assert report.derivatives.first_error < 1e-4
    assert report.derivatives.second_error < 1e-4
    assert report.derivatives.operators == report.derivatives.cuts == ()


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
    assert report.verdict != "fix"


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


@pytest.mark.parametrize("loss", [cut_second, wrong_second])
def test_a_wrong_second_derivative_is_found_and_its_operator_named(loss: Any) -> None:
    report = diagnose(loss, draw(64, 5, seed=0), draw(64, 5, seed=1))
    assert report.derivatives.first == "right"
    assert report.derivatives.second == "wrong"
    assert report.derivatives.second_error > 0.1
    assert report.derivatives.cuts == ()
    (reason,) = (reason for reason in report.reasons if "silently wrong" in reason)
    assert report.derivatives.operators[0] in reason
    assert "curvature='fisher'" in reason
    assert [candidate.curvature for candidate in report.descent.candidates] == ["fisher"]
    assert report.recommendation is None or report.recommendation.curvature == "fisher"


def test_a_missing_second_derivative_names_its_operator() -> None:
    report = diagnose(half_cut_second, draw(10, 3, seed=0), draw(10, 3, seed=1))
    assert report.derivatives.second == "missing"
    assert report.derivatives.operators == ("_OldSine",)
    assert "_OldSine" in report.derivatives.obstacle


def test_a_loss_that_only_expands() -> None:
    class Bowl:
        def expand(self, y: Tensor, *targets: Tensor, curvature: str | None) -> Expansion:
            matrix = None if curvature is None else torch.eye(y.shape[1], dtype=y.dtype) * 2
            return Expansion(y.square().sum(1), 2 * y, matrix)

    report = diagnose(Bowl(), draw(12, 3, seed=0))
    assert report.derivatives.first == report.derivatives.second == "right"


def test_a_brought_hessian_that_is_wrong() -> None:
    class Crooked:
        def expand(self, y: Tensor, *targets: Tensor, curvature: str | None) -> Expansion:
            matrix = None if curvature is None else torch.eye(y.shape[1], dtype=y.dtype)
            return Expansion((y.square() + torch.cos(3 * y)).sum(1), 2 * y - 3 * torch.sin(3 * y), matrix)

    report = diagnose(Crooked(), draw(12, 3, seed=0))
    assert report.derivatives.first == "right"
    assert report.derivatives.second == "wrong"


@pytest.mark.parametrize("scale", [8.0, 20.0])
@pytest.mark.parametrize("labels", ["random", "right"])
def test_a_cross_entropy_whose_gradients_have_vanished_is_right(scale: float, labels: str) -> None:
    """Of a sample that is sure, finite differences see the rounding of its logits and nothing else."""
    y = draw(100, 2, seed=0, scale=scale)
    target = y.argmax(1) if labels == "right" else draw(100, 2, seed=1).argmax(1)
    report = diagnose(lambda y, target: functional.cross_entropy(y, target, reduction="none"), y, target)
    assert report.derivatives.first == "right"
    assert report.verdict != "fix"


def test_the_same_for_a_logistic_loss() -> None:
    y, target = draw(100, 1, seed=0, scale=25.0), (draw(100, 1, seed=1) > 0).float()
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
    y = torch.where(torch.arange(64)[:, None] % 4 == 0, 0.01, 1.0) * draw(64, 1, seed=0).sign()
    assert diagnose(lambda y: Wrong.apply(y).sum(1), y).derivatives.first == "wrong"


def test_the_reference_numerics_are_named_where_single_precision_is_not_to_blame() -> None:
    report = diagnose(
        SortingLoss("neuralsort", temperature=1.0, numerics="reference"), draw(100, 10, seed=0), draw(100, 10, seed=1)
    )
    assert report.verdict == "fix"
    assert report.precision.wrong < 0.01
    assert 'numerics="stable"' in report.reasons[0]
    assert "backward" not in str(report)


def test_a_line_on_which_every_move_is_too_long_ends_where_it_begins() -> None:
    """A valley so narrow that a thousandth of the outputs' spread crosses it."""
    y = draw(64, 2, seed=0) * torch.tensor([1.0, 1e-4])
    report = diagnose(lambda y: (y * y * torch.tensor([1.0, 1e4], dtype=y.dtype)).sum(1) / 2, y)
    assert report.descent.gradient.best <= report.descent.start
    assert 0 <= report.descent.solved <= 1


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
