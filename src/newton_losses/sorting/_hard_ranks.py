"""The hard order of items, from comparisons alone: spans of ranks, target matrices, derivatives at ties.

Nothing here is relaxed. Counting comparisons instead of sorting makes ties visible: items with equal values
get one *span* of ranks instead of an arbitrary order.
"""

from typing import Literal

import torch
from torch import Tensor

from .._arguments import real_tensor
from ..errors import ArgumentError, ShapeError

Ties = Literal["share", "mask"]


# Lists up to this length are ranked by comparing all pairs, which compilers and transforms understand best.
ALL_PAIRS = 512


def rank_span(values: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """First rank and number of ranks of each item, `(..., n)`: item j may be at ranks first … first+count−1.

    Items outside the `mask` `(..., n)` are compared with nothing and have no ranks: their count is 0.

    >>> first, count = rank_span(torch.tensor([3.0, 1.0, 3.0]))
    >>> first.tolist(), count.tolist()
    ([1, 0, 1], [2, 1, 2])
    """
    if values.shape[-1] > ALL_PAIRS:
        return _span_by_sorting(values, mask)
    mine, other = values.unsqueeze(-1), values.unsqueeze(-2)
    below, equal = other < mine, other == mine
    if mask is not None:
        exists = mask.unsqueeze(-2)
        below, equal = below & exists, equal & exists & mask.unsqueeze(-1)
    return below.sum(-1), equal.sum(-1)


def _span_by_sorting(values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """`rank_span` in O(n log n) time and O(n) memory."""
    if not values.is_floating_point():
        values = values.to(torch.int64)
    count: Tensor | int = values.shape[-1]
    if mask is not None:
        beyond = torch.inf if values.is_floating_point() else torch.iinfo(torch.int64).max
        values, count = torch.where(mask, values, beyond), mask.sum(-1, keepdim=True)
    values = values.contiguous()
    ordered = values.sort(-1).values
    first = torch.searchsorted(ordered, values)
    last = torch.searchsorted(ordered, values, right=True).clamp(max=count)
    is_ranked = (values == values) if mask is None else (values == values) & mask
    return first, torch.where(is_ranked, last - first, 0)


def target_matrix(values: Tensor, dtype: torch.dtype | None = None, mask: Tensor | None = None) -> Tensor:
    """The matrix Q of the ascending order of `values`, `(..., n)` → `(..., n, n)`, rows and columns sum to 1.

    Q[..., i, j] = 1/c where item j is one of c equal items that share the ranks i, and 0 elsewhere. A `mask`
    `(..., n)` says which items exist: m of them take the first m ranks, and all other cells are 0.
    A NaN among the values gives a column of NaN, never a silent order.

    >>> target_matrix(torch.tensor([2.0, 1.0, 2.0]))
    tensor([[0.0000, 1.0000, 0.0000],
            [0.5000, 0.0000, 0.5000],
            [0.5000, 0.0000, 0.5000]])
    """
    if real_tensor(values, "values", "target_matrix").ndim == 0:
        raise ShapeError("target_matrix: the values have no dimension to order, shape (). Pass at least shape (n,).")
    first, count = rank_span(values, mask)
    rank = torch.arange(values.shape[-1], device=values.device).unsqueeze(-1)
    first, count = first.unsqueeze(-2), count.unsqueeze(-2)
    inside = (rank >= first) & (rank < first + count)
    share = count if mask is None else count.clamp(min=1)
    return inside.to(dtype or torch.get_default_dtype()) / share


def existing_cells(mask: Tensor) -> Tensor:
    """Which cells of the matrix exist, `(..., n, n)`: the first m ranks of the m items that do."""
    rank = torch.arange(mask.shape[-1], device=mask.device).unsqueeze(-1)
    return (rank < mask.sum(-1)[..., None, None]) & mask.unsqueeze(-2)


def cell_weights(target: Tensor, ties: Ties, mask: Tensor | None = None) -> Tensor:
    """Weights of the cells of a mean over the matrix, `(..., n, n)`, summing to 1 over it.

    "share" weighs all n² cells alike. "mask" leaves out the cells that ties make ambiguous, 0 < Q < 1. Cells of
    items that do not exist have no weight.
    """
    if ties == "share" and mask is None:
        return torch.full_like(target, 1 / max(1, target.shape[-1]) ** 2)
    certain = torch.ones_like(target) if ties == "share" else ((target == 0) | (target == 1)).to(target.dtype)
    if mask is not None:
        certain = certain * existing_cells(mask)
    # With all items tied no cell is certain, and the mean over none is 0 rather than 0/0.
    return certain / certain.sum((-2, -1), keepdim=True).clamp(min=1)


def check_ties(ties: str, where: str) -> Ties:
    """`ties`, if it is one of the two ways to treat them."""
    if ties not in ("share", "mask"):
        raise ArgumentError(f"{where}: ties={ties!r} is not known. Choose 'share' or 'mask'.")
    return "share" if ties == "share" else "mask"


def average_ties(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """The row-normalised matrix of equal scores, `(..., n, n)`: the identity where no two are equal.

    Rows and columns of items outside the `mask` are 0.
    """
    equal = scores.unsqueeze(-1) == scores.unsqueeze(-2)
    if mask is None:
        averages = equal.to(scores.dtype)
        return averages / averages.sum(-1, keepdim=True)
    averages = (equal & mask.unsqueeze(-1) & mask.unsqueeze(-2)).to(scores.dtype)
    return averages / averages.sum(-1, keepdim=True).clamp(min=1)


def sort_evenly(scores: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Ascending scores and their item numbers, like `torch.sort`, but equal scores share one derivative.

    Items outside the `mask` come last.

    A plain sort gives the whole derivative of a rank to whichever of the equal items it happened to place
    there, so the gradient would depend on the order in which the items are stored.
    """
    exact = scores.detach()
    # Zero in value and no matrix product: a product in reduced precision would spoil the derivatives.
    shift = (average_ties(exact, mask) * (scores - exact).unsqueeze(-2)).sum(-1)
    order = (exact if mask is None else torch.where(mask, exact, torch.inf)).argsort(dim=-1, stable=True)
    return (exact + shift).gather(-1, order), order
