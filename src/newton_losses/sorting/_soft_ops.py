"""Soft counterparts of `torch.sort`, ranking and `torch.topk`, made of any relaxation's matrix."""

import torch
from torch import Tensor

from ..curvature import full_precision
from ._arguments import check_count
from ._registry import AlgorithmName, choose
from ._relaxation import Relaxation, places


def soft_sort(
    scores: Tensor,
    algorithm: AlgorithmName | Relaxation = "neuralsort",
    *,
    temperature: float | None = None,
    steepness: float | None = None,
    dim: int = -1,
    descending: bool = False,
) -> Tensor:
    """P @ scores along `dim`: the sorted scores, of the same shape and dtype, differentiable by all of them.

    >>> soft_sort(torch.tensor([3.0, 1.0, 2.0]), "softsort", temperature=0.01)
    tensor([1., 2., 3.])
    """
    relaxation = choose(algorithm, temperature, steepness, "soft_sort")
    matrix = relaxation.matrix(scores, dim, descending)
    with full_precision(scores):
        # Differences to one score, so that large scores close to each other keep their digits.
        moved = scores.movedim(dim, -1).to(matrix.dtype)
        anchor = moved[..., :1].detach()
        ordered = (matrix * (moved - anchor).unsqueeze(-2)).sum(-1) + anchor
    return ordered.movedim(-1, dim).to(scores.dtype)


def soft_rank(
    scores: Tensor,
    algorithm: AlgorithmName | Relaxation = "logistic",
    *,
    temperature: float | None = None,
    steepness: float | None = None,
    dim: int = -1,
    descending: bool = False,
) -> Tensor:
    """The expected rank of each score along `dim`, from 0 to n−1, of the same shape and dtype.

    Σ_i i · P_ij / Σ_i P_ij: the columns are normalised, as those of NeuralSort and SoftSort do not sum
    to 1. A network's do.

    >>> soft_rank(torch.tensor([3.0, 1.0, 2.0]), steepness=1000.0)
    tensor([2., 0., 1.])
    """
    relaxation = choose(algorithm, temperature, steepness, "soft_rank")
    log_matrix = relaxation.log_matrix(scores, dim, descending)
    with full_precision(scores):
        rank = places(log_matrix.shape[-1], log_matrix).unsqueeze(-1)
        ranks = (log_matrix.softmax(-2) * rank).sum(-2)
    return ranks.movedim(-1, dim).to(scores.dtype)


def soft_topk(
    scores: Tensor,
    k: int,
    algorithm: AlgorithmName | Relaxation = "neuralsort",
    *,
    temperature: float | None = None,
    steepness: float | None = None,
    dim: int = -1,
    largest: bool = True,
) -> Tensor:
    """How much of each item is among the k largest along `dim`, Σ_{i<k} P_ij, of the shape of `scores`.

    The weights sum to k. With NeuralSort and SoftSort, whose columns do not sum to 1, one may exceed 1.

    >>> soft_topk(torch.tensor([3.0, 1.0, 2.0]), 2, temperature=0.01).round()
    tensor([1., 0., 1.])
    """
    relaxation = choose(algorithm, temperature, steepness, "soft_topk")
    matrix = relaxation.matrix(scores, dim, descending=largest)
    k = check_count(k, matrix.shape[-1], "k", "soft_topk")
    return matrix[..., :k, :].sum(-2).movedim(-1, dim).to(scores.dtype)


def log_column_weights(relaxation: Relaxation, scores: Tensor, descending: bool) -> Tensor:
    """log of the distribution of each item over ranks, `(..., n, n)`: columns of P, normalised."""
    log_matrix = relaxation.log_matrix(scores, -1, descending)
    return torch.log_softmax(log_matrix, -2)
