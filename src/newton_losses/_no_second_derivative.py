"""The end of differentiating: a gradient that is right, and has no derivative of its own in the graph."""

from typing import Any

import torch
from torch import Tensor

from .errors import DerivativeError


class NoSecondDerivative(torch.autograd.Function):
    """The identity on a gradient, which raises with a `reason` when it is differentiated by what it depends on.

    Without it a second derivative would be silently wrong.
    """

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
