"""The autograd function that puts estimated derivatives into a graph, once. No estimator lives here.

Estimated derivatives have no derivatives of their own in the graph. A second derivative through them
would be silently wrong, so it raises, in reverse and in forward mode.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._no_second_derivative import NoSecondDerivative
from ..errors import DerivativeError

Evaluate = Callable[[Tensor], tuple[Tensor, ...]]
PullBack = Callable[..., Tensor]


class _Estimated(torch.autograd.Function):
    """y ↦ the first of `evaluate(y)`; the others are what `pull_back` needs in the backward."""

    @staticmethod
    def forward(y: Tensor, evaluate: Evaluate, pull_back: PullBack, reason: str) -> tuple[Tensor, ...]:
        return evaluate(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        y, _, ctx.pull_back, ctx.reason = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(y, *output[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if gradients[0] is None:
            return None, None, None, None
        y, *saved = ctx.saved_tensors
        pulled = ctx.pull_back(gradients[0], *saved).reshape(y.shape).to(y.dtype)
        once = NoSecondDerivative.apply(pulled, y, ctx.reason)  # type: ignore[no-untyped-call]
        return once, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise DerivativeError(ctx.reason)

    @staticmethod
    def vmap(info: Any, in_dims: Any, y: Tensor, evaluate: Evaluate, pull_back: PullBack, reason: str) -> Any:
        raise DerivativeError(
            f"A black box cannot be mapped by torch.vmap: call it with the whole batch. If this came from a "
            f"second derivative (torch.func.hessian maps), there is none. {reason}"
        )


def estimated(y: Tensor, evaluate: Evaluate, pull_back: PullBack, reason: str) -> Tensor:
    """The first tensor of `evaluate(y)`, with `pull_back(gradient, *the others)` as its backward.

    `reason` is the message of the error that a second derivative raises.
    """
    outputs: tuple[Tensor, ...] = _Estimated.apply(y, evaluate, pull_back, reason)  # type: ignore[no-untyped-call]
    return outputs[0]
