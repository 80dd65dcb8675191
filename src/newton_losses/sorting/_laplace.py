"""`LaplaceSort`: ranks and top-k weights from sums of Laplace distributions, in O(n log n) time and O(n) memory.

The rank of an item is how many others are expected below it when each difference of scores carries Laplace noise.
A sum of n exponentials e^{−|x − xₖ|} at n sorted points is a linear recurrence, from left to right and back, so that
nothing of size n² is needed. The idea of summing Laplace distributions is LapSum's (Struski et al., 2025).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._arguments import positive_number
from ._log_space import FAR, as_wide
from ._relaxation import Relaxation, first_places, places

# Recurrences that are longer are computed in blocks of at least 128.
SHORT = 4096


class LaplaceSort(Relaxation):
    """A relaxation for long lists: O(n log n) time and O(n) memory, up to millions of items.

    With F the Laplace distribution, F(x) = ½eˣ for x ≤ 0 and 1 − ½e⁻ˣ for x ≥ 0, and the temperature τ in the unit of
    the scores:

    - ranks: r_j = Σ_{k≠j} F((s_j − s_k)/τ), how many items are expected below item j;
    - top k: p_j = F((s_j − b)/τ) with the threshold b at which Σ_j p_j = k, in closed form;
    - sorted: the threshold below which i + ½ items are expected, for rank i;
    - the matrix, where one is asked for: P_ij is the difference of two neighbouring top-k weights. Rows and columns
      sum to 1; it takes n² cells as that of other relaxations.

    All of them have two continuous derivatives but for ties, where the second one jumps.

    >>> LaplaceSort(temperature=1e-3).matrix(torch.tensor([3.0, 1.0, 2.0])).round()
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [1., 0., 0.]])
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = positive_number(temperature, "temperature", "LaplaceSort")

    def expected_ranks(self, scores: Tensor, descending: bool, mask: Tensor | None) -> Tensor:
        points = _Sorted(scores, mask, self.temperature)
        ranks = points.to_items(points.ranks())
        if not descending:
            return ranks.to(scores.dtype)
        return (points.count.unsqueeze(-1) - 1 - ranks).to(scores.dtype)

    def top_weights(self, scores: Tensor, k: int, largest: bool, mask: Tensor | None) -> Tensor:
        return self.log_top_weights(scores, k, largest, mask).exp()

    def log_top_weights(self, scores: Tensor, k: int, largest: bool, mask: Tensor | None) -> Tensor:
        """log of how much of each item is among the k largest, `(..., n)`: finite however small that is."""
        points = _Sorted(-scores if largest else scores, mask, self.temperature)
        wanted = torch.full_like(points.count, k).unsqueeze(-1)
        above = (points.thresholds(wanted) - points.wide) / self.temperature
        return torch.where(wanted < points.count.unsqueeze(-1), log_laplace(above), 0.0).to(scores.dtype)

    def log_span_weights(
        self, scores: Tensor, lowest: Tensor, highest: Tensor, descending: bool, mask: Tensor | None
    ) -> Tensor:
        """log of how likely each item's rank is from `lowest` to `highest`, all `(..., n)`."""
        points = _Sorted(-scores if descending else scores, mask, self.temperature)
        low, high = points.bounds(lowest), points.bounds(highest + 1)
        return log_difference(low - points.wide, high - points.wide, self.temperature).to(scores.dtype)

    def sorted_scores(self, scores: Tensor, descending: bool, mask: Tensor | None) -> Tensor:
        points = _Sorted(-scores if descending else scores, mask, self.temperature)
        half = places(scores.shape[-1], points.wide).expand_as(points.wide) + 0.5
        # Ranks that do not exist get some threshold that does: nobody looks at it.
        half = torch.minimum(half, (points.count.unsqueeze(-1) - 0.5).clamp(min=0.5))
        ordered = points.thresholds(half)
        return (-ordered if descending else ordered).to(scores.dtype)

    def log_weights(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        points = _Sorted(scores, mask, self.temperature)
        rank = places(scores.shape[-1], points.wide).expand_as(points.wide)
        low, high = points.bounds(rank).unsqueeze(-1), points.bounds(rank + 1).unsqueeze(-1)
        item = points.wide.unsqueeze(-2)
        return log_difference(low - item, high - item, self.temperature)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"


class _Sorted:
    """Lists in ascending order, with the sums of exponentials to the left and to the right of each place."""

    def __init__(self, scores: Tensor, mask: Tensor | None, temperature: float) -> None:
        wide = as_wide(scores)
        exact = wide.detach()
        order = (exact if mask is None else torch.where(mask, exact, torch.inf)).argsort(dim=-1, stable=True)
        self.wide, self.temperature, self.order = wide, temperature, order
        self.ascending = wide.gather(-1, order)
        exists = first_places(mask)
        self.exists = torch.ones_like(exact) if exists is None else exists.to(exact.dtype)
        self.count = self.exists.sum(-1)
        self.gaps = self.ascending.diff(dim=-1) / temperature
        decays = pad(torch.exp(-self.gaps.clamp(min=0, max=700)), (1, 0))
        # Inclusive of the place itself: Σ_{k≤j} e^{−(x_j − x_k)/τ}, and the same to the right.
        self.left = decayed_sums(self.exists, decays)
        self.right = decayed_sums(self.exists.flip(-1), pad(decays[..., 1:].flip(-1), (1, 0))).flip(-1)
        self.left_of = decays * pad(self.left[..., :-1], (1, 0))
        self.right_of = pad(decays[..., 1:] * self.right[..., 1:], (0, 1))

    def ranks(self) -> Tensor:
        """Σ_{k≠j} F((x_j − x_k)/τ) at each sorted place."""
        return places(self.wide.shape[-1], self.wide) + (self.right_of - self.left_of) / 2

    def to_items(self, sorted_values: Tensor) -> Tensor:
        return sorted_values.gather(-1, self.order.argsort(-1))

    def bounds(self, k: Tensor) -> Tensor:
        """`thresholds`, −10³⁰ for k ≤ 0 and 10³⁰ for k ≥ m."""
        k = k.to(self.wide.dtype)
        count = self.count.unsqueeze(-1)
        inside = (k > 0) & (k < count)
        found = self.thresholds(torch.where(inside, k, (count / 2).clamp(min=0.5)))
        return torch.where(inside, found, torch.where(k <= 0, -FAR, FAR))

    def thresholds(self, k: Tensor) -> Tensor:
        """The b at which k items are expected below, Σ_j F((b − x_j)/τ) = k, for 0 < k < m: `(..., K)` both.

        With u = (b − x_i)/τ between the places i and i+1, g their gap, A what decays from the left at i and R from
        the right at i+1, the sum is i + 1 − ½A e⁻ᵘ + ½R e^{u−g}. It is k for e⁻ᵘ and e^{u−g} that solve a quadratic
        equation with the integer or half-integer c = i + 1 − k, whose larger root does not cancel.
        """
        k = k.to(self.wide.dtype)
        below = (self.ranks() + 0.5).detach()
        key = torch.where(self.exists > 0, below, torch.inf)
        # Rounding may leave equal neighbours in the wrong order by the last digit.
        key = key.cummax(-1).values.contiguous()
        last = (self.count.unsqueeze(-1) - 1).clamp(min=0).to(torch.int64)
        place = torch.minimum(torch.searchsorted(key, k.contiguous(), right=True) - 1, last)
        index, following = place.clamp(min=0), torch.minimum((place + 1).clamp(min=0), last)
        x, y = self.ascending.gather(-1, index), self.ascending.gather(-1, following)
        left, right = self.left.gather(-1, index).clamp(min=1), self.right.gather(-1, following).clamp(min=1)
        gap = ((y - x) / self.temperature).clamp(min=0)
        c = index + 1 - k
        root = torch.sqrt(torch.where(c == 0, 1.0, c.square() + left * right * torch.exp(-gap.clamp(max=700))))
        from_left = left.log() - torch.log(torch.where(c > 0, c + root, 1.0))
        from_right = gap - right.log() + torch.log(torch.where(c < 0, root - c, 1.0))
        middle = (gap + left.log() - right.log()) / 2
        inner = x + self.temperature * torch.where(c > 0, from_left, torch.where(c < 0, from_right, middle))
        # Left of all items the sum is ½R e^{(b − x_0)/τ}, right of all m − ½A e^{−(b − x)/τ}.
        first = self.ascending[..., :1] + self.temperature * (2 * k / self.right[..., :1].clamp(min=1)).log()
        rest = (self.count.unsqueeze(-1) - k).clamp(min=0.25)
        beyond = x + self.temperature * (left / (2 * rest)).log()
        return torch.where(place < 0, first, torch.where(place == last, beyond, inner))


def log_laplace(x: Tensor) -> Tensor:
    """log F(x), with derivatives that are finite on both sides."""
    return torch.where(x < 0, x.clamp(max=0) - _LOG_2, torch.log1p(-torch.exp(-x.clamp(min=0, max=700)) / 2))


def log_difference(low: Tensor, high: Tensor, temperature: float) -> Tensor:
    """log(F(high/τ) − F(low/τ)) for low < high, whichever of the two tails they are in."""
    low, high = low / temperature, high / temperature
    width = (high - low).clamp(min=1e-300)
    # log(1 − e^{−width}) in the form that keeps digits on its side.
    narrow = torch.log(-torch.expm1(-width.clamp(max=1)))
    wide = torch.log1p(-torch.exp(-width.clamp(min=1, max=700)))
    share = torch.where(width < 1, narrow, wide)
    below = high.clamp(max=0) - _LOG_2 + share
    above = -low.clamp(min=0) - _LOG_2 + share
    upper, lower = high.clamp(min=0, max=700), low.clamp(min=-700, max=0)
    across = -(torch.expm1(-upper) + torch.expm1(lower)) / 2
    is_across = (low < 0) & (high > 0)
    middle = torch.log(torch.where(is_across, across.clamp(min=1e-300), 1.0))
    return torch.where(is_across, middle, torch.where(high <= 0, below, above)).clamp(min=-FAR)


_LOG_2 = 0.6931471805599453


def decayed_sums(weights: Tensor, decays: Tensor) -> Tensor:
    """y_j = w_j + d_j y_{j−1} along the last dimension, with derivatives of any order and O(n) memory.

    >>> decayed_sums(torch.ones(3), torch.tensor([0.0, 0.5, 0.5]))
    tensor([1.0000, 1.5000, 1.7500])
    """
    sums: Tensor = _DecayedSums.apply(weights, decays)  # type: ignore[no-untyped-call]
    return sums


class _DecayedSums(torch.autograd.Function):
    """The recurrence is linear in the weights; its adjoint is the same recurrence from right to left."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weights: Tensor, decays: Tensor) -> Tensor:
        return _scan(weights, decays)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1], output)
        ctx.save_for_forward(inputs[1], output)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        decays, sums = ctx.saved_tensors
        back = pad(decays[..., 1:], (0, 1)).flip(-1)
        # From the right: a_j = g_j + d_{j+1} a_{j+1}.
        adjoint = decayed_sums(slopes[0].flip(-1), pad(back[..., 1:], (1, 0))).flip(-1)
        return adjoint, adjoint * pad(sums[..., :-1], (1, 0))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        decays, sums = ctx.saved_tensors
        moved = torch.zeros_like(sums) if tangents[0] is None else tangents[0]
        if tangents[1] is not None:
            moved = moved + tangents[1] * pad(sums[..., :-1], (1, 0))
        return decayed_sums(moved, decays)


def _scan(weights: Tensor, decays: Tensor) -> Tensor:
    """The recurrence: by doubling where it is short, else blocks side by side, and what one hands to the next."""
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
