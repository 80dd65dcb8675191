"""Graded relevance: what an order of items is worth, as losses (`NDCGLoss` and two baselines) and a metric (`ndcg`).

    DCG = Σ_i gain(relevance of the item at rank i) · discount(i),   NDCG = DCG / (the largest DCG of any order)

A list without a relevant item has no best order: its loss is 0 without a gradient, and its NDCG is 0.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._arguments import positive_number, whole_number
from ..curvature import full_precision
from ..errors import ArgumentError, ShapeError
from ._laplace import LaplaceSort, SortedLists
from ._laplace_curvature import HessianSums, graded_trace, has_closed_form
from ._lists import as_lists, check_count, downwards, metric_lists, nan_where_unknown, on_host, paired_lists, rank_span
from ._log_space import softplus
from ._registry import AlgorithmName, choose
from ._relaxation import Relaxation, places

Gains = Literal["exponential", "linear"] | Callable[[Tensor], Tensor]
Discounts = Literal["log2"] | Callable[[Tensor], Tensor] | Tensor


class NDCGLoss(nn.Module):
    """1 − NDCG of relaxed ranks: `loss(scores, relevance)`, `(..., n)` → `(...)`, from 0 (best) towards 1.

    The discount of an item is its mean over the ranks it may have, Σ_i P_ij · discount(i) / Σ_i P_ij, computed from
    log P in descending order; for `LaplaceSort` it is the discount at the expected rank, which needs no matrix.

    - `algorithm`, `temperature`, `steepness`: any relaxation, as in `SortingLoss`.
    - `k`: only the first k ranks count (NDCG@k).
    - `gains`: "exponential" is 2^r − 1, "linear" is r, or a function of the relevance. Not negative.
    - `discounts`: "log2" is 1/log₂(2 + i) at rank i = 0, 1, …; a function of ranks, or a tensor `(n,)` or longer.

    A `mask` `(..., n)` is True where an item exists; nested tensors say so themselves. Lists without a relevant item
    have the loss 0 and no gradient. No relevance is too large: only ratios of gains are computed.

    >>> loss = NDCGLoss("softsort", temperature=0.01)
    >>> loss(torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]), torch.tensor([[2, 1, 0], [2, 1, 0]]))
    tensor([0.0000, 0.4131])
    """

    exchangeable = True
    takes_mask = True

    def __init__(
        self,
        algorithm: AlgorithmName | Relaxation = "neuralsort",
        *,
        temperature: float | None = None,
        steepness: float | None = None,
        k: int | None = None,
        gains: Gains = "exponential",
        discounts: Discounts = "log2",
    ) -> None:
        super().__init__()
        self.relaxation = choose(algorithm, temperature, steepness, "NDCGLoss")
        self.k = None if k is None else whole_number(k, "k", "NDCGLoss", least=1)
        self.gains = _check_gains(gains, "NDCGLoss")
        self.discounts = _check_discounts(discounts, "NDCGLoss")

    def forward(self, scores: Tensor, relevance: Tensor, mask: Tensor | None = None) -> Tensor:
        lists, relevance = paired_lists(scores, relevance, mask, "NDCGLoss", "relevance")
        scores, mask = lists.scores, lists.mask
        n = scores.shape[-1]
        k = n if self.k is None else check_count(self.k, n, "k", "NDCGLoss")
        with full_precision(scores):
            gains = scaled_gains(relevance, self.gains, mask, scores.dtype, "NDCGLoss")
            ideal = ideal_gain(gains, self.discounts, k)
            found = (gains * self._item_discounts(scores, k, mask)).sum(-1)
            has_order = ideal != 0  # what is NaN stays so
            # Chosen before the division, so that nothing on the way back is 0/0.
            return torch.where(has_order, 1 - found / torch.where(has_order, ideal, 1.0), 0.0)

    def hessian_sums(self, scores: Tensor, relevance: Tensor, mask: Tensor | None = None) -> HessianSums | None:
        """tr ∇²ℓᵢ and 1ᵀ∇²ℓᵢ1 of each list, `(...)` both, in O(n log n) time for `LaplaceSort`; else `None`."""
        if not has_closed_form(self.relaxation):
            return None
        lists, relevance = paired_lists(scores, relevance, mask, "NDCGLoss", "relevance")
        n, mask = lists.scores.shape[-1], lists.mask
        with torch.no_grad(), full_precision(lists.scores):
            points = SortedLists(-lists.scores, mask, self.relaxation.temperature)
            gains = scaled_gains(relevance, self.gains, mask, points.wide.dtype, "NDCGLoss").gather(-1, points.order)
            k = n if self.k is None else self.k
            ideal = ideal_gain(gains, self.discounts, k).unsqueeze(-1)
            worth = torch.where(ideal != 0, gains / torch.where(ideal != 0, ideal, 1.0), 0.0)
            ranks = torch.where(points.exists > 0, points.ranks(), 0.0)
            trace = graded_trace(points, worth, self._discount_derivatives(ranks), k)
        return trace, torch.zeros_like(trace)

    def _discount_derivatives(self, ranks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The discount at each rank, and its two derivatives."""
        with torch.enable_grad():
            leaf = ranks.detach().requires_grad_()
            found = [discount_at(leaf, self.discounts, ranks.shape[-1])]
            for _ in range(2):
                is_constant = not found[-1].requires_grad
                slopes = (
                    None
                    if is_constant
                    else torch.autograd.grad(found[-1].sum(), leaf, create_graph=True, allow_unused=True)[0]
                )
                found.append(torch.zeros_like(ranks) if slopes is None else slopes)
        value, slope, bend = (one.detach() for one in found)
        return value, slope, bend

    def _item_discounts(self, scores: Tensor, k: int, mask: Tensor | None) -> Tensor:
        n = scores.shape[-1]
        if isinstance(self.relaxation, LaplaceSort):
            ranks = self.relaxation.expected_ranks(scores, True, mask)
            if mask is not None:  # what others have may be no rank at all
                ranks = torch.where(mask, ranks, 0.0)
            found = discount_at(ranks, self.discounts, n)
            return found if k == n else found * self.relaxation.top_weights(scores, k, True, mask)
        weights = self.relaxation.log_rank_weights(scores, True, mask).exp()
        discount = discount_at(places(n, weights), self.discounts, n)
        return (weights[..., :k, :] * discount[:k].unsqueeze(-1)).sum(-2)

    def extra_repr(self) -> str:
        return f"k={self.k}, gains={self.gains!r}, discounts={self.discounts!r}"


class ListNetLoss(nn.Module):
    """The cross-entropy of two softmaxes, `loss(scores, relevance)`, `(..., n)` → `(...)` (Cao et al., 2007).

    ℓ = −Σ_j q_j log softmax(s)_j with q = softmax(relevance/τ): no relaxation of sorting, a baseline. `mask` as in
    `NDCGLoss`; an empty list has the loss 0.

    >>> ListNetLoss()(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    tensor([0.6931])
    """

    exchangeable = True
    takes_mask = True

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = positive_number(temperature, "temperature", "ListNetLoss")

    def forward(self, scores: Tensor, relevance: Tensor, mask: Tensor | None = None) -> Tensor:
        lists, relevance = paired_lists(scores, relevance, mask, "ListNetLoss", "relevance")
        grades = _only_existing(relevance.to(lists.scores.dtype) / self.temperature, lists.mask)
        terms = grades.softmax(-1) * _only_existing(lists.scores, lists.mask).log_softmax(-1)
        return -(terms if lists.mask is None else torch.where(lists.mask, terms, 0.0)).sum(-1)

    def hessian_sums(self, scores: Tensor, relevance: Tensor, mask: Tensor | None = None) -> HessianSums:
        """tr ∇²ℓᵢ and 1ᵀ∇²ℓᵢ1 of each list, `(...)` both: ∇²ℓ = diag(p) − ppᵀ with p = softmax(s)."""
        lists = as_lists(scores, mask, "ListNetLoss")
        chances = _only_existing(lists.scores, lists.mask).softmax(-1)
        terms = chances * (1 - chances)
        trace = (terms if lists.mask is None else torch.where(lists.mask, terms, 0.0)).sum(-1)
        return trace, torch.zeros_like(trace)


class PairwiseLogisticLoss(nn.Module):
    """The mean of log(1 + e^{−(s_i − s_j)}) over all pairs with relevance i > j, `(..., n)` → `(...)` (RankNet).

    No relaxation of sorting, a baseline. `mask` as in `NDCGLoss`; a list without such a pair has the loss 0.

    >>> PairwiseLogisticLoss()(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    tensor([0.6931])
    """

    exchangeable = True
    takes_mask = True

    def forward(self, scores: Tensor, relevance: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._mean_over_pairs(scores, relevance, mask, lambda apart: softplus(-apart))

    def hessian_sums(self, scores: Tensor, relevance: Tensor, mask: Tensor | None = None) -> HessianSums:
        """tr ∇²ℓᵢ and 1ᵀ∇²ℓᵢ1 of each list, `(...)` both: two diagonal entries σ'(s_i − s_j) per pair."""
        trace = self._mean_over_pairs(scores, relevance, mask, lambda apart: 2 * apart.sigmoid() * (-apart).sigmoid())
        return trace, torch.zeros_like(trace)

    def _mean_over_pairs(
        self, scores: Tensor, relevance: Tensor, mask: Tensor | None, cost: Callable[[Tensor], Tensor]
    ) -> Tensor:
        lists, relevance = paired_lists(scores, relevance, mask, "PairwiseLogisticLoss", "relevance")
        is_pair = relevance.unsqueeze(-1) > relevance.unsqueeze(-2)
        if lists.mask is not None:
            is_pair = is_pair & lists.mask.unsqueeze(-1) & lists.mask.unsqueeze(-2)
        costs = torch.where(is_pair, cost(lists.scores.unsqueeze(-1) - lists.scores.unsqueeze(-2)), 0.0)
        mean = costs.sum((-2, -1)) / is_pair.sum((-2, -1)).clamp(min=1)
        return nan_where_unknown(mean, relevance, lists.mask)


def _only_existing(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores that are far below all others where no item is, and finite: −∞ would make NaN of an empty list."""
    return scores if mask is None else torch.where(mask, scores, torch.finfo(scores.dtype).min / 4)


def ndcg(
    scores: Tensor,
    relevance: Tensor,
    k: int | None = None,
    *,
    gains: Gains = "exponential",
    discounts: Discounts = "log2",
    mask: Tensor | None = None,
) -> Tensor:
    """NDCG of each list, or NDCG@k, `(..., n)` → `(...)`; its mean is the metric.

    Equal scores share the mean of their discounts. Arguments are those of `NDCGLoss`; lists without a relevant item
    have 0. With `gains="linear"` it is scikit-learn's `ndcg_score`.

    >>> ndcg(torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]), torch.tensor([[2, 1, 0], [2, 1, 0]]))
    tensor([1.0000, 0.5869])
    """
    scores, relevance, mask = metric_lists(scores, relevance, mask, "ndcg", "relevance")
    n = scores.shape[-1]
    k = n if k is None else check_count(k, n, "k", "ndcg")
    found = scaled_gains(relevance, _check_gains(gains, "ndcg"), mask, torch.float64, "ndcg")
    discounts = _check_discounts(discounts, "ndcg")
    discount = discount_at(places(n, found), discounts, n) * (places(n, found) < k)
    sums = torch.nn.functional.pad(discount.cumsum(-1), (1, 0))
    first, count = rank_span(downwards(scores), mask)
    shared = (sums[first + count] - sums[first]) / count.clamp(min=1)
    ideal = ideal_gain(found, discounts, k)
    has_order = ideal != 0
    return torch.where(has_order, (found * shared).sum(-1) / torch.where(has_order, ideal, 1.0), 0.0).float()


def scaled_gains(relevance: Tensor, gains: Gains, mask: Tensor | None, dtype: torch.dtype, where: str) -> Tensor:
    """Gains `(..., n)`, 0 for items that do not exist, up to a factor of each list."""
    grades = relevance.detach().to(dtype)
    if mask is not None:
        grades = torch.where(mask, grades, 0.0)
    if gains == "exponential":
        _check_not_negative(grades, where, "relevance")
        # 2^r overflows in float32 at r = 128. NDCG is a ratio, so that all may be divided by the largest.
        largest = grades.amax(-1, keepdim=True)
        found = torch.exp2(grades - largest) - torch.exp2(-largest)
    else:
        found = grades if gains == "linear" else gains(grades).to(dtype)
        if found.shape != grades.shape:
            raise ShapeError(
                f"{where}: gains map {tuple(grades.shape)} to {tuple(found.shape)}; the shape has to stay."
            )
        _check_not_negative(found, where, "gains")
        largest = found.amax(-1, keepdim=True)
        found = found / torch.where(largest > 0, largest, 1.0)
    return found if mask is None else torch.where(mask, found, 0.0)


def ideal_gain(gains: Tensor, discounts: Discounts, k: int) -> Tensor:
    """The largest DCG of any order."""
    ordered = gains.sort(-1, descending=True).values[..., :k]
    return (ordered * discount_at(places(gains.shape[-1], gains), discounts, gains.shape[-1])[:k]).sum(-1)


def discount_at(ranks: Tensor, discounts: Discounts, n: int) -> Tensor:
    """Discounts at ranks, which need not be whole numbers: a table is interpolated between its entries."""
    if isinstance(discounts, Tensor):
        if len(discounts) < n:
            raise ShapeError(
                f"NDCG: {len(discounts)} discounts for lists of n={n} items. Pass a tensor with one per rank, (n,)."
            )
        table = discounts.to(ranks)
        # A rank that is no number has no entry, and stays no number.
        floor = ranks.detach().nan_to_num().floor().clamp(0, len(table) - 2 if len(table) > 1 else 0)
        low = floor.to(torch.int64)
        high = (low + 1).clamp(max=len(table) - 1)
        return table[low] + (ranks - floor) * (table[high] - table[low])
    return 1 / torch.log2(2 + ranks) if discounts == "log2" else discounts(ranks)


def _check_gains(gains: Any, where: str) -> Gains:
    if not callable(gains) and gains not in ("exponential", "linear"):
        raise ArgumentError(
            f"{where}: gains={gains!r} is not known. Choose 'exponential', 'linear' or a function of the relevance."
        )
    return gains  # type: ignore[no-any-return]


def _check_discounts(discounts: Any, where: str) -> Discounts:
    if isinstance(discounts, Tensor):
        if discounts.ndim != 1 or not discounts.is_floating_point():
            raise ArgumentError(
                f"{where}: discounts are {tuple(discounts.shape)}, {discounts.dtype}. Pass floats (n,)."
            )
        _check_not_negative(discounts, where, "discounts")
        return discounts
    if not callable(discounts) and discounts != "log2":
        raise ArgumentError(
            f"{where}: discounts={discounts!r} is not known. Choose 'log2', a function of ranks or a tensor (n,)."
        )
    return discounts  # type: ignore[no-any-return]


def _check_not_negative(numbers: Tensor, where: str, name: str) -> None:
    if on_host(numbers) and bool((numbers < 0).any()):
        raise ArgumentError(f"{where}: negative {name}, down to {numbers.min().item():g}. Pass none below 0.")
