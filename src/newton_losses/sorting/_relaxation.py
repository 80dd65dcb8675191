"""What all relaxations of sorting have in common: log-weights in, a stochastic matrix out.

The three relaxations are `NeuralSort`, `SoftSort` and `SortingNetwork`, one file each.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from ..curvature import full_precision
from ._arguments import as_working, sorted_last
from ._cross_entropy import cross_entropy


class Relaxation(nn.Module):
    """A differentiable stand-in for the permutation matrix that sorts n scores.

    P[..., i, j] is the weight of item j at rank i: rows sum to 1, `sorted = P @ x`, ascending unless
    `descending=True`. A subclass gives `log_weights`, and `derivatives` for the gradients of
    `SortingLoss`.
    """

    @abstractmethod
    def log_weights(self, scores: Tensor) -> Tensor:
        """log P up to a constant of each row, ascending, `(..., n)` → `(..., n, n)`, in float64.

        Two log-weights may both be −10⁹ and differ by 1: float32 would lose that difference, and with it
        every derivative.
        """

    def probabilities(self, scores: Tensor) -> Tensor:
        """P as prior work computes it, ascending: plain probabilities in the precision of the scores."""
        return self.log_weights(scores).to(scores.dtype).softmax(-1)

    def cross_entropies(self, scores: Tensor, target: Tensor, cells: Tensor) -> Tensor:
        """Cross-entropies `(N,)` of `(N, n)` scores, recorded for automatic differentiation."""
        return cross_entropy(self.log_weights(scores), target, cells)

    @abstractmethod
    def derivatives(
        self, scores: Tensor, target: Tensor, cells: Tensor, hessian: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Cross-entropies `(N,)`, their gradients `(N, n)` and, if wanted, the sum of their Hessians."""

    def matrix(self, scores: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
        """P, of the shape of `scores` without `dim`, then `(n, n)`."""
        return self._distribution(scores, dim, descending).exp()

    def log_matrix(self, scores: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
        """log P, finite where P itself has long underflowed to 0."""
        return self._distribution(scores, dim, descending)

    def forward(self, scores: Tensor) -> Tensor:
        return self.matrix(scores)

    def _distribution(self, scores: Tensor, dim: int, descending: bool) -> Tensor:
        where = type(self).__name__
        scores = as_working(sorted_last(scores, dim, where), where)
        with full_precision(scores):
            logs = self.log_weights(scores).log_softmax(-1).to(scores.dtype)
        return logs.flip(-2) if descending else logs


def to_items(order: Tensor, by_rank: Tensor) -> Tensor:
    """The last dimension of `by_rank`, `(..., n, n)`, from sorted places to item numbers."""
    place = order.argsort(-1).unsqueeze(-2)
    return by_rank.gather(-1, place.expand_as(by_rank))


def to_ranks(order: Tensor, by_item: Tensor) -> Tensor:
    """The last dimension of `by_item`, `(..., n, n)`, from item numbers to sorted places."""
    return by_item.gather(-1, order.unsqueeze(-2).expand_as(by_item))


def sort_jacobian(order: Tensor, averages: Tensor) -> Tensor:
    """∂(sorted scores)/∂scores, `(N, n, n)`: a permutation matrix whose tied rows are averaged."""
    return averages.gather(-2, order.unsqueeze(-1).expand_as(averages))


def places(n: int, like: Tensor) -> Tensor:
    """0, 1, …, n−1 in the dtype and on the device of `like`."""
    return torch.arange(n, dtype=like.dtype, device=like.device)
