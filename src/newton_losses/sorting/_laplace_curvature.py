"""Traces of the Hessians of losses of `LaplaceSort`, in closed form, in O(n log n) time and O(n) memory.

With x = s/τ, F the Laplace distribution and f = F', the ranks r_j = Σ_{k≠j} F(x_j − x_k) and the top-k weights
p_j = F(b − x_j), Σ_j p_j = k, have derivatives of simple structure:

    ∇r_j = D_j e_j − K_j,        K_jk = f(x_j − x_k),  D = K1       a graph Laplacian, whose rows are exponentials
    ∇p_j = f_j (q − e_j),        q = f/Σf = ∇b                      diagonal plus rank one
    ∇²p_j = f'_j (q − e_j)(q − e_j)ᵀ + f_j ∇²b,   ∇²b = −Σ_i f'_i (q − e_i)(q − e_i)ᵀ / Σf

Their norms and traces are sums of e^{−|x_j − x_k|} and e^{−2|x_j − x_k|}. For a list, whose items are a set, the
curvature of a Newton loss needs nothing else: adding a constant to all scores changes no loss of ranks, so that H1 = 0.
At ties, where the second derivative jumps, f'(0) is 0, the mean of both sides: stored order has no influence.
"""

import math
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from .._tracing import sees_operators
from ._laplace import LaplaceSort, SortedLists, log_difference, log_laplace
from ._relaxation import Relaxation

# tr H and 1ᵀH1 of each list, `(...)` both.
HessianSums = tuple[Tensor, Tensor]
# What is closer than this, in units of the temperature, counts as equal: thresholds are rounded.
EQUAL = 1e-9


def has_closed_form(relaxation: Relaxation) -> TypeGuard[LaplaceSort]:
    """Not under a compiler or a transform, which have their own ways to differentiate."""
    return isinstance(relaxation, LaplaceSort) and not sees_operators()


class RankDerivatives:
    """‖∇r_j‖² and tr ∇²r_j of the ranks at each sorted place, `(..., n)`, in units of 1/τ²."""

    def __init__(self, points: SortedLists) -> None:
        self.points = points
        self.degree = (points.before + points.after) / 2
        self.square = self.degree.square() + sum(points.squares()) / 4
        # Equal neighbours are in both sums, and belong in neither.
        ascending, last = points.ascending.contiguous(), points.count.unsqueeze(-1) - 1
        first_equal = torch.searchsorted(ascending, ascending)
        last_equal = torch.minimum(torch.searchsorted(ascending, ascending, right=True) - 1, last)
        place = torch.arange(ascending.shape[-1], device=ascending.device)
        self.bend = points.after - points.before + (place - first_equal) - (last_equal - place)

    def trace(self, slope: Tensor, bend: Tensor) -> Tensor:
        """tr ∇²Φ(r) `(...)` with `slope` the derivatives of Φ by the ranks, and diag(`bend`) the second ones."""
        return over_items(self.points, bend * self.square + slope * self.bend)


@dataclass(frozen=True)
class ThresholdDerivatives:
    """‖∇b‖² and tr ∇²b of thresholds b, in units of the temperature, `(..., K)`.

    All sums are multiplied by e^{nearest}, with `nearest` the distance to the nearest item: between two items that are
    far apart they would vanish, and their ratios with them. `left` and `right` are Σ e^{−2|b − x|} on each side.
    """

    threshold: Tensor
    nearest: Tensor
    density: Tensor
    square: Tensor
    bend: Tensor
    left: Tensor
    right: Tensor
    items_left: Tensor

    @staticmethod
    def at(points: SortedLists, threshold: Tensor) -> "ThresholdDerivatives":
        """At thresholds `(..., K)` in the unit of the scores."""
        x, tau = points.ascending.contiguous(), points.temperature
        last = (points.count.unsqueeze(-1) - 1).to(torch.int64)
        left = torch.minimum(torch.searchsorted(x, (threshold - EQUAL * tau).contiguous()) - 1, last)
        right = torch.searchsorted(x, (threshold + EQUAL * tau).contiguous(), right=True)
        right = torch.minimum(right, last + 1)
        equal = (right - left - 1).to(x.dtype)
        has_left, has_right = left >= 0, right <= last
        at_left, at_right = left.clamp(min=0), torch.minimum(right, last.clamp(min=0))
        to_left = torch.where(has_left, (threshold - x.gather(-1, at_left)) / tau, torch.inf)
        to_right = torch.where(has_right, (x.gather(-1, at_right) - threshold) / tau, torch.inf)
        nearest = torch.where(equal > 0, 0.0, torch.minimum(to_left, to_right))
        sums = []
        for rate, (before, after) in ((1, (points.before, points.after)), (2, points.squares())):
            sums.append((before.gather(-1, at_left) + 1) * torch.exp(rate * (nearest - to_left)))
            sums.append((after.gather(-1, at_right) + 1) * torch.exp(rate * (nearest - to_right)))
        one_left, one_right, two_left, two_right = sums
        density = (one_left + one_right + equal) / 2
        square = (two_left + two_right + equal) / 4 / density.square()
        slope, product = (one_right - one_left) / 2, (two_right - two_left) / 4
        bend = -(slope * (1 + square) - 2 * product / density) / density
        items_left = (left + 1 + equal).to(x.dtype)
        return ThresholdDerivatives(
            threshold / tau, nearest, density, square, bend, two_left + equal, two_right, items_left
        )

    def share(self, distance: Tensor) -> Tensor:
        """q of an item at that distance |b − x|."""
        return torch.exp(torch.minimum(self.nearest - distance, torch.zeros_like(distance))) / (2 * self.density)

    def overlap(self, higher: "ThresholdDerivatives") -> Tensor:
        """∇bᵀ∇b' with thresholds b' ≥ b: Σ e^{−|b − x| − |b' − x|} over the items left of both, between, and right."""
        apart = higher.threshold - self.threshold
        both = self.left * torch.exp((higher.nearest - self.nearest - apart).clamp(max=0))
        both = both + higher.right * torch.exp((self.nearest - higher.nearest - apart).clamp(max=0))
        between = (higher.items_left - self.items_left).clamp(min=0)
        both = both + between * torch.exp((self.nearest + higher.nearest - apart).clamp(max=0))
        return both / (4 * self.density * higher.density)


def over_items(points: SortedLists, terms: Tensor) -> Tensor:
    """Σ terms/τ² over the items that exist; what others have may be no number."""
    return torch.where(points.exists > 0, terms, 0.0).sum(-1) / points.temperature**2


def density(distance: Tensor) -> Tensor:
    """log f at b − x."""
    return -distance.abs() - math.log(2)


def fall(distance: Tensor) -> Tensor:
    """f'/f at b − x: −1 right of an item, 1 left of it."""
    return -torch.where(distance.abs() < EQUAL, 0.0, distance.sign())


def graded_trace(points: SortedLists, worth: Tensor, discounts: tuple[Tensor, Tensor, Tensor], k: int) -> Tensor:
    """tr ∇²(−Σ_j worth_j d(r_j) p_j) `(...)`, by sorted place, with d's values, slopes and bends at the ranks.

    p is how much of an item is among the first k, and 1 in lists of no more.
    """
    discount, slope, bend = (worth * one for one in discounts)
    ranks = RankDerivatives(points)
    if k >= points.scores.shape[-1]:
        return -ranks.trace(slope, bend)
    count = points.count.unsqueeze(-1)
    is_cut = k < count
    threshold = points.thresholds(torch.minimum(torch.full_like(count, k), (count - 0.5).clamp(min=0.5)))
    found = ThresholdDerivatives.at(points, threshold)
    distance = (threshold - points.ascending) / points.temperature
    weight = torch.where(is_cut, log_laplace(distance).exp(), 1.0)
    f = torch.where(is_cut, density(distance).exp(), 0.0)
    q = found.share(distance.abs()) * points.exists
    by_weight = f * (fall(distance) * (found.square - 2 * q + 1) + found.bend)
    # ∇r_jᵀ(q − e_j), and twice it since the product has two factors.
    mixed = ranks.degree * (q - 1) - (points.sums_before(q) + points.sums_after(q)) / 2
    mixed_terms = over_items(points, discount * by_weight + 2 * slope * f * mixed)
    return -ranks.trace(slope * weight, bend * weight) - mixed_terms


def label_trace(points: SortedLists, weights: dict[int, float], label: Tensor) -> Tensor:
    """tr ∇²(−log Σ_k w_k p_label) `(...)` of one label `(..., 1)` per list, for several k at once."""
    order = sorted(weights)
    wanted = torch.tensor(order, dtype=points.wide.dtype, device=points.wide.device).expand(*label.shape[:-1], -1)
    is_cut = wanted < points.count.unsqueeze(-1)
    half = (points.count.unsqueeze(-1) - 0.5).clamp(min=0.5)
    threshold = points.thresholds(torch.minimum(wanted, half))
    found = ThresholdDerivatives.at(points, threshold)
    distance = (threshold - points.wide.gather(-1, label)) / points.temperature
    share = torch.tensor([weights[k] for k in order], dtype=wanted.dtype, device=wanted.device).log()
    mass = (torch.where(is_cut, log_laplace(distance), 0.0) + share).logsumexp(-1, keepdim=True)
    f = torch.where(is_cut, (density(distance) + share - mass).exp(), 0.0)  # w f / Σ w p
    q = found.share(distance.abs())
    bends = f * (fall(distance) * (found.square - 2 * q + 1) + found.bend)
    squares = torch.zeros_like(mass.squeeze(-1))
    for i in range(len(order)):
        for j in range(i, len(order)):
            low, high = (_only(found, at) for at in (i, j))
            product = found.square[..., i] if i == j else low.overlap(high)
            both = product - q[..., i] - q[..., j] + 1
            squares = squares + (1 if i == j else 2) * f[..., i] * f[..., j] * both
    return (squares - bends.sum(-1)) / points.temperature**2


def _only(found: ThresholdDerivatives, at: int) -> ThresholdDerivatives:
    return ThresholdDerivatives(*(getattr(found, name)[..., at] for name in found.__dataclass_fields__))


def span_trace(points: SortedLists, lowest: Tensor, highest: Tensor) -> Tensor:
    """Σ_j tr ∇²(−log P(lowest_j ≤ rank_j ≤ highest_j)) `(...)` over the items that exist; bounds `(..., n)` by item."""
    tau, order = points.temperature, points.order
    low_rank, high_rank = lowest.gather(-1, order), highest.gather(-1, order) + 1
    count = points.count.unsqueeze(-1)
    low, high = points.bounds(low_rank), points.bounds(high_rank)
    x = points.ascending
    log_mass = log_difference(low - x, high - x, tau)
    ends = []
    for bound, rank in ((low, low_rank), (high, high_rank)):
        is_inside = (rank > 0) & (rank < count)
        # Any threshold will do where there is no bound: it has no weight.
        somewhere = torch.where(is_inside, bound, points.thresholds((count / 2).clamp(min=0.5)).expand_as(bound))
        found = ThresholdDerivatives.at(points, somewhere)
        distance = (somewhere - x) / tau
        f = torch.where(is_inside, (density(distance) - log_mass).exp(), 0.0)  # f / P
        q = found.share(distance.abs())
        ends.append((found, f, q, f * (fall(distance) * (found.square - 2 * q + 1) + found.bend)))
    (low_found, low_f, low_q, low_bend), (high_found, high_f, high_q, high_bend) = ends
    both = low_found.overlap(high_found) - low_q - high_q + 1
    squares = low_f.square() * (low_found.square - 2 * low_q + 1) + high_f.square() * (
        high_found.square - 2 * high_q + 1
    )
    return over_items(points, squares - 2 * low_f * high_f * both - (high_bend - low_bend))
