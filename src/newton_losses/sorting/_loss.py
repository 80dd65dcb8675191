"""`SortingLoss`: the cross-entropy between a relaxed permutation matrix and the order that is wanted."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..curvature import CurvatureKind, Expansion, full_precision
from ..errors import ArgumentError, ShapeError
from ._arguments import as_working, check_same_shape, sorted_last
from ._expansions import expand_reference, expand_stable, reference_cross_entropy
from ._fast_gradient import sorting_cross_entropy
from ._hard_ranks import Ties, cell_weights, check_ties, target_matrix
from ._registry import AlgorithmName, choose
from ._relaxation import Relaxation

Numerics = Literal["stable", "reference"]


class SortingLoss(nn.Module):
    """Learn to order items from the order alone: `loss(scores, values)`, `(..., n)` → `(...)`.

    ℓ = 1/n² Σ_ij [−Q_ij log P_ij − (1−Q_ij) log(1−P_ij)], the mean over the n×n cells of a sample, with P
    the relaxed permutation matrix of the scores and Q the matrix of the order of `values`. Only the order
    of the values matters, so ranks (0 for the item that is to be first) are values as good as any; pass
    them by position, or as `ranks=` to say so.

    - `algorithm`: "neuralsort" or "softsort" with a `temperature`; "logistic", "cauchy" or another
      distribution for an odd-even network with a `steepness`; or a relaxation object.
    - `numerics`: "stable" computes in log space and is finite, with its derivatives, at any spread of the
      scores. "reference" is torch's binary cross-entropy on probabilities in the precision of the
      scores, what prior work trained with; it is there to reproduce it.
    - `ties` among the values: "share" gives tied items equal parts of their ranks, "mask" leaves the
      cells that the tie makes ambiguous out of the mean.

    >>> loss = SortingLoss("logistic", steepness=10.0)
    >>> loss(torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[1.0, 5.0, 9.0]]))
    tensor([0.3...])
    """

    def __init__(
        self,
        algorithm: AlgorithmName | Relaxation,
        *,
        temperature: float | None = None,
        steepness: float | None = None,
        numerics: Numerics = "stable",
        ties: Ties = "share",
    ) -> None:
        super().__init__()
        if numerics not in ("stable", "reference"):
            raise ArgumentError(f"SortingLoss: numerics={numerics!r} is not known. Choose 'stable' or 'reference'.")
        self.relaxation = choose(algorithm, temperature, steepness, "SortingLoss")
        self.numerics = numerics
        self.ties = check_ties(ties, "SortingLoss")

    def forward(self, scores: Tensor, values: Tensor | None = None, *, ranks: Tensor | None = None) -> Tensor:
        scores, target, cells = self._prepare(scores, values, ranks)
        with full_precision(scores):
            if self.numerics == "stable":
                n = scores.shape[-1]
                count = scores.shape[:-1].numel()
                flat = scores.reshape(count, n), target.reshape(count, n, n), cells.reshape(count, n, n)
                return sorting_cross_entropy(self.relaxation, *flat).reshape(scores.shape[:-1])
            return reference_cross_entropy(self.relaxation, scores, target, cells)

    def expand(self, y: Tensor, *targets: Any, curvature: CurvatureKind | None = "hessian") -> Expansion:
        """Values, per-sample gradients and the batch's curvature at y `(N, n)`, without a graph.

        The curvature has the factor 1/N: (1/N) Σ ∇²ℓᵢ, or the empirical Fisher (1/N) Σ ∇ℓᵢ∇ℓᵢᵀ. Samples
        whose derivatives are not finite, as after a NaN score, are left out of it, and of N.

        >>> loss = SortingLoss("softsort", temperature=1.0)
        >>> loss.expand(torch.zeros(4, 3), torch.rand(4, 3)).curvature.shape
        torch.Size([3, 3])
        """
        if y.ndim != 2:
            raise ShapeError(f"SortingLoss.expand: scores have shape {tuple(y.shape)}, not (N, n).")
        if curvature not in ("hessian", "fisher", None):
            raise ArgumentError(
                f"SortingLoss.expand: curvature={curvature!r} is unknown. Choose 'hessian', 'fisher' or None."
            )
        with torch.no_grad():
            scores, target, cells = self._prepare(y.detach(), *targets)
            with full_precision(scores):
                expand = expand_stable if self.numerics == "stable" else expand_reference
                return expand(self.relaxation, scores, target, cells, curvature)

    def _prepare(
        self, scores: Tensor, values: Tensor | None = None, ranks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if (values is None) == (ranks is None):
            raise ArgumentError("SortingLoss: pass the wanted order either as values or as ranks.")
        order = values if values is not None else ranks
        assert order is not None
        check_same_shape(scores, order, "SortingLoss", "values" if ranks is None else "ranks")
        scores = as_working(sorted_last(scores, -1, "SortingLoss"), "SortingLoss")
        target = target_matrix(order.detach(), scores.dtype)
        return scores, target, cell_weights(target, self.ties)

    def extra_repr(self) -> str:
        return f"numerics={self.numerics!r}, ties={self.ties!r}"
