"""Solving with a matrix that is known by its products alone, in the Krylov space of each row.

Lanczos for functions of the matrix that change its eigenvalues, minimal residuals where they stay as they are.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .._tracing import inside_vmap
from ._distributed import any_over
from ._forms import Products, widened

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Where results may be looked at, this many steps lie between two looks, each of which decomposes small matrices.
BETWEEN_LOOKS = 8
# The basis of as many rows as this many numbers hold (256 MiB in float32) is kept at once.
BASIS_ELEMENTS = 2**26

# From tridiagonal T `(K, j, j)`, right sides `(K, 1, j)` and λ `(K, 1, 1)` to solutions `(K, 1, j)`, all in float64.
SmallSolve = Callable[[Tensor, Tensor, Tensor], Tensor]


def solve_in_krylov_space(
    curvature: Products,
    rows: Tensor,
    damping: Tensor,
    solve: SmallSolve,
    iterations: int,
    tolerance: float,
    limit: float = 0.1,
) -> tuple[Tensor, Tensor]:
    """f(C) applied to each row of `rows`, `(K, m)`, where `solve(T, b, λ)` does so with small matrices T.

    Also which rows `(K,)` are far from their solution: more than `limit` of them is left over.

    After j steps of Lanczos from a row b, V `(j, m)` has orthonormal rows that span b, bC, …, bCʲ⁻¹, and
    T = VCVᵀ is tridiagonal. Then b f(C) ≈ ‖b‖ e₁ᵀ f(T) V. With a positive f ≤ 1/λ, that is never longer than b/λ
    and has a positive product with b, whatever j is: stopped early, it has less of the curvature, and descends all the
    same. `damping` is `(K, 1)`. On a CPU the loop ends when all rows have converged; elsewhere it runs its course,
    since looking would wait for the device.
    """
    steps = max(1, min(iterations, rows.shape[1]))
    together = max(1, BASIS_ELEMENTS // max(1, steps * rows.shape[1]))
    parts = zip(torch.split(rows, together), torch.split(damping, together), strict=True)
    found = [_solve_part(curvature, part, own, solve, steps, tolerance, limit) for part, own in parts]
    return torch.cat([solved for solved, _ in found]), torch.cat([far for _, far in found])


def _solve_part(
    curvature: Products, rows: Tensor, damping: Tensor, solve: SmallSolve, steps: int, tolerance: float, limit: float
) -> tuple[Tensor, Tensor]:
    norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    basis = torch.where(norm > 0, rows / norm, 0.0)[:, None]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    looks, largest = may_end_early(rows), torch.zeros_like(norm)
    while True:
        image = curvature.product(basis[:, -1])
        diagonal.append((image * basis[:, -1]).sum(1))
        largest = largest.maximum(torch.linalg.vector_norm(image, dim=1, keepdim=True))
        # Against all of the basis and twice: in floating point the three-term recurrence loses its orthogonality.
        for _ in range(2):
            image = image - _combined(basis @ image[:, :, None], basis)
        length = torch.linalg.vector_norm(image, dim=1, keepdim=True)
        # What is left of a space that is complete is rounding.
        going = length > 100 * torch.finfo(rows.dtype).eps * largest
        last = len(diagonal) == steps or (looks and not any_of(going, curvature.group))
        if last or (looks and len(diagonal) % BETWEEN_LOOKS == 0):
            coordinates = _coordinates(diagonal, beside, norm, damping, solve)
            remains, size = coordinates[:, -1].abs(), torch.linalg.vector_norm(coordinates, dim=1)
            if last or not any_of((remains > tolerance * size) & going[:, 0], curvature.group):
                # What is left of b in a linear system, and an estimate of it with other eigenvalues.
                left = remains * length[:, 0] > limit * norm[:, 0]
                return _combined(coordinates[:, :, None].to(basis.dtype), basis), left & going[:, 0]
        beside.append(torch.where(going, length, 0.0)[:, 0])
        basis = torch.cat([basis, torch.where(going, image / length, 0.0)[:, None]], dim=1)


def _combined(coordinates: Tensor, basis: Tensor) -> Tensor:
    """Σ_j coordinates_j · basis_j: `(K, j, 1)` and `(K, j, m)` to `(K, m)`."""
    return (coordinates.mT @ basis)[:, 0]


def _coordinates(
    diagonal: list[Tensor], beside: list[Tensor], norm: Tensor, damping: Tensor, solve: SmallSolve
) -> Tensor:
    """‖b‖ e₁ᵀ f(T), `(K, j)` in float64."""
    matrix = torch.diag_embed(widened(torch.stack(diagonal, dim=1)))
    if beside:
        off = widened(torch.stack(beside, dim=1))
        matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    first = torch.nn.functional.pad(widened(norm), (0, len(diagonal) - 1))
    return solve(matrix, first[:, None], widened(damping)[:, :, None])[:, 0]


def may_end_early(rows: Tensor) -> bool:
    """Whether a loop may end by what it finds: not on a device, while compiling, or under `torch.func.vmap`."""
    return rows.device.type == "cpu" and not torch.compiler.is_compiling() and not inside_vmap()


def any_of(flags: Tensor, group: "ProcessGroup | None") -> bool:
    return bool(flags.any()) if group is None else any_over(group, flags.any())


class _Rotation(NamedTuple):
    """One rotation of the plane for each row, by its cosine and sine, `(K, 1)`."""

    cosine: Tensor
    sine: Tensor


def solve_by_residuals(
    curvature: Products, rows: Tensor, damping: Tensor | float, iterations: int, tolerance: float
) -> Tensor:
    """The x in the growing Krylov spaces of each row b of `rows`, `(K, m)`, with the least ‖b − (C + λI)x‖.

    Lanczos makes the matrix tridiagonal, one product per step, and rotations make that triangular as it grows; only the
    last two vectors of each kind are kept (Paige and Saunders, 1975). Nothing divides by a product with the matrix,
    which may be zero where the matrix is indefinite. All rows go in step; one that has converged keeps its solution.
    On a CPU the loop ends when all have; elsewhere it runs its course, since looking would wait for the device.
    """
    looks = may_end_early(rows)
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
