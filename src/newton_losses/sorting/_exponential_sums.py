"""Sums of exponentials over sorted points, Σ_{k<j} w_k e^{−(x_j − x_k)/τ}, for all j at once in O(n) time and memory.

Everything that `LaplaceSort` computes is made of such sums, and so are their own derivatives: of any order, by one
more sum each. The sort that comes before them is here too, since it is what takes the time of a long list.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn.functional import pad

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
    if scores.device.type != "cpu" or sees_operators() or not scores.numel():
        return False
    if unpack_dual(scores).tangent is not None:  # type: ignore[no-untyped-call]
        return False
    least, most = torch.aminmax(scores.detach(), dim=-1)
    return float((most - least).max()) <= NARROW * temperature


def sums_before(weights: Tensor, ascending: Tensor, temperature: float, narrow: bool = False) -> Tensor:
    """Σ_{k<j} w_k e^{−(x_j − x_k)/τ} along the last dimension, with derivatives of any order.

    >>> sums_before(torch.ones(3), torch.tensor([0.0, 1.0, 2.0]), temperature=1.0)
    tensor([0.0000, 0.3679, 0.5032])
    """
    sums: Tensor = _Sums.apply(weights, ascending, temperature, narrow, False)  # type: ignore[no-untyped-call]
    return sums


def sums_after(weights: Tensor, ascending: Tensor, temperature: float, narrow: bool = False) -> Tensor:
    """Σ_{k>j} w_k e^{−(x_k − x_j)/τ}, the same from the right."""
    sums: Tensor = _Sums.apply(weights, ascending, temperature, narrow, True)  # type: ignore[no-untyped-call]
    return sums


def narrow_ranks(scores: Tensor, order: Tensor, exists: Tensor | None, temperature: float) -> Tensor:
    """The Laplace ranks of `(..., n)` items in float64, for narrow lists; `order` and `exists` are by sorted place."""
    ranks: Tensor = _NarrowRanks.apply(scores, order, exists, temperature)  # type: ignore[no-untyped-call]
    return ranks


class _NarrowRanks(torch.autograd.Function):
    """i + ½ Σ_{k>i} e^{−(x_k − x_i)/τ} − ½ Σ_{k<i} e^{−(x_i − x_k)/τ} at place i, with the gradient in closed form.

    The Jacobian is symmetric, (diag(Kw) − K diag(w))/τ with K_jk = ½e^{−|x_j − x_k|/τ} for j ≠ k and w = `exists`.
    Recording each operator would take a short list three times as long. Whoever differentiates further gets the
    recorded sums instead.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, order: Tensor, exists: Tensor | None, temperature: float) -> Tensor:
        growth = _growth(scores.gather(-1, order).double(), temperature)
        fall = growth.reciprocal()
        weights: Tensor | float = 1.0 if exists is None else exists.double()
        before, after = _both_sides(weights, growth, fall)
        ctx.save_for_backward(scores, order, growth, fall, before + after)
        ctx.weights, ctx.temperature = weights, temperature
        ranks = after.sub_(before).mul_(0.5).add_(torch.arange(scores.shape[-1]))
        return torch.empty_like(ranks).scatter_(-1, order, ranks)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        scores, order, growth, fall, both = ctx.saved_tensors
        if torch.is_grad_enabled():
            ascending = scores.double().gather(-1, order)
            weights = torch.ones_like(growth) * ctx.weights
            after, before = (side(weights, ascending, ctx.temperature, True) for side in (sums_after, sums_before))
            ranks = torch.zeros_like(growth).scatter(-1, order, (after - before) / 2)
            return *torch.autograd.grad(ranks, scores, slopes[0], create_graph=True), None, None, None
        slope = slopes[0].gather(-1, order)
        before, after = _both_sides(slope, growth, fall)
        by_place = slope.mul_(both).sub_(before.add_(after).mul_(ctx.weights)).mul_(0.5 / ctx.temperature)
        return torch.empty_like(by_place).scatter_(-1, order, by_place).to(scores.dtype), None, None, None


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


def _growth(ascending: Tensor, temperature: float) -> Tensor:
    """e^{x/τ}, with 0 in the middle of the list, so that nothing overflows."""
    return ((ascending - (ascending[..., :1] + ascending[..., -1:]) / 2) / temperature).exp_()


def _by_cumulative_sum(weights: Tensor, ascending: Tensor, temperature: float, after: bool) -> Tensor:
    """e^{−x_j} Σ_{k<j} w_k e^{x_k}: of terms that grow with k the last ones count, so that nothing cancels."""
    growth = _growth(ascending, temperature)
    return _both_sides(weights, growth, growth.reciprocal())[int(after)]


def _both_sides(weights: Tensor | float, growth: Tensor, fall: Tensor) -> tuple[Tensor, Tensor]:
    """The sums before and after each place."""
    before, after = torch.zeros_like(growth), torch.zeros_like(growth)
    torch.cumsum((weights * growth)[..., :-1], -1, out=before[..., 1:])
    after[..., :-1] = (weights * fall)[..., 1:].flip(-1).cumsum(-1).flip(-1)
    return before.mul_(fall), after.mul_(growth)


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
