"""How well scores order items. Counted by comparisons, on the device, without synchronisation.

Ties are never broken by chance: equal values may come in either order, while equal scores for items of
different value count as wrong.
"""

import torch
from torch import Tensor

from ._lists import check_count, downwards, metric_lists, nan_where_unknown, rank_span

# Pairs of items that `kendall` compares at once.
PAIRS_AT_ONCE = 2**24


def rank_matches(scores: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Whether each item gets a rank that is its own, `(..., n)` booleans; True for items that do not exist."""
    (first, count), (right_first, right_count) = rank_span(scores, mask), rank_span(values, mask)
    matches = (first >= right_first) & (first + count <= right_first + right_count) & (count > 0)
    return matches if mask is None else matches | ~mask


def exact_match(scores: Tensor, values: Tensor, first: int | None = None, *, mask: Tensor | None = None) -> Tensor:
    """1 where the whole order is right, `(..., n)` → `(...)`; its mean is the metric EM.

    `first=5` looks at the first 5 stored items only, as if there were no others. That is the metric EM5, which
    compares sets of different sizes. Each set needs at least that many items. `mask` `(..., n)` is True where an item
    exists; an empty list is in order.

    >>> exact_match(torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]]), torch.tensor([[1, 5, 9], [1, 5, 9]]))
    tensor([1., 0.])
    """
    scores, values, mask = _items(scores, values, mask, first, "exact_match")
    return rank_matches(scores, values, mask).all(-1).to(torch.float32)


def element_wise_match(
    scores: Tensor, values: Tensor, first: int | None = None, *, mask: Tensor | None = None
) -> Tensor:
    """The share of items at their right ranks, `(..., n)` → `(...)`; its mean is the metric EW.

    `mask` `(..., n)` is True where an item exists; an empty list is in order.

    >>> element_wise_match(torch.tensor([[0.3, 0.2, 0.1]]), torch.tensor([[1, 5, 9]]))
    tensor([0.3333])
    """
    scores, values, mask = _items(scores, values, mask, first, "element_wise_match")
    matches = rank_matches(scores, values, mask).to(torch.float32)
    if mask is None:
        return matches.mean(-1)
    return 1 - (1 - matches).sum(-1) / mask.sum(-1).clamp(min=1)


def mean_reciprocal_rank(
    scores: Tensor, relevance: Tensor, k: int | None = None, *, mask: Tensor | None = None
) -> Tensor:
    """1/(1 + rank) of each list's first relevant item, `(..., n)` → `(...)`; its mean is the metric MRR.

    Relevant is what has a relevance above 0; rank 0 is the largest score. Items of equal score that are not relevant
    come first. 0 for lists without a relevant item, and with `k` for those without one among the first k.

    >>> mean_reciprocal_rank(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0, 1, 1]]))
    tensor([0.5000])
    """
    where = "mean_reciprocal_rank"
    scores, relevance, mask = metric_lists(scores, relevance, mask, where, "relevance")
    if k is not None:
        check_count(k, scores.shape[-1], "k", where)
    relevant = (relevance > 0) if mask is None else (relevance > 0) & mask
    first, count = rank_span(downwards(scores), mask)
    rank = first + count - rank_span(downwards(scores), relevant)[1]
    is_found = relevant & (count > 0) if k is None else relevant & (count > 0) & (rank < k)
    return nan_where_unknown(torch.where(is_found, 1 / (1 + rank), 0.0).amax(-1), relevance, mask)


def spearman(scores: Tensor, values: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Spearman's rank correlation of each list, `(..., n)` → `(...)`; equal numbers share their mean rank.

    0 where all scores or all values are equal, which have no correlation.

    >>> spearman(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10, 30, 20]]))
    tensor([0.5000])
    """
    scores, values, mask = metric_lists(scores, values, mask, "spearman")
    size = scores.new_full((), scores.shape[-1], dtype=torch.float64) if mask is None else mask.sum(-1).double()
    first, second = (_centred_ranks(x, mask, size) for x in (scores, values))
    scale = (first.square().sum(-1) * second.square().sum(-1)).sqrt()
    found = torch.where(scale > 0, (first * second).sum(-1) / torch.where(scale > 0, scale, 1.0), 0.0)
    return nan_where_unknown(found.float(), values, mask)


def kendall(scores: Tensor, values: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Kendall's τ of each list, `(..., n)` → `(...)`, in the form τ_b, which allows for ties; O(n²) time.

    0 where all scores or all values are equal, which have no correlation.

    >>> kendall(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10, 30, 20]]))
    tensor([0.3333])
    """
    scores, values, mask = metric_lists(scores, values, mask, "kendall")
    agree = torch.zeros(scores.shape[:-1], dtype=torch.int64, device=scores.device)
    by_score, by_value = torch.zeros_like(agree), torch.zeros_like(agree)
    rows = max(1, PAIRS_AT_ONCE // max(1, scores.numel()))
    for start in range(0, scores.shape[-1], rows):
        part = slice(start, start + rows)
        first, second = (
            (x[..., part, None] > x[..., None, :]).to(torch.int8)
            - (x[..., part, None] < x[..., None, :]).to(torch.int8)
            for x in (scores, values)
        )
        if mask is not None:
            exists = mask[..., part, None] & mask[..., None, :]
            first, second = first * exists, second * exists
        agree = agree + (first * second).sum((-2, -1))
        by_score, by_value = by_score + first.abs().sum((-2, -1)), by_value + second.abs().sum((-2, -1))
    scale = (by_score.double() * by_value.double()).sqrt()
    found = torch.where(scale > 0, agree / torch.where(scale > 0, scale, 1.0), 0.0)
    return nan_where_unknown(found.float(), values, mask)


def _centred_ranks(values: Tensor, mask: Tensor | None, size: Tensor) -> Tensor:
    """Mean ranks less their own mean, (n − 1)/2, in float64; 0 for items that do not exist."""
    first, count = rank_span(values, mask)
    ranks = first + (count.double() - 1) / 2 - ((size - 1) / 2).unsqueeze(-1)
    return ranks if mask is None else torch.where(mask, ranks, 0.0)


def _items(
    scores: Tensor, values: Tensor, mask: Tensor | None, first: int | None, where: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The items to look at, `(..., n)`: all or the first ones, of which there has to be one."""
    scores, values, mask = metric_lists(scores, values, mask, where)
    if first is None:
        return scores, values, mask
    first = check_count(first, scores.shape[-1], "first", where)
    return scores[..., :first], values[..., :first], None if mask is None else mask[..., :first]
