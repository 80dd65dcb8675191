"""Soft counterparts of `torch.sort`, ranking and `torch.topk`, for any relaxation, any list and any length.

The functions check their arguments and bring the result back into the caller's layout; what a relaxation computes is
in its own file, and for matrices in `_relaxation.py`. With `hard=True` the value is the hard one and the gradient that
of the soft one, the straight-through estimator.
"""

import torch
from torch import Tensor

from ..curvature import full_precision
from ._lists import as_lists, as_they_came, check_count, rank_span
from ._registry import AlgorithmName, choose
from ._relaxation import Relaxation, first_places


def soft_sort(
    scores: Tensor,
    algorithm: AlgorithmName | Relaxation = "neuralsort",
    *,
    temperature: float | None = None,
    steepness: float | None = None,
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
    hard: bool = False,
) -> Tensor:
    """P @ scores along `dim`: the sorted scores, of the same shape and dtype, differentiable by all of them.

    With a `mask` of the shape of `scores`, True where an item exists, the m items of a list fill its first m ranks,
    and the others are 0. A nested tensor comes back as one. `hard=True` sorts, with the gradient of the soft sort.

    >>> soft_sort(torch.tensor([3.0, 1.0, 2.0]), "softsort", temperature=0.01)
    tensor([1., 2., 3.])
    """
    relaxation = choose(algorithm, temperature, steepness, "soft_sort")
    lists = as_lists(scores, mask, "soft_sort", dim)
    with full_precision(lists.scores):
        result = relaxation.sorted_scores(lists.scores, descending, lists.mask)
    if hard:
        sign = -1 if descending else 1
        key = lists.scores if lists.mask is None else torch.where(lists.mask, lists.scores, sign * torch.inf)
        result = straight_through(key.sort(-1, descending=descending).values.nan_to_num(posinf=0, neginf=0), result)
    # The sorted items of a list are its first m, wherever the mask has its own.
    return as_they_came(result, lists._replace(mask=first_places(lists.mask)), dim).to(scores.dtype)


def soft_rank(
    scores: Tensor,
    algorithm: AlgorithmName | Relaxation = "logistic",
    *,
    temperature: float | None = None,
    steepness: float | None = None,
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
    hard: bool = False,
) -> Tensor:
    """The expected rank of each score along `dim`, from 0 to n−1, of the same shape and dtype.

    Σ_i i · P_ij / Σ_i P_ij: the columns are normalised, as those of NeuralSort and SoftSort do not sum
    to 1. A network's do. With a `mask` of the shape of `scores`, True where an item exists, items are ranked among
    those that do, and the others get 0. `hard=True` gives the hard ranks, equal scores sharing their mean, with the
    gradient of the soft ones.

    >>> soft_rank(torch.tensor([3.0, 1.0, 2.0]), steepness=1000.0)
    tensor([2., 0., 1.])
    """
    relaxation = choose(algorithm, temperature, steepness, "soft_rank")
    lists = as_lists(scores, mask, "soft_rank", dim)
    with full_precision(lists.scores):
        result = relaxation.expected_ranks(lists.scores, descending, lists.mask)
    if hard:
        first, count = _descending_span(lists.scores, lists.mask, descending)
        result = straight_through((first + (count - 1) / 2).to(result.dtype), result)
    return as_they_came(result, lists, dim).to(scores.dtype)


def soft_topk(
    scores: Tensor,
    k: int,
    algorithm: AlgorithmName | Relaxation = "neuralsort",
    *,
    temperature: float | None = None,
    steepness: float | None = None,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    hard: bool = False,
) -> Tensor:
    """How much of each item is among the k largest along `dim`, Σ_{i<k} P_ij, of the shape of `scores`.

    The weights sum to k. With NeuralSort and SoftSort, whose columns do not sum to 1, one may exceed 1. With a `mask`
    of the shape of `scores`, True where an item exists, the others get 0, and the weights of a list of m < k items
    sum to m. `hard=True` gives 0 and 1, equal scores sharing what is left of k, with the gradient of the soft weights.

    >>> soft_topk(torch.tensor([3.0, 1.0, 2.0]), 2, temperature=0.01).round()
    tensor([1., 0., 1.])
    """
    relaxation = choose(algorithm, temperature, steepness, "soft_topk")
    lists = as_lists(scores, mask, "soft_topk", dim)
    k = check_count(k, lists.scores.shape[-1], "k", "soft_topk")
    with full_precision(lists.scores):
        result = relaxation.top_weights(lists.scores, k, largest, lists.mask)
    if hard:
        first, count = _descending_span(lists.scores, lists.mask, largest)
        result = straight_through(((k - first) / count.clamp(min=1)).clamp(0, 1).to(result.dtype), result)
    return as_they_came(result, lists, dim).to(scores.dtype)


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of `hard`, with the gradient of `soft`."""
    # The difference is exactly 0, so that no digit of the hard value is lost.
    return hard.detach() + (soft - soft.detach())


def _descending_span(scores: Tensor, mask: Tensor | None, descending: bool) -> tuple[Tensor, Tensor]:
    return rank_span(-scores.detach() if descending else scores.detach(), mask)
