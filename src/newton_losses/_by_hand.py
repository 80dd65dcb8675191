"""Functions whose first derivative is written by hand, and what becomes of the second.

Hand-written derivatives usually end at the first order, silently. With `by_hand`, all further ones, forward mode,
torch.func, vmap and compilers go to a plain version of the same function, which torch differentiates itself.
`NoSecondDerivative` is for where there is none.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from ._tracing import sees_operators
from .errors import DerivativeError

Plain = Callable[[Tensor], Tensor]
Pullback = Callable[[Tensor], Tensor]


def by_hand(x: Tensor, plain: Plain, value_and_pullback: Callable[[Tensor], tuple[Tensor, Pullback]]) -> Tensor:
    """`plain(x)`, computed by `value_and_pullback`: the value, and the map from the gradient by it to that by x.

    The pullback must not hold on to the value itself, which would never be freed: a copy of it will do.

    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> y = by_hand(x, lambda x: x.square(), lambda x: (x.square(), lambda slope: 2 * x * slope))
    >>> torch.autograd.grad(y, x)
    (tensor(6.),)
    """
    if sees_operators() or is_dual(x):
        return plain(x)
    value: Tensor = _ByHand.apply(x, plain, value_and_pullback)  # type: ignore[no-untyped-call]
    return value


def is_dual(x: Tensor) -> bool:
    """Whether it carries a tangent of forward mode."""
    return unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plain: Plain, value_and_pullback: Any) -> Tensor:
        value: Tensor
        value, ctx.pullback = value_and_pullback(x)
        ctx.plain = plain
        ctx.save_for_backward(x)
        return value

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        (x,), slope = ctx.saved_tensors, slopes[0]
        if torch.is_grad_enabled() or sees_operators() or _is_batched(slope) or is_dual(slope):
            return torch.func.vjp(ctx.plain, x)[1](slope)[0], None, None
        return ctx.pullback(slope), None, None


def _is_batched(x: Tensor) -> bool:
    """Whether a vmap is at work on it: torch's present one, or the older one of `is_grads_batched`."""
    functorch = torch._C._functorch
    return bool(functorch.is_functorch_wrapped_tensor(x) or functorch.is_legacy_batchedtensor(x))


class NoSecondDerivative(torch.autograd.Function):
    """The identity on a gradient, which raises with a `reason` when it is differentiated by what it depends on."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, depends_on: Tensor, reason: str) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.reason = inputs[2]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise DerivativeError(ctx.reason)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise DerivativeError(ctx.reason)
