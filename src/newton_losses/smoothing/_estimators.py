"""The estimators of the smoothing lemma, as pure functions of values and scores. No noise is drawn here.

For a density exp(−ν(ε)) and draws s = 1…S, with weights w_s = ℓ(y+ε_s) − baseline_s:

    ∇ℓ_ε(y)  ≈ (1/S) Σ_s w_s ∇ν(ε_s)
    ∇²ℓ_ε(y) ≈ (1/S) Σ_s w_s (∇ν(ε_s) ∇ν(ε_s)ᵀ − ∇²ν(ε_s))

Both factors beside w_s have mean zero, so any baseline that is independent of ε_s leaves them unbiased.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

VarianceReduction = Literal["none", "value", "leave_one_out"]
VARIANCE_REDUCTIONS: tuple[str, ...] = get_args(VarianceReduction)


def subtract_baseline(values: Tensor, centre: Tensor | None, reduction: str, groups: int) -> Tensor:
    """The weights w_s of values `(S, N, ...)`; `centre` is the value at y itself, `(N, ...)`, if it is used.

    "leave_one_out" subtracts the mean of the draws in the *other* groups: draws of the same group (an
    antithetic pair, a quasi-random set) depend on each other and would bias the estimate.
    """
    if reduction == "none":
        return values
    if reduction == "value":
        assert centre is not None
        return values - centre
    grouped = values.reshape(groups, values.shape[0] // groups, *values.shape[1:])
    own = grouped.sum(1, keepdim=True)
    others = (own.sum(0, keepdim=True) - own) / (values.shape[0] - grouped.shape[1])
    return (grouped - others).reshape(values.shape)


def gradient(weights: Tensor, first: Tensor) -> Tensor:
    """Weights `(S, N)` and ∇ν `(S, N, m)` to the gradient of each sample, `(N, m)`."""
    return torch.einsum("sn,snm->nm", weights, first) / weights.shape[0]


def jacobian(weights: Tensor, first: Tensor) -> Tensor:
    """Weights `(S, N, k)` and ∇ν `(S, N, m)` to the Jacobian of each sample, `(N, k, m)`."""
    return torch.einsum("snk,snm->nkm", weights, first) / weights.shape[0]


def mean_hessian(weights: Tensor, first: Tensor, second: Tensor, keep: Tensor) -> Tensor:
    """The mean Hessian of the kept samples, `(m, m)`: one matrix product, no Hessian of a single sample."""
    weights = torch.where(keep, weights, 0.0)
    outer = (weights.unsqueeze(-1) * first).flatten(0, 1).mT @ first.flatten(0, 1)
    hessian = outer - torch.diag(torch.einsum("sn,snm->m", weights, second))
    return symmetric(hessian) / (weights.shape[0] * kept(keep))


def mean_jacobian(weights: Tensor, first: Tensor, keep: Tensor) -> Tensor:
    """The mean Jacobian of the kept samples, `(k, m)`, from weights `(S, N, k)`: one matrix product."""
    weights = torch.where(keep.unsqueeze(-1), weights, 0.0)
    return weights.flatten(0, 1).mT @ first.flatten(0, 1) / (weights.shape[0] * kept(keep))


def finite(value: Tensor, gradients: Tensor) -> Tensor:
    """Which samples `(N,)` may enter the curvature: one bad sample must not spoil that of the batch."""
    return value.isfinite() & gradients.isfinite().all(-1)


def kept(keep: Tensor) -> Tensor:
    """How many samples are kept, as a tensor, so that nothing waits for the device; at least 1."""
    return keep.sum().clamp(min=1)


def symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2
