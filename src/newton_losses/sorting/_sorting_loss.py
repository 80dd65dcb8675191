"""`SortingLoss`: the cross-entropy between a relaxed permutation matrix and the wanted order.

Its value and gradient come from the relaxation's closed form ("stable" numerics), or from torch's cross-entropy on
probabilities ("reference" numerics), which is what prior work trained with, faults included.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy

from .._arguments import one_of, real_tensor
from .._by_hand import by_hand
from ..curvature import (
    CurvatureKind,
    Exchangeable,
    Expansion,
    empirical_fisher,
    exchangeable_fisher,
    expand_bound,
    full_precision,
)
from ..errors import ArgumentError, ShapeError
from ._lists import as_values, nan_where_unknown, paired_lists, rank_span
from ._registry import AlgorithmName, choose
from ._relaxation import Relaxation, existing_cells

Numerics = Literal["stable", "reference"]
Ties = Literal["share", "mask"]

# Beyond this, squares and sums inside a relaxation may overflow in float32: such a score is treated like ∞.
LARGEST = 1e12


class SortingLoss(nn.Module):
    """Learn scores from the order of the items alone: `loss(scores, values)`, `(..., n)` → `(...)`.

    ℓ = 1/n² Σ_ij [−Q_ij log P_ij − (1−Q_ij) log(1−P_ij)], the mean over the n×n cells of a sample, with P
    the relaxed permutation matrix of the scores and Q the matrix of the order of `values`. Only the order
    of the values matters, so ranks (0 for the item that comes first) work as well; pass them by position,
    or as `ranks=` to be explicit.

    - `algorithm`: "neuralsort" or "softsort" with a `temperature`; "logistic", "cauchy" or another
      distribution for an odd-even network with a `steepness`; or a relaxation object.
    - `numerics`: "stable" computes in log space and is finite, with its derivatives, at any spread of the
      scores. "reference" is torch's binary cross-entropy on probabilities in the precision of the
      scores: what prior work trained with, kept to reproduce it.
    - `ties` among the values: "share" gives tied items equal parts of their ranks, "mask" leaves the
      cells that the tie makes ambiguous out of the mean.

    Lists of different lengths are padded, with a `mask` `(..., n)` that is True where an item exists, or come as
    nested tensors. n is then the length of the list itself; an empty list has the loss 0.

    Items are a set, so the curvature of a Newton loss is averaged over their orders (`newton_losses.curvature.
    Exchangeable`): the result does not depend on how they are stored. `exchangeable=False` takes the curvature of
    the outputs as they come, as the paper does. A network's own matrix depends on the stored order in any case.

    >>> loss = SortingLoss("logistic", steepness=10.0)
    >>> loss(torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[1.0, 5.0, 9.0]]))
    tensor([0.3...])
    """

    takes_mask = True

    def __init__(
        self,
        algorithm: AlgorithmName | Relaxation,
        *,
        temperature: float | None = None,
        steepness: float | None = None,
        numerics: Numerics = "stable",
        ties: Ties = "share",
        exchangeable: bool = True,
    ) -> None:
        super().__init__()
        self.numerics: Numerics = one_of(numerics, ("stable", "reference"), "numerics", "SortingLoss")
        self.ties: Ties = one_of(ties, ("share", "mask"), "ties", "SortingLoss")
        self.relaxation = choose(algorithm, temperature, steepness, "SortingLoss")
        self.exchangeable = exchangeable

    def forward(
        self,
        scores: Tensor,
        values: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        ranks: Tensor | None = None,
    ) -> Tensor:
        scores, target, cells, mask = self._prepare(scores, values, mask, ranks)
        with full_precision(scores):
            if self.numerics == "stable":
                n = scores.shape[-1]
                count = scores.shape[:-1].numel()
                flat = scores.reshape(count, n), target.reshape(count, n, n), cells.reshape(count, n, n)
                rows = None if mask is None else mask.reshape(count, n)
                return sorting_cross_entropy(self.relaxation, *flat, rows).reshape(scores.shape[:-1])
            return reference_cross_entropy(self.relaxation, scores, target, cells, mask)

    def expand(
        self,
        y: Tensor,
        *targets: Any,
        curvature: CurvatureKind | None = "hessian",
        exchangeable: bool = False,
        **named: Tensor,
    ) -> Expansion:
        """Values, per-sample gradients and the batch's curvature at y `(N, n)`, without a graph.

        The curvature has the factor 1/N: (1/N) Σ ∇²ℓᵢ, or the empirical Fisher (1/N) Σ ∇ℓᵢ∇ℓᵢᵀ; with `exchangeable`,
        averaged over the orders of the items. Samples with non-finite derivatives, such as those with a NaN score,
        count neither in it nor in N. After `y` come the values and the mask, by position or by name.

        >>> loss = SortingLoss("softsort", temperature=1.0)
        >>> loss.expand(torch.zeros(4, 3), torch.rand(4, 3)).curvature.dense().shape
        torch.Size([3, 3])
        """
        if y.ndim != 2:
            raise ShapeError(f"SortingLoss.expand: scores have shape {tuple(y.shape)}, not (N, n).")
        if curvature not in ("hessian", "fisher", None):
            raise ArgumentError(
                f"SortingLoss.expand: curvature={curvature!r} is unknown. Choose 'hessian', 'fisher' or None."
            )
        with torch.no_grad():
            scores, target, cells, mask = self._prepare(y.detach(), *targets, **named)
            with full_precision(scores):
                if self.numerics == "stable" and (mask is None or exchangeable or curvature is None):
                    choice = mask, curvature, exchangeable
                    return expand_stable(self.relaxation, scores, target, cells, *choice)
                others = target, cells, mask
                return expand_bound(self._value, scores, others, curvature, None, None, mask, exchangeable)

    def _value(self, scores: Tensor, target: Tensor, cells: Tensor, mask: Tensor | None) -> Tensor:
        """The loss of prepared lists `(N, n)`, recorded for automatic differentiation."""
        if self.numerics == "stable":
            return self.relaxation.cross_entropies(scores, target, cells, *given(mask))
        return reference_cross_entropy(self.relaxation, scores, target, cells, mask)

    def _prepare(
        self,
        scores: Tensor,
        values: Tensor | None = None,
        mask: Tensor | None = None,
        ranks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        if (values is None) == (ranks is None):
            raise ArgumentError("SortingLoss: pass the wanted order either as values or as ranks.")
        order = values if values is not None else ranks
        assert order is not None
        lists, order = paired_lists(scores, order, mask, "SortingLoss", "values" if ranks is None else "ranks")
        self.relaxation.check_size(lists.scores)
        target = target_matrix(order.detach(), lists.scores.dtype, lists.mask)
        cells = cell_weights(target, self.ties, lists.mask)
        return lists.scores, nan_where_unknown(target, order, lists.mask), cells, lists.mask

    def extra_repr(self) -> str:
        return f"numerics={self.numerics!r}, ties={self.ties!r}"


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
    values, mask, _ = as_values(values, mask, "target_matrix", "values")
    first, count = rank_span(values, mask)
    rank = torch.arange(values.shape[-1], device=values.device).unsqueeze(-1)
    first, count = first.unsqueeze(-2), count.unsqueeze(-2)
    inside = (rank >= first) & (rank < first + count)
    share = count if mask is None else count.clamp(min=1)
    return inside.to(dtype or torch.get_default_dtype()) / share


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


def given(mask: Tensor | None) -> tuple[Tensor, ...]:
    """A mask as the last arguments of a call. Relaxations of users that know none still work without one."""
    return () if mask is None else (mask,)


def sorting_cross_entropy(
    relaxation: Relaxation, scores: Tensor, target: Tensor, cells: Tensor, mask: Tensor | None
) -> Tensor:
    """The cross-entropy `(N,)` of the relaxed order of `(N, n)` scores.

    Automatic differentiation of a sorting network records some three hundred operators and runs as many backwards. The
    relaxation's closed form takes half the work, and computes the gradient along with the value.
    """

    def recorded(scores: Tensor) -> Tensor:
        return relaxation.cross_entropies(scores, target, cells, *given(mask))

    def value_and_pullback(scores: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        value, gradient, _ = relaxation.derivatives(scores, target, cells, False, *given(mask))
        return value, lambda slope: slope.unsqueeze(-1) * gradient

    if not (torch.is_grad_enabled() and scores.requires_grad):
        return recorded(scores)
    return by_hand(scores, recorded, value_and_pullback)


def expand_stable(
    relaxation: Relaxation,
    scores: Tensor,
    target: Tensor,
    cells: Tensor,
    mask: Tensor | None,
    curvature: CurvatureKind | None,
    exchangeable: bool,
) -> Expansion:
    """The expansion in log space. Samples with non-finite scores or targets are left out of the curvature."""
    usable = (scores.abs() <= LARGEST).all(-1) & target.isfinite().all(-1).all(-1)
    row, matrix = usable[:, None], usable[:, None, None]
    value, gradient, total = relaxation.derivatives(
        torch.where(row, scores, 0.0),
        torch.where(matrix, target, 0.0),
        # A sample without weight has no loss and no derivative.
        torch.where(matrix, cells, 0.0),
        curvature == "hessian",
        *given(mask),
    )
    value, gradient = torch.where(usable, value, torch.nan), torch.where(row, gradient, torch.nan)
    if mask is not None:
        gradient = torch.where(mask, gradient, 0.0)
    if curvature == "fisher":
        if exchangeable:
            return Expansion(value, gradient, exchangeable_fisher(gradient, mask=mask, value=value))
        return Expansion(value, gradient, empirical_fisher(gradient, usable))
    if total is None:
        return Expansion(value, gradient)
    if exchangeable:
        return Expansion(value, gradient, shift_invariant_curvature(total, usable, mask))
    return Expansion(value, gradient, total / usable.sum().clamp(min=1))


def shift_invariant_curvature(total: Tensor, usable: Tensor, mask: Tensor | None) -> Exchangeable:
    """From Σ Hᵢ of a loss that no shift of all scores of a list changes: Hᵢ1 = 0, so that only its trace counts."""
    size = total.shape[-1]
    length = torch.full_like(usable, size, dtype=total.dtype) if mask is None else mask.sum(-1).to(total.dtype)
    lists, freedom = (usable & (length > 0)).sum().to(total.dtype), ((length - 1).clamp(min=0) * usable).sum()
    among = total.diagonal().sum() / freedom.clamp(min=1)
    return Exchangeable(among, torch.zeros_like(among), size, lists, freedom, mask)


def reference_cross_entropy(
    relaxation: Relaxation, scores: Tensor, target: Tensor, cells: Tensor, mask: Tensor | None
) -> Tensor:
    """torch's binary cross-entropy on probabilities, `(..., n)` → `(...)`."""
    # A softmax may round to just above 1, which torch's function refuses.
    matrix = relaxation.probabilities(scores, *given(mask)).clamp(max=1)
    # It also refuses NaN, and on CUDA that ends the process: here the sample's loss becomes NaN instead.
    if mask is not None:
        matrix = torch.where(cells > 0, matrix, 0.5)
    is_number = (matrix == matrix) & (target == target)
    matrix, target = (torch.where(is_number, one, 0.5) for one in (matrix, target))
    entropy = binary_cross_entropy(matrix, target, reduction="none")
    return (cells * torch.where(is_number, entropy, torch.nan)).sum((-2, -1))
