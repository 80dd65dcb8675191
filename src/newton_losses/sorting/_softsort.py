"""SoftSort (Prillo and Eisenschlos, 2020): rank i as a softmax around the i-th smallest score."""

import torch
from torch import Tensor

from .._arguments import positive_number, whole_number
from ..errors import ArgumentError
from ._log_space import as_wide, row_derivatives, row_hessian
from ._relaxation import average_ties, first_places, only_existing, sort_evenly, sort_jacobian, to_ranks
from ._row_chunks import SoftmaxRows


class SoftSort(SoftmaxRows):
    """SoftSort with `matrix` and `log_matrix`.

    P = softmax(−|sort(s)_i − s_j|^p / τ) over the items j, with p = 1 or 2 and the temperature τ. Rows
    sum to 1, columns do not; the temperature has the unit of the scores, or with p = 2 of their squares.

    >>> SoftSort(temperature=1e-3).matrix(torch.tensor([3.0, 1.0, 2.0]))
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [1., 0., 0.]])
    """

    def __init__(self, temperature: float = 0.1, p: int = 1) -> None:
        super().__init__()
        self.temperature = positive_number(temperature, "temperature", "SoftSort")
        self.p = whole_number(p, "p", "SoftSort", least=1)
        if self.p > 2:
            raise ArgumentError(f"SoftSort: p={p!r} is not known. Choose 1 or 2.")

    def row_weights(self, ascending: Tensor, start: int, stop: int) -> Tensor:
        return self._by_distance(ascending.unsqueeze(-2) - ascending[..., start:stop].unsqueeze(-1))

    def _by_distance(self, difference: Tensor) -> Tensor:
        distance = difference.abs() if self.p == 1 else difference.square()
        return -distance / self.temperature

    def derivatives(
        self, scores: Tensor, target: Tensor, cells: Tensor, hessian: bool, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        ascending, order = sort_evenly(as_wide(scores), mask)
        difference = ascending.unsqueeze(-2) - ascending.unsqueeze(-1)
        weights = only_existing(self._by_distance(difference), first_places(mask), mask)
        rows = row_derivatives(weights, to_ranks(order, target), to_ranks(order, cells))
        slope = ((difference.sign() if self.p == 1 else 2 * difference) / -self.temperature).to(scores.dtype)
        pulled = rows.gradient * slope
        by_sorted = pulled.sum(-2) - pulled.sum(-1)
        jacobian = sort_jacobian(order, average_ties(scores, mask))
        gradient = (jacobian * by_sorted.unsqueeze(-1)).sum(-2)
        if not hessian:
            return rows.value, gradient, None
        # [i, j, :]: the weight of place j at rank i depends on s_j − s_i alone.
        steps = jacobian.unsqueeze(1) - jacobian.unsqueeze(2)
        second = row_hessian(rows, slope.unsqueeze(-1) * steps)
        if self.p == 2:
            second = second + self._bend(rows.gradient, jacobian)
        return rows.value, gradient, second

    def _bend(self, gradient: Tensor, jacobian: Tensor) -> Tensor:
        """Σ_ij (∂ℓ/∂w_ij) ∂²w_ij for p = 2: a Laplacian with the weights −2/τ ∂ℓ/∂w."""
        both = (gradient + gradient.mT) * (-2 / self.temperature)
        laplacian = torch.diag_embed(both.sum(-1)) - both
        return (jacobian.mT @ laplacian @ jacobian).sum(0)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}, p={self.p}"


def softsort(
    scores: Tensor,
    temperature: float = 0.1,
    dim: int = -1,
    descending: bool = False,
    log: bool = False,
    *,
    p: int = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """The matrix P of SoftSort, or log P with `log=True`; see `SoftSort` for the formula.

    The shape is that of `scores` without `dim`, then `(n, n)`. Up to `p` the arguments are those of `neuralsort`.

    >>> softsort(torch.tensor([2.0, 0.0, 1.0])).argmax(-1)
    tensor([1, 2, 0])
    """
    relaxation = SoftSort(temperature, p)
    return (relaxation.log_matrix if log else relaxation.matrix)(scores, dim, descending, mask)
