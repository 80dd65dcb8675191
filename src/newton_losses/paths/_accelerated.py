"""A function with a hand-written value and gradient that stays differentiable to any order.

Hand-written derivatives usually end at the first order, and silently so. Here the second and higher orders,
forward mode and vmap go to a plain version of the same function, which torch differentiates by itself.
What is accelerated is not known here; see `_relaxation.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Accelerated:
    """One function x ↦ y three times.

    - `plain` of torch's operators only: the definition, and what every derivative beyond the first is of.
    - `value` the same faster, with whatever the gradient can use again: x ↦ (y, kept).
    - `pullback` (x, kept, gradient by y) ↦ gradient by x.
    """

    plain: Callable[[Tensor], Tensor]
    value: Callable[[Tensor], tuple[Tensor, Tensor]]
    pullback: Callable[[Tensor, Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        # A compiler fuses the plain version better than hands do.
        if torch.compiler.is_compiling():
            return self.plain(x)
        apply: Any = _Value.apply
        result: Tensor = apply(x, self)[0]
        return result

    def plain_pullback(self, x: Tensor, gradient: Tensor) -> Tensor:
        result: Tensor = torch.func.vjp(self.plain, x)[1](gradient)[0]
        return result


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
    def forward(x: Tensor, function: Accelerated) -> tuple[Tensor, Tensor]:
        return function.value(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.function = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, output[1])
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, kept = ctx.saved_tensors
        apply: Any = _Pullback.apply
        return apply(x, kept, gradients[0], ctx.function), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        return _pushforward(ctx.function.plain, ctx.saved_tensors[:1], tangents[:1]), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, function: Accelerated
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, None]]:
        # Nothing is kept: under vmap the gradient is the plain one as well.
        return (torch.vmap(function.plain, in_dims=(in_dims[0],))(x), x.new_empty(0)), (0, None)


class _Pullback(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, kept: Tensor, gradient: Tensor, function: Accelerated) -> Tensor:
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

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        kept: Tensor,
        gradient: Tensor,
        function: Accelerated,
    ) -> tuple[Tensor, int]:
        return torch.vmap(function.plain_pullback, in_dims=(in_dims[0], in_dims[2]))(x, gradient), 0
