"""Layer 3: Newton losses for convex optimisation layers, whose parameters take the place of outputs.

An optimisation layer, as made by `cvxpylayers`, gets its parameters once per sample. That is where per-sample
gradients of weights appear, and so where a Newton loss can act on them. Nothing here needs cvxpy.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ._arguments import dense_tensor, whole_number
from .curvature import Damping, Reduction
from .errors import ArgumentError
from .inject import inject_fisher


def repeat_with_fisher(
    parameters: Iterable[Tensor], count: int, damping: Damping = "auto", *, reduction: Reduction = "mean"
) -> tuple[Tensor, ...]:
    """Each parameter `(...)` as `(count, ...)`, one copy per sample, with Newton gradients on the way back.

    All parameters together are one vector θ of size m, repeated to `(count, m)` and passed through
    `inject_fisher`. With gᵢ = ∂ℓᵢ/∂θ, sample i's own gradient, what arrives at θ is

        (1/N) Σᵢ (F + λI)⁻¹ gᵢ,   F = (1/N) Σᵢ gᵢgᵢᵀ

    for a loss that is a mean over the batch; for a sum (`reduction="sum"`) the first 1/N is left out. By default, with
    `damping="auto"`, it is (F/λ + I)⁻¹gᵢ/ρ instead, as in `inject_fisher`.

    >>> weight, bias = torch.ones(2, 3, requires_grad=True), torch.zeros(2, requires_grad=True)
    >>> weights, biases = repeat_with_fisher((weight, bias), count=5, damping=0.1)
    >>> weights.shape, biases.shape
    (torch.Size([5, 2, 3]), torch.Size([5, 2]))
    """
    if isinstance(parameters, Tensor):
        raise ArgumentError("repeat_with_fisher: parameters is one tensor. Pass a sequence of them: (weight, bias).")
    parameters = [dense_tensor(parameter, "the parameters", "repeat_with_fisher") for parameter in parameters or ()]
    if not parameters:
        raise ArgumentError(
            "repeat_with_fisher: there are no parameters to repeat. Pass a sequence of at least one tensor."
        )
    count = whole_number(count, "count, the number of samples,", "repeat_with_fisher", least=1)
    together = torch.cat([parameter.flatten() for parameter in parameters])
    repeated = inject_fisher(together.expand(count, -1), damping, reduction=reduction)
    parts = torch.split(repeated, [parameter.numel() for parameter in parameters], dim=1)
    return tuple(part.reshape(count, *parameter.shape) for part, parameter in zip(parts, parameters, strict=True))
