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


def rank_span(values: Tensor) -> tuple[Tensor, Tensor]:
    """First rank and number of ranks of each item, `(..., n)`: item j may be at ranks first … first+count−1.

    >>> first, count = rank_span(torch.tensor([3.0, 1.0, 3.0]))
    >>> first.tolist(), count.tolist()
    ([1, 0, 1], [2, 1, 2])
    """
    mine, other = values.unsqueeze(-1), values.unsqueeze(-2)
    return (other < mine).sum(-1), (other == mine).sum(-1)


def target_matrix(values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The matrix Q of the ascending order of `values`, `(..., n)` → `(..., n, n)`, rows and columns sum to 1.

    Q[..., i, j] = 1/c where item j is one of c equal items that share the ranks i, and 0 elsewhere.
    A NaN among the values gives a column of NaN, never a silent order.

    >>> target_matrix(torch.tensor([2.0, 1.0, 2.0]))
    tensor([[0.0000, 1.0000, 0.0000],
            [0.5000, 0.0000, 0.5000],
            [0.5000, 0.0000, 0.5000]])
    """
    if real_tensor(values, "values", "target_matrix").ndim == 0:
        raise ShapeError("target_matrix: the values have no dimension to order, shape (). Pass at least shape (n,).")
    first, count = rank_span(values)
    rank = torch.arange(values.shape[-1], device=values.device).unsqueeze(-1)
    first, count = first.unsqueeze(-2), count.unsqueeze(-2)
    inside = (rank >= first) & (rank < first + count)
    return inside.to(dtype or torch.get_default_dtype()) / count


def cell_weights(target: Tensor, ties: Ties) -> Tensor:
    """Weights of the cells of a mean over the matrix, `(..., n, n)`, summing to 1 over it.

    "share" weighs all n² cells alike. "mask" leaves out the cells that ties make ambiguous, 0 < Q < 1.
    """
    if ties == "share":
        return torch.full_like(target, 1 / max(1, target.shape[-1]) ** 2)
    certain = ((target == 0) | (target == 1)).to(target.dtype)
    # With all items tied no cell is certain, and the mean over none is 0 rather than 0/0.
    return certain / certain.sum((-2, -1), keepdim=True).clamp(min=1)


def check_ties(ties: str, where: str) -> Ties:
    """`ties`, if it is one of the two ways to treat them."""
    if ties not in ("share", "mask"):
        raise ArgumentError(f"{where}: ties={ties!r} is not known. Choose 'share' or 'mask'.")
    return "share" if ties == "share" else "mask"


def average_ties(scores: Tensor) -> Tensor:
    """The row-normalised matrix of equal scores, `(..., n, n)`: the identity where no two are equal."""
    equal = (scores.unsqueeze(-1) == scores.unsqueeze(-2)).to(scores.dtype)
    return equal / equal.sum(-1, keepdim=True)


def sort_evenly(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending scores and their item numbers, like `torch.sort`, but equal scores share one derivative.

    A plain sort gives the whole derivative of a rank to whichever of the equal items it happened to place
    there, so the gradient would depend on the order in which the items are stored.
    """
    exact = scores.detach()
    # Zero in value and no matrix product: a product in reduced precision would spoil the derivatives.
    shift = (average_ties(exact) * (scores - exact).unsqueeze(-2)).sum(-1)
    order = exact.argsort(dim=-1, stable=True)
    return (exact + shift).gather(-1, order), order
