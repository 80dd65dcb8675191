"""NeuralSort (Grover et al., 2019): rank i as a softmax around the i-th order statistic.

The textbook form subtracts sums of large distances from each other. Here the same function is written
over the gaps between neighbours in sorted order, a sum of terms of one sign, which cannot cancel.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._arguments import positive_number
from ._log_space import as_wide, row_derivatives, row_hessian
from ._relaxation import average_ties, first_places, only_existing, places, sort_evenly, sort_jacobian, to_ranks
from ._row_chunks import SoftmaxRows


def gap_weights(ascending: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
    """NeuralSort's logits at temperature 1 for sorted scores, less each row's largest, `(..., rows, n)`.

    −Σ |2(r−i)+1| (s_{r+1} − s_r) over the gaps r between places i and j: 0 at j = i, negative elsewhere. The rows are
    the ranks i from `start` to before `stop`.
    """
    gaps = ascending.diff(dim=-1).unsqueeze(-2)
    rank = places(ascending.shape[-1], ascending)[start:stop].unsqueeze(-1)
    gap = places(ascending.shape[-1] - 1, ascending)
    costs = (2 * (gap - rank) + 1).abs() * gaps
    above = torch.where(gap >= rank, costs, 0.0).cumsum(-1)
    below = torch.where(gap < rank, costs, 0.0).flip(-1).cumsum(-1).flip(-1)
    return -(pad(above, (1, 0)) + pad(below, (0, 1)))


class NeuralSort(SoftmaxRows):
    """NeuralSort with `matrix` and `log_matrix`.

    For k = 1 … n in descending order, P[k] = softmax(((n+1−2k) s − A 1)/τ) with A_ij = |s_i − s_j| and
    the temperature τ. Rows sum to 1, columns do not; the temperature has the unit of the scores.

    >>> NeuralSort(temperature=1e-3).matrix(torch.tensor([3.0, 1.0, 2.0]))
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [1., 0., 0.]])
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = positive_number(temperature, "temperature", "NeuralSort")

    def row_weights(self, ascending: Tensor, start: int, stop: int) -> Tensor:
        return gap_weights(ascending, start, stop) / self.temperature

    def derivatives(
        self, scores: Tensor, target: Tensor, cells: Tensor, hessian: bool, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        ascending, order = sort_evenly(as_wide(scores), mask)
        weights = only_existing(gap_weights(ascending) / self.temperature, first_places(mask), mask)
        rows = row_derivatives(weights, to_ranks(order, target), to_ranks(order, cells))
        tangents, jacobian = self._tangents(scores), sort_jacobian(order, average_ties(scores, mask))
        by_sorted = (rows.gradient.unsqueeze(-1) * tangents).sum((-3, -2))
        gradient = (jacobian * by_sorted.unsqueeze(-1)).sum(-2)
        if not hessian:
            return rows.value, gradient, None
        second = row_hessian(rows, tangents @ jacobian.unsqueeze(1))
        return rows.value, gradient, second

    def _tangents(self, scores: Tensor) -> Tensor:
        """∂(log-weight of place j at rank i)/∂(sorted score k), `(n, n, n)`: the same for every sample."""
        place = places(scores.shape[-1], scores)
        rank, item, score = place[:, None, None], place[None, :, None], place
        own = 2 * (rank - item) * (item == score)
        return (own + (item - score).sign() - (rank - score).sign()) / self.temperature

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"


def neuralsort(
    scores: Tensor,
    temperature: float = 1.0,
    dim: int = -1,
    descending: bool = False,
    log: bool = False,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """The matrix P of NeuralSort, or log P with `log=True`; see `NeuralSort` for the formula.

    The shape is that of `scores` without `dim`, then `(n, n)`. `mask`, shaped like `scores`, says which items exist.

    >>> neuralsort(torch.tensor([2.0, 0.0, 1.0])).argmax(-1)
    tensor([1, 2, 0])
    """
    relaxation = NeuralSort(temperature)
    return (relaxation.log_matrix if log else relaxation.matrix)(scores, dim, descending, mask)
