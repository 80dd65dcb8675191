"""Sums of exponentials over sorted points, Σ_{k<j} w_k e^{−(x_j − x_k)/τ}, for all j at once in O(n) time and memory.

Everything that `LaplaceSort` computes is made of such sums, and so are their own derivatives: of any order, by one
more sum each. The sort that comes before them is here too, since it is what takes the time of a long list.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .._by_hand import is_dual
from .._tracing import sees_operators

# Recurrences that are longer are computed in blocks of at least 128.
SHORT = 4096
# Widest list, in units of the temperature, whose exponentials e^{±x/τ} around its middle can all be stored.
NARROW = 1000.0
# From this length on, torch sorts whole numbers by their digits.
LONG_SORT = 32768


def ascending_order(scores: Tensor) -> Tensor:
    """The item numbers of `(..., n)` scores in ascending order; which of two equal ones comes first has no meaning."""
    if scores.device.type != "cpu" or scores.shape[-1] < LONG_SORT or sees_operators():
        return scores.argsort(dim=-1)
    # Reversed below zero, the bits of floating-point numbers are in the order of the numbers. torch sorts long rows of
    # whole numbers by their digits, five to ten times as fast as by comparing.
    whole, largest = (torch.int64, 2**63 - 1) if scores.dtype == torch.float64 else (torch.int32, 2**31 - 1)
    bits = scores.contiguous().view(whole)
    keys = torch.where(bits < 0, bits ^ largest, bits).reshape(-1, scores.shape[-1])
    return torch.stack([row.sort().indices for row in keys.unbind(0)]).reshape(scores.shape)


def is_narrow(scores: Tensor, temperature: float) -> bool:
    """Whether one cumulative sum will do. Looked at on the host only: elsewhere it would wait for the device."""
    if scores.device.type != "cpu" or sees_operators() or not scores.numel() or is_dual(scores):
        return False
    x = scores.numpy(force=True)
    with np.errstate(all="ignore"):  # infinities are not narrow
        return bool((x.max(-1) - x.min(-1)).max() <= NARROW * temperature)


def sums_before(weights: Tensor, ascending: Tensor, temperature: float, narrow: bool = False) -> Tensor:
    """Σ_{k<j} w_k e^{−(x_j − x_k)/τ} along the last dimension, with derivatives of any order.

    >>> sums_before(torch.ones(3), torch.tensor([0.0, 1.0, 2.0]), temperature=1.0)
    tensor([0.0000, 0.3679, 0.5032])
    """
    return _sums(weights, ascending, temperature, narrow, False)


def sums_after(weights: Tensor, ascending: Tensor, temperature: float, narrow: bool = False) -> Tensor:
    """Σ_{k>j} w_k e^{−(x_k − x_j)/τ}, the same from the right."""
    return _sums(weights, ascending, temperature, narrow, True)


def _sums(*arguments: Any) -> Tensor:
    # A compiler traces no function with a forward mode of its own; it differentiates the operators themselves.
    sums: Tensor = (_Sums.forward if torch.compiler.is_compiling() else _Sums.apply)(*arguments)
    return sums


def narrow_ranks(
    scores: Tensor, mask: Tensor | None, temperature: float, descending: bool
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The Laplace ranks `(..., n)` of narrow lists on the CPU, and their pullback.

    At place i: i + ½ Σ_{k>i} e^{−(x_k − x_i)/τ} − ½ Σ_{k<i} e^{−(x_i − x_k)/τ}. The Jacobian is symmetric,
    (diag(Kw) − K diag(w))/τ with K_jk = ½e^{−|x_j − x_k|/τ} for j ≠ k, and w 1 for items that exist. In NumPy on the
    memory of the tensors: of a short list, most of the time goes into starting operations, and NumPy's start faster.
    """
    x = scores.numpy(force=True).reshape(-1, scores.shape[-1])
    place, count = np.arange(x.shape[-1]), x.shape[-1]
    weights: Any = None
    if mask is not None:
        exists = mask.numpy().reshape(x.shape)
        count = exists.sum(-1, keepdims=True)
        weights = (place < count).astype(np.float64)
        order = np.where(exists, x, np.inf).argsort(-1)
    elif x.shape[-1] < LONG_SORT:
        order = x.argsort(-1)
    else:
        order = ascending_order(scores.detach()).numpy().reshape(x.shape)
    index = order if len(x) == 1 else order + np.arange(len(x))[:, None] * x.shape[-1]
    ascending = x.take(index).astype(np.float64)
    # e^{x/τ} with 0 in the middle of the list, so that nothing overflows; and the same from the right.
    growth = np.exp(_both_ways((ascending - (ascending[:, :1] + ascending[:, -1:]) / 2) / temperature, -1))
    before, after = _sums_of_both_sides(growth if weights is None else growth * _both_ways(weights), growth)

    def to_items(by_place: Any) -> Tensor:
        by_item = np.empty(x.size, x.dtype)
        by_item[index] = by_place
        return torch.from_numpy(by_item.reshape(scores.shape))

    def pullback(slopes: Tensor) -> Tensor:
        slope = slopes.numpy(force=True).take(index).astype(np.float64)
        left, right = _sums_of_both_sides(growth * _both_ways(slope), growth)
        by_place = slope * (before + after) - (left + right if weights is None else (left + right) * weights)
        return to_items(by_place * ((-0.5 if descending else 0.5) / temperature))

    ranks = place + (after - before) / 2
    return to_items(count - 1 - ranks if descending else ranks), pullback


def _both_ways(values: Any, sign: int = 1) -> Any:
    """Numbers `(N, n)` from left to right, and from right to left times the sign, `(2, N, n)`."""
    both = np.empty((2, *values.shape))
    both[0] = values
    np.multiply(values[:, ::-1], sign, out=both[1])
    return both


def _sums_of_both_sides(terms: Any, growth: Any) -> tuple[Any, Any]:
    """Σ terms/growth_j over the places before j, and over those after it: of growing terms, so that nothing cancels."""
    sums = np.zeros_like(growth)
    terms[..., :-1].cumsum(-1, out=sums[..., 1:])
    sums /= growth
    return sums[0], sums[1][:, ::-1]


class _Sums(torch.autograd.Function):
    """Linear in the weights, with the sum from the other side as adjoint; with E_jk the exponentials,

        ẏ_j = Σ_{k<j} E_jk (ẇ_k + w_k (ẋ_k − ẋ_j)/τ)

    A place's own weight is in no sum, so that nothing large is subtracted from itself on the way back.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(weights: Tensor, ascending: Tensor, temperature: float, narrow: bool, after: bool) -> Tensor:
        if narrow:
            return _by_cumulative_sum(weights, ascending, temperature, after)
        gaps = ascending.diff(dim=-1) / temperature
        decays = pad(torch.exp(-gaps.clamp(min=0, max=700)), (1, 0))
        if not after:
            return decays * pad(_scan(weights, decays)[..., :-1], (1, 0))
        back = pad(decays[..., 1:].flip(-1), (1, 0))
        return pad(decays[..., 1:] * _scan(weights.flip(-1), back).flip(-1)[..., 1:], (0, 1))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        weights, ascending, *ctx.how = inputs
        ctx.save_for_backward(weights, ascending, output)
        ctx.save_for_forward(weights, ascending, output)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        weights, ascending, sums = ctx.saved_tensors
        temperature, narrow, after = ctx.how
        adjoint = (sums_before if after else sums_after)(slopes[0], ascending, temperature, narrow)
        by_point = (weights * adjoint - sums * slopes[0]) / (-temperature if after else temperature)
        return adjoint, by_point, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        weights, ascending, sums = ctx.saved_tensors
        temperature, narrow, after = ctx.how
        by_weight, by_point = tangents[:2]
        moved = torch.zeros_like(sums) if by_weight is None else by_weight
        if by_point is None:
            by_point = torch.zeros_like(sums)
        speed = by_point / (-temperature if after else temperature)
        found = (sums_after if after else sums_before)(moved + weights * speed, ascending, temperature, narrow)
        return found - sums * speed


def _by_cumulative_sum(weights: Tensor, ascending: Tensor, temperature: float, after: bool) -> Tensor:
    """e^{−x_j} Σ_{k<j} w_k e^{x_k}: of terms that grow with k the last ones count, so that nothing cancels."""
    middle = (ascending[..., :1] + ascending[..., -1:]) / 2
    growth = ((ascending - middle) / temperature).exp()
    if not after:
        return pad((weights * growth)[..., :-1].cumsum(-1), (1, 0)) / growth
    return pad((weights / growth)[..., 1:].flip(-1).cumsum(-1).flip(-1), (0, 1)) * growth


def _scan(weights: Tensor, decays: Tensor) -> Tensor:
    """y_j = w_j + d_j y_{j−1}: by doubling where it is short, else blocks side by side, and what one hands to the next.

    >>> _scan(torch.ones(3), torch.tensor([0.0, 0.5, 0.5]))
    tensor([1.0000, 1.5000, 1.7500])
    """
    n = weights.shape[-1]
    if n <= SHORT:
        # A copy even where there is nothing to add: what came in must not go out.
        weights, step = weights.clone(), 1
        while step < n:
            weights = weights + decays * pad(weights[..., :-step], (step, 0))
            decays = decays * pad(decays[..., :-step], (step, 0))
            step *= 2
        return weights
    size = max(128, int(n**0.5))
    missing = -n % size
    shape = (-1, size)
    # Places of a block first, so that each step of the loop works on contiguous memory.
    inner, falls = (
        pad(x, (0, missing)).reshape(*x.shape[:-1], *shape).movedim(-1, 0).contiguous() for x in (weights, decays)
    )
    steps = [inner[0]]
    for place in range(1, size):
        steps.append(torch.addcmul(inner[place], falls[place], steps[-1]))
    sums, reach = torch.stack(steps), falls.cumprod(0)
    ends = _scan(sums[-1], reach[-1])
    sums = torch.addcmul(sums, reach, pad(ends[..., :-1], (1, 0)))
    return sums.movedim(0, -1).flatten(-2)[..., :n]
