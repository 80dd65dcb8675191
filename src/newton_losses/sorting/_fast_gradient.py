"""A cross-entropy whose gradient comes with its value, from the relaxation's own derivatives.

Automatic differentiation of a sorting network records some three hundred operators and runs as many back.
The closed form needs half of the work. It is a constant, though: whoever differentiates further, or forward,
gets the recorded operators instead, so that derivatives of all orders stay exact.
"""

from typing import Any

import torch
from torch import Tensor

from ._relaxation import Relaxation


class _CrossEntropy(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, target: Tensor, cells: Tensor, relaxation: Relaxation) -> Any:
        return relaxation.derivatives(scores, target, cells, False)[:2]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        scores, target, cells, ctx.relaxation = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(scores, target, cells, output[1])
        ctx.save_for_forward(scores, target, cells)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        scores, target, cells, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradient = _recorded_gradient(ctx.relaxation, scores, target, cells)
        return grads[0].unsqueeze(-1) * gradient, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        scores, target, cells = ctx.saved_tensors
        gradient = _recorded_gradient(ctx.relaxation, scores, target, cells)
        return (gradient * tangents[0]).sum(-1), None


def _recorded_gradient(relaxation: Relaxation, scores: Tensor, target: Tensor, cells: Tensor) -> Tensor:
    def total(scores: Tensor) -> Tensor:
        return relaxation.cross_entropies(scores, target, cells).sum()

    gradient: Tensor = torch.func.grad(total)(scores)
    return gradient


def sorting_cross_entropy(relaxation: Relaxation, scores: Tensor, target: Tensor, cells: Tensor) -> Tensor:
    """The cross-entropy `(N,)` of the relaxed order of `(N, n)` scores."""
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and scores.requires_grad):
        return relaxation.cross_entropies(scores, target, cells)
    value: Tensor = _CrossEntropy.apply(scores, target, cells, relaxation)[0]  # type: ignore[no-untyped-call]
    return value
