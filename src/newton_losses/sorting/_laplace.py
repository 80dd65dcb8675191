"""`LaplaceSort`: ranks and top-k weights from sums of Laplace distributions, in O(n log n) time and O(n) memory.

The rank of an item is how many others are expected below it when each difference of scores carries Laplace noise.
A sum of n exponentials e^{−|x − xₖ|} at n sorted points is one pass from left to right and one back
(`_exponential_sums.py`), so that nothing of size n² is needed. The idea of summing Laplace distributions is LapSum's
(Struski et al., 2025). The curvature of losses of these is in `_laplace_curvature.py`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .._arguments import positive_number
from .._by_hand import by_hand
from ._exponential_sums import ascending_order, is_narrow, narrow_ranks, sums_after, sums_before
from ._lists import filled
from ._log_space import FAR, as_wide
from ._relaxation import Relaxation, first_places, places

# Thresholds per list up to which their gradient is computed from all pairs of them and items, and such pairs in all.
FEW, CELLS = 8, 2**15


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
        def plain(scores: Tensor) -> Tensor:
            points = SortedLists(scores, mask, self.temperature)
            ranks = points.to_items(points.ranks())
            return (points.count.unsqueeze(-1) - 1 - ranks if descending else ranks).to(scores.dtype)

        if not is_narrow(scores, self.temperature):
            return plain(scores)
        return by_hand(scores, plain, lambda scores: narrow_ranks(scores, mask, self.temperature, descending))

    def top_weights(self, scores: Tensor, k: int, largest: bool, mask: Tensor | None) -> Tensor:
        points = SortedLists(-scores if largest else scores, mask, self.temperature)
        wanted = torch.full_like(points.count, k).unsqueeze(-1)
        return self._log_below(points, points.wide, wanted).exp().to(scores.dtype)

    def log_top_weights_of(self, scores: Tensor, item: Tensor, k: Sequence[int], mask: Tensor | None) -> Tensor:
        """log of how much of one item `(..., 1)` per list is among the k largest, for K values of k, `(..., K)`.

        It is finite however small that is.
        """
        points = SortedLists(-scores, mask, self.temperature)
        wanted = torch.tensor(k, dtype=points.wide.dtype, device=scores.device).expand(*item.shape[:-1], -1)
        return self._log_below(points, points.wide.gather(-1, item), wanted).to(scores.dtype)

    def _log_below(self, points: "SortedLists", x: Tensor, k: Tensor) -> Tensor:
        """log F of how far the threshold of k items is above x; 0 in lists of no more than k."""
        above = (points.thresholds(k) - x) / self.temperature
        return torch.where(k < points.count.unsqueeze(-1), log_laplace(above), 0.0)

    def log_span_weights(
        self, scores: Tensor, lowest: Tensor, highest: Tensor, descending: bool, mask: Tensor | None
    ) -> Tensor:
        """log of how likely each item's rank is from `lowest` to `highest`, all `(..., n)`."""
        points = SortedLists(-scores if descending else scores, mask, self.temperature)
        low, high = points.bounds(lowest), points.bounds(highest + 1)
        return log_difference(low - points.wide, high - points.wide, self.temperature).to(scores.dtype)

    def sorted_scores(self, scores: Tensor, descending: bool, mask: Tensor | None) -> Tensor:
        points = SortedLists(-scores if descending else scores, mask, self.temperature)
        half = places(scores.shape[-1], points.wide).expand_as(points.wide) + 0.5
        # Ranks that do not exist get some threshold that does: it is never used.
        half = torch.minimum(half, (points.count.unsqueeze(-1) - 0.5).clamp(min=0.5))
        ordered = points.thresholds(half)
        return (-ordered if descending else ordered).to(scores.dtype)

    def log_weights(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        points = SortedLists(scores, mask, self.temperature)
        rank = places(scores.shape[-1], points.wide).expand_as(points.wide)
        low, high = points.bounds(rank).unsqueeze(-1), points.bounds(rank + 1).unsqueeze(-1)
        item = points.wide.unsqueeze(-2)
        return log_difference(low - item, high - item, self.temperature)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"


class SortedLists:
    """Lists in ascending order, with the sums of exponentials to the left and to the right of each place."""

    def __init__(self, scores: Tensor, mask: Tensor | None, temperature: float) -> None:
        # Items that do not exist come last, with the largest score: a sign may just have turned that into the smallest.
        self.scores = scores if mask is None else filled(scores, mask)
        self.mask, self.temperature = mask, temperature
        self.wide = as_wide(self.scores)
        self.order = order_of(self.scores, mask)
        self.ascending = self.wide.gather(-1, self.order)
        exists = first_places(mask)
        self.exists = torch.ones_like(self.wide.detach()) if exists is None else exists.to(self.wide.dtype)
        self.count = self.exists.sum(-1)
        self.narrow = is_narrow(self.scores, temperature)
        self._found: tuple[Tensor, Tensor] | None = None

    @property
    def before(self) -> Tensor:
        """Σ_{k<j} e^{−(x_j − x_k)/τ} over the items that exist, at each sorted place."""
        return self._sides()[0]

    @property
    def after(self) -> Tensor:
        """Σ_{k>j} e^{−(x_k − x_j)/τ}, the same from the right."""
        return self._sides()[1]

    def _sides(self) -> tuple[Tensor, Tensor]:
        if self._found is None:  # thresholds with a gradient by hand have no need of them
            self._found = self.sums_before(self.exists), self.sums_after(self.exists)
        return self._found

    def squares(self) -> tuple[Tensor, Tensor]:
        """Σ_{k<j} e^{−2(x_j − x_k)/τ} at each sorted place, and Σ_{k>j}."""
        half = self.temperature / 2
        how = self.ascending, half, is_narrow(self.scores, half)
        return sums_before(self.exists, *how), sums_after(self.exists, *how)

    def sums_before(self, weights: Tensor) -> Tensor:
        """Σ_{k<j} w_k e^{−(x_j − x_k)/τ} at each sorted place."""
        return sums_before(weights, self.ascending, self.temperature, self.narrow)

    def sums_after(self, weights: Tensor) -> Tensor:
        """Σ_{k>j} w_k e^{−(x_k − x_j)/τ} at each sorted place."""
        return sums_after(weights, self.ascending, self.temperature, self.narrow)

    def ranks(self) -> Tensor:
        """Σ_{k≠j} F((x_j − x_k)/τ) at each sorted place."""
        return places(self.scores.shape[-1], self.wide) + (self.after - self.before) / 2

    def to_items(self, by_place: Tensor) -> Tensor:
        return torch.zeros_like(by_place).scatter(-1, self.order, by_place)

    def bounds(self, k: Tensor) -> Tensor:
        """`thresholds`, −10³⁰ for k ≤ 0 and 10³⁰ for k ≥ m."""
        k = k.to(self.wide.dtype)
        count = self.count.unsqueeze(-1)
        inside = (k > 0) & (k < count)
        found = self.thresholds(torch.where(inside, k, (count / 2).clamp(min=0.5)))
        return torch.where(inside, found, torch.where(k <= 0, -FAR, FAR))

    def thresholds(self, k: Tensor) -> Tensor:
        """The b at which k items are expected below, Σ_j F((b − x_j)/τ) = k, for 0 < k < m: `(..., K)` both.

        The gradient of a threshold is a softmax around it, ∇b = f/Σf.
        """
        if k.shape[-1] > FEW and k.shape[-1] * self.wide.numel() > CELLS:
            return self._recorded_thresholds(k)

        def recorded(scores: Tensor) -> Tensor:
            return SortedLists(scores, self.mask, self.temperature)._recorded_thresholds(k)

        def value_and_pullback(scores: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
            threshold = recorded(scores)
            distance = (threshold.unsqueeze(-1) - as_wide(scores).unsqueeze(-2)).abs() / -self.temperature
            if self.mask is not None:
                distance = torch.where(self.mask.unsqueeze(-2), distance, -FAR)

            def pullback(slopes: Tensor) -> Tensor:
                return (slopes.unsqueeze(-1) * distance.softmax(-1)).sum(-2).to(scores.dtype)

            return threshold, pullback

        return by_hand(self.scores, recorded, value_and_pullback)

    def _recorded_thresholds(self, k: Tensor) -> Tensor:
        """`thresholds`, of operators that torch differentiates.

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
        # With the place itself, whose own exponential is 1.
        left, right = self.before.gather(-1, index) + 1, self.after.gather(-1, following) + 1
        gap = ((y - x) / self.temperature).clamp(min=0)
        c = index + 1 - k
        root = torch.sqrt(torch.where(c == 0, 1.0, c.square() + left * right * torch.exp(-gap.clamp(max=700))))
        from_left = left.log() - torch.log(torch.where(c > 0, c + root, 1.0))
        from_right = gap - right.log() + torch.log(torch.where(c < 0, root - c, 1.0))
        middle = (gap + left.log() - right.log()) / 2
        inner = x + self.temperature * torch.where(c > 0, from_left, torch.where(c < 0, from_right, middle))
        # Left of all items the sum is ½R e^{(b − x_0)/τ}, right of all m − ½A e^{−(b − x)/τ}.
        first = self.ascending[..., :1] + self.temperature * (2 * k / (self.after[..., :1] + 1)).log()
        rest = (self.count.unsqueeze(-1) - k).clamp(min=0.25)
        beyond = x + self.temperature * (left / (2 * rest)).log()
        return torch.where(place < 0, first, torch.where(place == last, beyond, inner))


def order_of(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The item numbers in ascending order of the scores; those that do not exist come last."""
    exact = scores.detach()
    return ascending_order(exact if mask is None else torch.where(mask, exact, torch.inf))


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
