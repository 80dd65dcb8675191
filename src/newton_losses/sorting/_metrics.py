"""How well scores order items. Counted by comparisons, on the device, without synchronisation.

Ties are never broken by chance: equal values may come in either order, while equal scores for items of
different value count as wrong.
"""

import torch
from torch import Tensor

from ._arguments import check_count
from ._hard_ranks import rank_span
from ._lists import metric_lists

METRIC = "A metric of an order"


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
    scores, values, mask = _items(scores, values, mask, first)
    return rank_matches(scores, values, mask).all(-1).to(torch.float32)


def element_wise_match(
    scores: Tensor, values: Tensor, first: int | None = None, *, mask: Tensor | None = None
) -> Tensor:
    """The share of items at their right ranks, `(..., n)` → `(...)`; its mean is the metric EW.

    `mask` `(..., n)` is True where an item exists; an empty list is in order.

    >>> element_wise_match(torch.tensor([[0.3, 0.2, 0.1]]), torch.tensor([[1, 5, 9]]))
    tensor([0.3333])
    """
    scores, values, mask = _items(scores, values, mask, first)
    matches = rank_matches(scores, values, mask).to(torch.float32)
    if mask is None:
        return matches.mean(-1)
    return 1 - (1 - matches).sum(-1) / mask.sum(-1).clamp(min=1)


def _items(
    scores: Tensor, values: Tensor, mask: Tensor | None, first: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The items to look at, `(..., n)`: all or the first ones, of which there has to be one."""
    scores, values, mask = metric_lists(scores, values, mask, METRIC)
    if first is None:
        return scores, values, mask
    first = check_count(first, scores.shape[-1], "first", METRIC)
    return scores[..., :first], values[..., :first], None if mask is None else mask[..., :first]
