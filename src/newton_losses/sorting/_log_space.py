"""Arithmetic with logarithms that the relaxations share, and the cross-entropy of a matrix given by them.

Row i of a relaxation is a distribution over items, given as log-weights w (log P up to a constant of
the row). The loss of a cell is the binary cross-entropy −Q log P − (1−Q) log(1−P), and everything is
written with the log-odds z = log P − log(1−P) = w_j − logsumexp_{k≠j} w_k, in which neither P = 0 nor
1 − P = 0 can occur. Log-weights come in float64, the rest is in the precision of the targets. What the rows
are a function of is not known here.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus as torch_softplus
from torch.nn.functional import threshold

# exp(−FAR) is 0 in every dtype, and sums of it stay finite: −inf would make NaN out of −inf − (−inf).
FAR = 1e30
# Terms of a sum that a compiler writes out, so that it joins what comes before it: a product stays on its own.
UNROLLED = 8
# Numbers up to which one product with a copy of its three parts is faster than three products.
FEW = 2**16


def softplus(u: Tensor) -> Tensor:
    """log(1 + eᵘ) with derivatives of any order.

    The default threshold of torch's function, 20, would be seen in float64; e⁵⁰ is far from overflow in
    float32. torch's own `logsigmoid` has the same values, and is several times slower on a CPU.
    """
    return torch_softplus(u, threshold=50.0)


def decay(u: Tensor) -> Tensor:
    """eᵘ for u ≤ 0, with a floor where it is far below the rounding of anything it is added to.

    Results that underflow take a CPU twenty to forty times as long as others. `threshold` is a clamp whose
    derivative is fast.
    """
    floor = -700.0 if u.dtype == torch.float64 else -80.0
    return threshold(u, floor, floor).exp()


def log_sum(paths: Tensor) -> Tensor:
    """log Σ eˣ over the first dimension, with derivatives of any order at equal and at distant terms.

    `torch.logaddexp` has ∞/∞ as its second derivative where one term vanishes beside the other. Here the
    maximum is a mere constant that drops out of all derivatives.
    """
    shift = paths.detach().amax(0)
    return shift + decay(paths - shift).sum(0).log()


def as_wide(scores: Tensor) -> Tensor:
    """`scores` in float64, in which log-weights are computed; in float32 on Apple's GPU, which has no float64."""
    return scores.to(torch.float32 if scores.device.type == "mps" else torch.float64)


@dataclass(frozen=True)
class LogOdds:
    """z = t − rest with t = w − max w (`relative`) and rest_j = logsumexp_{k≠j} t_k, each `(..., n)`.

    `is_top` is 1 at one largest entry of the row and 0 elsewhere, `top` its index, `others` eᵗ without it,
    and `below` the log of the distribution over the items other than the top one.
    """

    odds: Tensor
    rest: Tensor
    relative: Tensor
    others: Tensor
    below: Tensor
    is_top: Tensor
    top: Tensor


def log_odds(weights: Tensor, dtype: torch.dtype) -> LogOdds:
    """The log-odds of rows of log-weights, in `dtype`.

    Log-weights may be −10⁹ each and differ by 1, so their differences are taken in the precision they come
    in. The sum over the others is taken without subtracting from the full sum, except where what is
    subtracted is not the largest term and so cannot cancel.
    """
    top = weights.detach().max(-1, keepdim=True).indices
    from_top = weights - weights.gather(-1, top)
    # Products with a mask of 0 and 1 and not torch.where, which is ten times slower on a CPU.
    is_top = torch.zeros_like(from_top, dtype=dtype).scatter(-1, top, 1.0)
    is_other = 1 - is_top
    lowered = from_top - FAR * is_top
    second = lowered.detach().amax(-1, keepdim=True)
    from_second = (lowered - second).to(dtype)
    log_total = decay(from_second).sum(-1, keepdim=True).log()
    relative = from_top.to(dtype)
    others = decay(relative) * is_other
    without_top = second.to(dtype) + log_total
    rest = is_top * without_top + is_other * torch.log1p(others.sum(-1, keepdim=True) - others)
    return LogOdds(relative - rest, rest, relative, others, from_second - log_total, is_top, top)


def cross_entropy(weights: Tensor, target: Tensor, cells: Tensor) -> Tensor:
    """Σ_ij cells_ij · [−Q_ij log P_ij − (1−Q_ij) log(1−P_ij)], `(..., n, n)` → `(...)`.

    With `cells` = 1/n² this is the mean over the matrix.
    """
    odds = log_odds(weights, target.dtype).odds
    entropy = target * softplus(-odds) + (1 - target) * softplus(odds)
    return (cells * entropy).sum((-2, -1))


@dataclass(frozen=True)
class RowDerivatives:
    """Value `(N,)` and gradient `(N, n, n)` by the log-weights, and what the Hessian needs.

    `first` and `second` are the derivatives by z of each cell; `pull` is `first` spread over the other
    items of the row, Σ_{j≠k} first_j P_k/(1−P_j).
    """

    value: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor
    pull: Tensor
    rows: LogOdds


def row_derivatives(weights: Tensor, target: Tensor, cells: Tensor) -> RowDerivatives:
    """The derivatives of `cross_entropy` in closed form.

    ∂z_j/∂w_k = δ_jk − π^j_k with π^j = P/(1−P_j) off the entry j, so with φ the loss of a cell
    ∂ℓ/∂w_k = φ'_k − Σ_j φ'_j π^j_k.
    """
    rows = log_odds(weights, target.dtype)
    entropy = target * softplus(-rows.odds) + (1 - target) * softplus(rows.odds)
    # Cut where the result counts for nothing: numbers that underflow are slow on a CPU.
    likely, unlikely = rows.odds.clamp(-80, 80).sigmoid(), (-rows.odds).clamp(-80, 80).sigmoid()
    # Not likely − target: that difference loses the small gradients of a matrix that is nearly right.
    first = cells * ((1 - target) * likely - target * unlikely)
    is_other = 1 - rows.is_top
    # π^j_k = e^{t_k − rest_j}. For j at the top rest_j may be far below 0, for all others it is at least 0.
    by_top = (first * rows.is_top).sum(-1, keepdim=True)
    spread = first * is_other * decay(-rows.rest * is_other)
    pull = (rows.others + rows.is_top) * (spread.sum(-1, keepdim=True) - spread)
    pull = pull + is_other * by_top * decay(rows.below)
    value = (cells * entropy).sum((-2, -1))
    return RowDerivatives(value, first - pull, first, cells * likely * unlikely, pull, rows)


def row_hessian(derivatives: RowDerivatives, tangents: Tensor) -> Tensor:
    """Σ Tᵀ (∂²ℓ/∂w²) T over all rows of all samples, `(m, m)`.

    T are the derivatives of the log-weights, `(N, n, n, m)`. With U = π T this is
    Σ_j φ''_j (T_j−U_j)(T_j−U_j)ᵀ + φ'_j U_j U_jᵀ − pull_j T_j T_jᵀ: products of tall matrices, and no
    Hessian by the weights is stored.
    """
    odds = derivatives.rows
    # A constant of the row changes nothing; taking out the likeliest item's keeps the terms small.
    index = odds.top.unsqueeze(-1).expand(*odds.top.shape, tangents.shape[-1])
    tangents = tangents - tangents.gather(-2, index)
    other = 1 - torch.eye(tangents.shape[-2], dtype=tangents.dtype, device=tangents.device)
    shares = (odds.relative.unsqueeze(-2) - odds.rest.unsqueeze(-1)) * (1 - odds.is_top).unsqueeze(-1)
    shares = shares + odds.below.unsqueeze(-2) * odds.is_top.unsqueeze(-1)
    # The item j itself may exceed the rest of its row by any factor, so it is cut before it is masked.
    others = decay(shares.clamp(max=0)) * other
    if torch.compiler.is_compiling() and tangents.shape[-2] <= UNROLLED:
        mean = (others.unsqueeze(-1) * tangents.unsqueeze(-3)).sum(-2)
    else:
        mean = others @ tangents
    factors, weights = (tangents - mean, mean, tangents), (derivatives.second, derivatives.first, -derivatives.pull)
    if tangents.numel() <= FEW:
        return weighted_square(torch.cat(factors), torch.cat(weights))
    return sum(map(weighted_square, factors[1:], weights[1:]), weighted_square(factors[0], weights[0]))


def weighted_square(factors: Tensor, weights: Tensor) -> Tensor:
    """Σ weights · f fᵀ over all vectors f of `(..., m)`, `(m, m)`."""
    return (factors * weights.unsqueeze(-1)).flatten(0, -2).mT @ factors.flatten(0, -2)
