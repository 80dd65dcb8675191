"""The cross-entropy of a stochastic matrix given by logarithms, with its first and second derivatives.

Row i of a relaxation is a distribution over items, given as log-weights w (log P up to a constant of
the row). The loss of a cell is the binary cross-entropy −Q log P − (1−Q) log(1−P), and everything is
written with the log-odds z = log P − log(1−P) = w_j − logsumexp_{k≠j} w_k, in which neither P = 0 nor
1 − P = 0 can occur. What the rows are a function of is not known here.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._stable import FAR, softplus


def log_odds(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """z, `rest` and `relative`, each `(..., n)`, of rows of log-weights.

    With t = w − max w, `relative` is t, `rest` is logsumexp_{k≠j} t_k and z = t − rest. The sum over the
    others is taken without subtracting from the full sum, except where what is subtracted is not the
    largest term and so cannot cancel.
    """
    top = weights.detach().argmax(-1, keepdim=True)
    is_top = torch.arange(weights.shape[-1], device=weights.device) == top
    relative = weights - weights.gather(-1, top)
    others = torch.where(is_top, 0.0, relative.exp())
    without_top = torch.where(is_top, -FAR, relative).logsumexp(-1, keepdim=True)
    rest = torch.where(is_top, without_top, torch.log1p(others.sum(-1, keepdim=True) - others))
    return relative - rest, rest, relative


def cross_entropy(weights: Tensor, target: Tensor, cells: Tensor) -> Tensor:
    """Σ_ij cells_ij · [−Q_ij log P_ij − (1−Q_ij) log(1−P_ij)], `(..., n, n)` → `(...)`.

    With `cells` = 1/n² this is the mean over the matrix.
    """
    odds = log_odds(weights)[0]
    entropy = target * softplus(-odds) + (1 - target) * softplus(odds)
    return (cells * entropy).sum((-2, -1))


@dataclass(frozen=True)
class RowDerivatives:
    """Value `(N,)` and gradient `(N, n, n)` of the cross-entropy by the log-weights, and what the Hessian needs.

    `first` and `second` are the derivatives by z of each cell, `others[..., j, k]` is the distribution
    P_k / (1 − P_j) over the items other than j, `pull` its mean with the weights `first`.
    """

    value: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor
    others: Tensor
    pull: Tensor
    top: Tensor


def row_derivatives(weights: Tensor, target: Tensor, cells: Tensor) -> RowDerivatives:
    """The derivatives of `cross_entropy` in closed form.

    ∂z_j/∂w_k = δ_jk − π^j_k with π^j = P/(1−P_j) off the entry j, so with φ the loss of a cell
    ∂ℓ/∂w_k = φ'_k − Σ_j φ'_j π^j_k.
    """
    odds, rest, relative = log_odds(weights)
    entropy = target * softplus(-odds) + (1 - target) * softplus(odds)
    likely, unlikely = odds.sigmoid(), (-odds).sigmoid()
    # Not likely − target: that difference loses the small gradients of a matrix that is nearly right.
    first = cells * ((1 - target) * likely - target * unlikely)
    itself = torch.eye(weights.shape[-1], dtype=torch.bool, device=weights.device)
    others = torch.where(itself, -FAR, relative.unsqueeze(-2) - rest.unsqueeze(-1)).exp()
    pull = (first.unsqueeze(-1) * others).sum(-2)
    return RowDerivatives(
        value=(cells * entropy).sum((-2, -1)),
        gradient=first - pull,
        first=first,
        second=cells * likely * unlikely,
        others=others,
        pull=pull,
        top=weights.argmax(-1, keepdim=True),
    )


def finite_samples(gradient: Tensor) -> Tensor:
    """Which samples count in a curvature, `(N,)`: those whose gradient `(N, m)` is finite."""
    return gradient.isfinite().all(-1)


def row_hessian(rows: RowDerivatives, tangents: Tensor, finite: Tensor) -> Tensor:
    """Σ Tᵀ (∂²ℓ/∂w²) T over the rows of the finite samples, `(m, m)`.

    T are the derivatives of the log-weights, `(N, n, n, m)`. With U = π T this is
    Σ_j φ''_j (T_j−U_j)(T_j−U_j)ᵀ + φ'_j U_j U_jᵀ − pull_j T_j T_jᵀ: one product of tall matrices, and no
    Hessian by the weights is stored.
    """
    # A constant of the row changes nothing; taking out the likeliest item's keeps the terms small.
    index = rows.top.unsqueeze(-1).expand(*rows.top.shape, tangents.shape[-1])
    tangents = tangents - tangents.gather(-2, index)
    mean = rows.others @ tangents
    factors = torch.cat((tangents - mean, mean, tangents), -2)
    weights = torch.cat((rows.second, rows.first, -rows.pull), -1)
    factors = torch.where(finite[:, None, None, None], factors, 0.0).flatten(0, 2)
    weights = torch.where(finite[:, None, None], weights, 0.0).flatten()
    return (factors * weights.unsqueeze(-1)).mT @ factors
