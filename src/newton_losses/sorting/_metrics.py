"""How well scores order items. Counted by comparisons, on the device, without synchronisation.

Ties are never broken by chance: equal values may come in either order, while equal scores for items of
different value count as wrong.
"""

import torch
from torch import Tensor

from .._arguments import real_tensor
from ..errors import ShapeError
from ._arguments import check_count, check_same_shape
from ._hard_ranks import rank_span

METRIC = "A metric of an order"


def rank_matches(scores: Tensor, values: Tensor) -> Tensor:
    """Whether each item gets a rank that is its own, `(..., n)` booleans."""
    check_same_shape(scores, values, "rank_matches")
    (first, count), (right_first, right_count) = rank_span(scores), rank_span(values)
    return (first >= right_first) & (first + count <= right_first + right_count) & (count > 0)


def exact_match(scores: Tensor, values: Tensor, first: int | None = None) -> Tensor:
    """1 where the whole order is right, `(..., n)` → `(...)`; its mean is the metric EM.

    `first=5` looks at the first 5 stored items only, as if there were no others. That is the metric EM5, which
    compares sets of different sizes. Each set needs at least that many items.

    >>> exact_match(torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]]), torch.tensor([[1, 5, 9], [1, 5, 9]]))
    tensor([1., 0.])
    """
    scores, values = _items(scores, "scores", first), _items(values, "values", first)
    return rank_matches(scores, values).all(-1).to(torch.float32)


def element_wise_match(scores: Tensor, values: Tensor, first: int | None = None) -> Tensor:
    """The share of items at their right ranks, `(..., n)` → `(...)`; its mean is the metric EW.

    >>> element_wise_match(torch.tensor([[0.3, 0.2, 0.1]]), torch.tensor([[1, 5, 9]]))
    tensor([0.3333])
    """
    scores, values = _items(scores, "scores", first), _items(values, "values", first)
    return rank_matches(scores, values).to(torch.float32).mean(-1)


def _items(tensor: Tensor, name: str, first: int | None) -> Tensor:
    """The items to look at, `(..., n)`: all or the first ones, of which there has to be one."""
    if real_tensor(tensor, name, METRIC).ndim == 0 or tensor.shape[-1] == 0:
        raise ShapeError(f"{METRIC}: {name} have shape {tuple(tensor.shape)}, without any items.")
    return tensor if first is None else tensor[..., : check_count(first, tensor.shape[-1], "first", METRIC)]
