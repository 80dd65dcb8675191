"""The expansion of a sorting loss in both numerics: which samples count, and the factor 1/N.

The derivatives of the stable loss are the relaxations' own; those of the reference loss are automatic,
because its value is torch's and its faults are to be those of prior work.
"""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from ..curvature import CurvatureKind, Expansion, empirical_fisher, expand
from ._relaxation import Relaxation

# Beyond this the squares and sums of a relaxation may overflow in float32: such a score is as good as ∞.
LARGEST = 1e12


def expand_stable(
    relaxation: Relaxation, scores: Tensor, target: Tensor, cells: Tensor, curvature: CurvatureKind | None
) -> Expansion:
    """The expansion in log space; samples with scores or targets that are not finite count nowhere."""
    usable = (scores.abs() <= LARGEST).all(-1) & target.isfinite().all(-1).all(-1)
    row, matrix = usable[:, None], usable[:, None, None]
    value, gradient, total = relaxation.derivatives(
        torch.where(row, scores, 0.0),
        torch.where(matrix, target, 0.0),
        # Without weight a sample has no loss and no derivative.
        torch.where(matrix, cells, 0.0),
        curvature == "hessian",
    )
    value, gradient = torch.where(usable, value, torch.nan), torch.where(row, gradient, torch.nan)
    if curvature == "fisher":
        return Expansion(value, gradient, empirical_fisher(gradient, usable))
    return Expansion(value, gradient, None if total is None else total / usable.sum().clamp(min=1))


def reference_cross_entropy(relaxation: Relaxation, scores: Tensor, target: Tensor, cells: Tensor) -> Tensor:
    """torch's binary cross-entropy on probabilities, `(..., n)` → `(...)`."""
    # A softmax may round to just above 1, which torch's function refuses.
    matrix = relaxation.probabilities(scores).clamp(max=1)
    # It refuses what is no number as well, and on CUDA that ends the process: the sample's loss is to be none instead.
    is_number = matrix == matrix
    entropy = binary_cross_entropy(torch.where(is_number, matrix, 0.5), target, reduction="none")
    return (cells * torch.where(is_number, entropy, torch.nan)).sum((-2, -1))


def expand_reference(
    relaxation: Relaxation, scores: Tensor, target: Tensor, cells: Tensor, curvature: CurvatureKind | None
) -> Expansion:
    """The expansion on probabilities, by automatic differentiation like that of any other loss."""

    def loss(scores: Tensor) -> Tensor:
        return reference_cross_entropy(relaxation, scores, target, cells)

    return expand(loss, scores, curvature=curvature)
