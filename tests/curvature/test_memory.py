"""How much of a loss is held at once while its second derivatives are made, and what is said where that is too much."""

import pytest
import torch
from torch import Tensor

from cases import Cube, assert_close
from newton_losses import DerivativeError, expand
from newton_losses.curvature import _derivatives


class Hungry(torch.autograd.Function):
    """The second derivative of it takes more memory than there is."""

    @staticmethod
    def forward(ctx, x):
        return x.sum(1)

    @staticmethod
    def backward(ctx, grad):
        return HungrySlope.apply(grad[:, None].expand(-1, 3))


class HungrySlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, slope):
        return slope.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad + torch.empty(2**58)


@pytest.mark.parametrize(("power", "name"), [(lambda x: x**3, "forward_products"), (Cube.apply, "_grad_of_grad")])
def test_few_directions_at_once_where_the_loss_makes_much_of_its_outputs(power, name: str, monkeypatch) -> None:
    """All pairs of 48 outputs: 48 times as much as the outputs themselves."""
    monkeypatch.setattr(_derivatives, "PASS_ELEMENTS", 2**16)
    y = torch.randn(8, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    passes: list[int] = []

    def loss(y: Tensor) -> Tensor:
        return power(y[:, :, None] - 2 * y[:, None, :]).sum((1, 2))

    def counted(*arguments, **options):
        passes.append(len(arguments[-1]))
        return original(*arguments, **options)

    original = getattr(_derivatives, name)
    monkeypatch.setattr(_derivatives, name, counted)
    found = expand(loss, y)
    wanted = torch.stack([torch.func.hessian(lambda one: ((one[:, None] - 2 * one) ** 3).sum())(one) for one in y])
    assert_close(found.curvature.dense(), wanted.mean(0), 1e-10)
    assert sum(passes) == 48
    assert set(passes) == {3}  # 2¹⁶ // (8 · 48²)


def test_how_large_a_loss_is_is_asked_once() -> None:
    y, calls = torch.randn(8, 48, generator=torch.Generator().manual_seed(0)), []

    def loss(y: Tensor) -> Tensor:
        calls.append(len(y))
        return y.pow(4).sum(1)

    expand(loss, y)
    first = len(calls)
    expand(loss, y)
    assert len(calls) == first + first - 1


def test_too_little_memory_is_not_a_missing_derivative() -> None:
    def loss(y: Tensor) -> Tensor:
        return Hungry.apply(y).square()

    with pytest.raises(RuntimeError, match="can't allocate memory") as caught:
        expand(loss, torch.ones(2, 3))
    assert not isinstance(caught.value, DerivativeError)
    assert "matrix_free=True" in caught.value.__notes__[0]
