"""Solving (C + λI) x = b by products alone, with the eigenvalues as they are: the method of minimal residuals."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._forms import Products
from ._krylov import any_of, may_look


class _Rotation(NamedTuple):
    """One rotation of the plane for each row, by its cosine and sine, `(K, 1)`."""

    cosine: Tensor
    sine: Tensor


def solve_by_residuals(
    curvature: Products, rows: Tensor, damping: Tensor | float, iterations: int, tolerance: float
) -> Tensor:
    """The x in the growing Krylov spaces of each row b of `rows`, `(K, m)`, with the least ‖b − (C + λI)x‖.

    Lanczos makes the matrix tridiagonal, one product a step, and rotations make that triangular as it grows; only the
    last two vectors of each kind are kept (Paige and Saunders, 1975). Nothing divides by a product with the matrix,
    which may be zero where the matrix is indefinite. All rows go in step; one that has converged keeps its solution.
    On a CPU the loop ends when all have; elsewhere it runs its course, since looking would wait for the device.
    """
    looks = may_look(rows)
    norm = _norm(rows)
    solution, zero = torch.zeros_like(rows), torch.zeros_like(norm)
    before, vector, beside = torch.zeros_like(rows), _ratio(rows, norm), zero
    far, near = torch.zeros_like(rows), torch.zeros_like(rows)  # the two last search directions
    older = newer = _Rotation(torch.ones_like(norm), zero)
    residual = norm  # its size, with the sign of the rotations so far
    for _ in range(min(iterations, 4 * rows.shape[1])):
        active = residual.abs() > tolerance * norm
        if looks and not any_of(active, curvature.group):
            break
        image = curvature.product(vector) + damping * vector - beside * before
        diagonal = (image * vector).sum(1, keepdim=True)
        image = image - diagonal * vector
        following = _norm(image)
        # The new column of the tridiagonal matrix, turned by the two last rotations and by its own.
        second = older.sine * beside
        turned = older.cosine * beside
        first = newer.cosine * turned + newer.sine * diagonal
        own = newer.cosine * diagonal - newer.sine * turned
        length = torch.hypot(own, following)
        rotation = _Rotation(_ratio(own, length), _ratio(following, length))
        direction = _ratio(vector - second * far - first * near, length)
        solution = solution + torch.where(active, rotation.cosine * residual, 0.0) * direction
        residual = torch.where(active, -rotation.sine * residual, residual)
        before, vector, beside = vector, _ratio(image, following), following
        far, near, older, newer = near, direction, newer, rotation
    return solution


def _norm(rows: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return found


def _ratio(rows: Tensor, by: Tensor) -> Tensor:
    """`rows / by`, and zero where that is zero: such a row has come to its end."""
    ended = by == 0
    return torch.where(ended, 0.0, rows / torch.where(ended, 1.0, by))
