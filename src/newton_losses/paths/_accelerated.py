"""A function with a hand-written value and gradient that stays differentiable to any order.

Hand-written derivatives usually end at the first order, silently. Here second and higher orders, forward mode,
torch.func and vmap go to a plain version, which torch differentiates itself. `_relaxation.py` says what is
accelerated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._tracing import sees_operators

Plain = Callable[[Tensor], Tensor]
Value = Callable[[Tensor], tuple[Tensor, Tensor]]
Pullback = Callable[[Tensor, Tensor, Tensor], Tensor]


def accelerated(x: Tensor, plain: Plain, value: Value, pullback: Pullback) -> Tensor:
    """The value y of one function x ↦ y that is given in three forms.

    - `plain`, of torch's operators only: the definition, from which all derivatives beyond the first come.
    - `value`, the same but faster, with whatever the gradient can reuse: x ↦ (y, kept).
    - `pullback`: (x, kept, gradient by y) ↦ gradient by x.
    """
    # A compiler fuses the plain version better than a person does, and torch.func is used for derivatives beyond
    # the first, which the plain version has directly.
    if sees_operators():
        return plain(x)
    apply: Any = _Value.apply
    result: Tensor = apply(x, _Function(plain, value, pullback))[0]
    return result


@dataclass(frozen=True)
class _Function:
    plain: Plain
    value: Value
    pullback: Pullback

    def plain_pullback(self, x: Tensor, gradient: Tensor) -> Tensor:
        result: Tensor = torch.func.vjp(self.plain, x)[1](gradient)[0]
        return result


def _is_batched(x: Tensor) -> bool:
    """Whether a vmap is at work on it: torch's present one, or the older one of `is_grads_batched`."""
    functorch = torch._C._functorch
    return bool(functorch.is_functorch_wrapped_tensor(x) or functorch.is_legacy_batchedtensor(x))


def _pushforward(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> Tensor:
    """J·t of a function by two pullbacks, v ↦ Jᵀv being linear: torch cannot nest forward mode in itself."""
    along = tuple(torch.zeros_like(x) if t is None else t for x, t in zip(inputs, tangents, strict=True))
    output, pullback = torch.func.vjp(function, *inputs)[:2]
    result: Tensor = torch.func.vjp(pullback, torch.zeros_like(output))[1](along)[0]
    return result


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, function: _Function) -> tuple[Tensor, Tensor]:
        return function.value(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.function = inputs
        ctx.mark_non_differentiable(output[1])
        # Or each backward would fill a tensor of zeros as large as what is kept.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, output[1])
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        x, kept = ctx.saved_tensors
        gradient = gradients[0]
        if gradient is None:
            return None, None
        # A batch of gradients, as of a vectorised Jacobian, cannot be written into buffers.
        if _is_batched(gradient):
            return ctx.function.plain_pullback(x, gradient), None
        apply: Any = _Pullback.apply
        return apply(x, kept, gradient, ctx.function), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        return _pushforward(ctx.function.plain, ctx.saved_tensors[:1], tangents[:1]), None


class _Pullback(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, kept: Tensor, gradient: Tensor, function: _Function) -> Tensor:
        return function.pullback(x, kept, gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, gradient, ctx.function = inputs
        ctx.save_for_backward(x, gradient)
        ctx.save_for_forward(x, gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor, None]:
        by_x, by_gradient = torch.func.vjp(ctx.function.plain_pullback, *ctx.saved_tensors)[1](gradients[0])
        return by_x, None, by_gradient, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _pushforward(ctx.function.plain_pullback, ctx.saved_tensors, (tangents[0], tangents[2]))
