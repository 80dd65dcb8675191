"""What each order of derivatives costs: losses that tell the time themselves, so that every figure is known."""

import time
from typing import Any

import pytest
import torch
from catalogue import KeepsInput, draw
from torch import Tensor

from newton_losses import Expansion
from newton_losses.diagnose import diagnose

# Seconds for one sample. Far apart, and none the sum of others.
VALUE, GRADIENT, FISHER, HESSIAN = 1e-6, 1e-4, 3e-4, 2e-3
COUNT, OUTPUTS = 64, 40


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that lets so many seconds pass; nothing else takes any time."""
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])

    def spend(seconds: float) -> None:
        now[0] += seconds

    return spend


class Bowl:
    """½‖y‖² that brings its own expansion, and whose every order takes a time of its own."""

    def __init__(self, spend: Any) -> None:
        self.spend = spend
        self.hessians: list[int] = []

    def __call__(self, y: Tensor) -> Tensor:
        self.spend(VALUE * len(y))
        return y.square().sum(1) / 2

    def expand(self, y: Tensor, *targets: Tensor, curvature: str | None) -> Expansion:
        self.spend({None: GRADIENT, "fisher": FISHER, "hessian": HESSIAN}[curvature] * len(y))
        if curvature is None:
            return Expansion(y.square().sum(1) / 2, y, None)
        if curvature == "hessian":
            self.hessians.append(len(y))
        matrix = y.mT @ y / len(y) if curvature == "fisher" else torch.eye(y.shape[1], dtype=y.dtype)
        return Expansion(y.square().sum(1) / 2, y, matrix)


def test_of_a_loss_that_brings_its_expansion(spend: Any) -> None:
    loss = Bowl(spend)
    report = diagnose(loss, draw(COUNT, OUTPUTS, seed=0))
    cost = report.cost
    assert cost is not None
    assert cost.samples == COUNT
    assert cost.value == pytest.approx(COUNT * VALUE)
    assert cost.gradient == pytest.approx(COUNT * GRADIENT)
    assert cost.fisher == pytest.approx(COUNT * FISHER)
    # The budget allows Hessians of some samples only, and the cost is nevertheless that of all.
    assert 1 < max(loss.hessians) < COUNT
    assert cost.hessian == pytest.approx(COUNT * HESSIAN)


def test_of_a_loss_with_a_slow_backward(spend: Any) -> None:
    class Slow(KeepsInput):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            spend(VALUE * len(x))
            return x.square()

        @staticmethod
        def backward(ctx: Any, outer: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            spend(GRADIENT * len(x))
            return 2 * outer * x

    cost = diagnose(lambda y: Slow.apply(y).sum(1), draw(COUNT, 3, seed=0)).cost
    assert cost is not None
    assert cost.value == pytest.approx(COUNT * VALUE)
    # Forward and backward once; the products of gradients that make the Fisher take no time on this clock.
    assert cost.gradient == pytest.approx(COUNT * (VALUE + GRADIENT))
    assert cost.fisher == pytest.approx(COUNT * (VALUE + GRADIENT))
    assert cost.hessian is not None
    assert cost.hessian >= 0.99 * cost.gradient


def test_where_there_is_no_hessian_it_costs_nothing_that_is_known() -> None:
    y = draw(4, 3000, seed=0)
    cost = diagnose(lambda y: torch.log1p(y.square()).sum(1), y).cost
    assert cost is not None
    assert cost.hessian is None
