"""Soft counterparts of `torch.sort`, ranking and `torch.topk`, for any relaxation, any list and any length.

All three return the shape, dtype and layout of the scores. `mask`, of their shape, is True where an item exists, and
nested tensors say so themselves: what does not exist is 0 and has no gradient. With `hard=True` the value is the hard
one and the gradient that of the soft one, the straight-through estimator. What a relaxation computes is in its own
file, and for matrices in `_relaxation.py`.
"""

import torch
from torch import Tensor

from ..curvature import full_precision
from ._lists import as_lists, as_they_came, check_count, downwards, rank_span
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
    """The sorted scores along `dim`, P @ scores; each depends on all of them.

    With a `mask`, the m items that exist fill the first m ranks of their list. `hard=True` is `torch.sort`, with the
    gradient of the soft sort.

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
    """The expected rank of each score along `dim`, from 0 to n−1: Σ_i i · P_ij / Σ_i P_ij.

    The columns are normalised, as those of NeuralSort and SoftSort do not sum to 1. With a `mask`, items are ranked
    among those that exist. `hard=True` gives whole ranks, of which equal scores share the mean, with the gradient of
    the soft ones.

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
    """How much of each item is among the k largest along `dim`, Σ_{i<k} P_ij.

    The weights sum to k, or to m in a list of m < k items. With NeuralSort and SoftSort, whose columns do not sum to 1,
    one may exceed 1. `hard=True` gives 0 and 1, equal scores sharing what is left of k, with the gradient of the soft
    weights.

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
    """First rank and number of ranks of each item, from the largest score on if `descending`."""
    return rank_span(downwards(scores.detach()) if descending else scores.detach(), mask)
