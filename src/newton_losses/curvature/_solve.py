"""Solving (C + λI) x = b for the rows b of a batch, by the form that the curvature has.

Nothing here reads a tensor back to the host: a factorisation that fails gives non-finite rows, which
the caller leaves out. The small systems are solved in float64 where the device has it: it costs
nothing at these sizes, and a λ of 1e-6 next to a curvature of 1e3 keeps its meaning.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from ._distributed import gather_numbers, gather_rows
from ._forms import Curvature, Dense, Exchangeable, LowRank, Masked, OwnParts, Products, symmetric, wide_dtype
from ._iterative import any_of, may_end_early, solve_by_residuals, solve_in_krylov_space
from ._lists import CELLS_AT_ONCE
from ._options import Spectrum, check_spectrum
from ._small_solve import Kind, is_small, solve_small

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# The largest space in which eigenvalues are told apart where only products are known: its basis is stored.
KRYLOV_STEPS = 50
# A matrix of this size is made from its products where they do not lead to a solution; on CUDA, where one cannot see
# that without waiting, where it takes fewer products than this many steps for every row.
LARGEST_DIRECT, FEW_STEPS = 1024, 16
# The part of a right side, or of its solution, that may be left over.
UNSOLVED = 0.1


def damped_solve(
    curvature: Curvature,
    rows: Tensor,
    damping: Tensor | float,
    spectrum: Spectrum = "raw",
    *,
    iterations: int = 100,
    tolerance: float = 1e-6,
) -> Tensor:
    """(C + λI)⁻¹ applied to each row of `rows`, `(K, m)` to `(K, m)`.

    `spectrum` says what becomes of the negative eigenvalues of an indefinite C: they stay ("raw"),
    lose their sign ("absolute") or become zero ("clip"). `iterations` and `tolerance` are those of the
    iterative solvers that serve `Products`; a tolerance is relative to the row's norm.

    >>> from newton_losses.curvature import Dense
    >>> damped_solve(Dense(torch.tensor([[3.0, 0.0], [0.0, -3.0]])), torch.ones(1, 2), 1.0, "absolute")
    tensor([[0.2500, 0.2500]])
    """
    check_spectrum(spectrum)
    if isinstance(curvature, Exchangeable):
        return _solve_exchangeable(curvature, rows, damping, spectrum)
    if isinstance(curvature, Masked):
        return _solve_masked(curvature, rows, damping, spectrum)
    if isinstance(curvature, OwnParts):
        return _solve_own_parts(curvature, rows, damping)
    if isinstance(curvature, Products):
        solve_rows = partial(_solve_products, curvature, spectrum=spectrum, iterations=iterations, tolerance=tolerance)
        if curvature.group is not None:
            return _solve_together(curvature.group, rows, damping, solve_rows)
        return solve_rows(rows, damping)
    if isinstance(curvature, Dense) and is_small(curvature.matrix, rows, damping):
        kind: Kind = "definite" if curvature.semidefinite else spectrum
        return solve_small(curvature.matrix, rows, damping, kind)
    dtype = wide_dtype(rows.device)
    if isinstance(damping, Tensor):
        damping = damping.to(dtype)
    wide = rows.to(dtype)
    if isinstance(curvature, LowRank):
        return _woodbury(curvature.factor.to(dtype), wide, damping).to(rows.dtype)
    matrix = curvature.matrix.to(dtype)
    if curvature.semidefinite:
        return _cholesky(matrix, wide, damping).to(rows.dtype)
    if spectrum == "raw":
        return _lu(_damped(matrix, damping), wide).to(rows.dtype)
    return _definite_part(matrix, spectrum, damping, wide).to(rows.dtype)


def _solve_exchangeable(curvature: Exchangeable, rows: Tensor, damping: Tensor | float, spectrum: Spectrum) -> Tensor:
    """In closed form: the two eigenvalues are known, and so are their directions."""
    values = torch.stack([curvature.among, curvature.common])
    if spectrum != "raw":
        values = values.abs() if spectrum == "absolute" else values.clamp(min=0)
    among, common = (1 / (values + damping)).unbind()
    return curvature.scaled(rows.to(values.dtype), among, common).to(rows.dtype)


def _solve_own_parts(curvature: OwnParts, rows: Tensor, damping: Tensor | float) -> Tensor:
    """Row i with sample i's own part, of rank one: what lies along its gradient is shortened, the rest is not."""
    own = curvature.rows()
    square, count = own.square().sum(1, keepdim=True), curvature.summed()[3].clamp(min=1)
    along = (rows * own).sum(1, keepdim=True) / torch.where(square > 0, square, 1.0) * own
    return ((rows - along) / damping + along / (damping + square / count)).to(rows.dtype)


def _solve_masked(curvature: Masked, rows: Tensor, damping: Tensor | float, spectrum: Spectrum) -> Tensor:
    """One system per sample. Outputs that do not exist have λ alone on their diagonal, and nothing on the right."""
    wide, matrix = torch.where(curvature.mask, rows, 0.0).to(curvature.matrix.dtype), curvature.matrix
    at_once = max(1, CELLS_AT_ONCE // max(1, matrix.numel()))
    solved = []
    for start in range(0, len(rows), at_once):
        parts, right = curvature.parts(start, start + at_once), wide[start : start + at_once].unsqueeze(1)
        if curvature.semidefinite:
            found = _cholesky(parts, right, damping)
        elif spectrum == "raw":
            found = _lu(_damped(parts, damping), right)
        else:
            found = _definite_part(parts, spectrum, damping, right)
        solved.append(found.squeeze(1))
    return torch.where(curvature.mask, torch.cat(solved), 0.0).to(rows.dtype) if solved else rows


def _damped(matrix: Tensor, damping: Tensor | float) -> Tensor:
    return matrix + damping * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _lu(matrix: Tensor, rows: Tensor) -> Tensor:
    """For what is symmetric but perhaps indefinite: Cholesky would not do."""
    solved: Tensor = torch.linalg.solve_ex(matrix, rows.mT)[0]
    return solved.mT


def _cholesky(matrix: Tensor, rows: Tensor, damping: Tensor | float) -> Tensor:
    if is_small(matrix, rows, damping):
        return solve_small(matrix, rows, damping, "definite")
    damped = _damped(matrix, damping)
    factor, failed = torch.linalg.cholesky_ex(damped)
    if matrix.dim() == 2:
        solved = torch.cholesky_solve(rows.mT, factor).mT
    else:  # of a batch that one allocates on CUDA, and could not be captured
        halfway = torch.linalg.solve_triangular(factor, rows.mT, upper=False)
        solved = torch.linalg.solve_triangular(factor.mT, halfway, upper=True).mT
    return torch.where(has_inverse(damped, factor, failed)[..., None, None], solved, torch.nan)


def has_inverse(matrix: Tensor, factor: Tensor, failed: Tensor) -> Tensor:
    """Whether the Cholesky factor of a definite matrix is more than rounding.

    A pivot is what the rows above leave of its diagonal entry. If that is no more than the rounding of m products, as
    where λ is lost beside C, a factorisation succeeds or fails by chance, and what it solves has no digit.
    """
    left = factor.diagonal(dim1=-2, dim2=-1).square() / matrix.diagonal(dim1=-2, dim2=-1)
    return (failed == 0) & (left > factor.shape[-1] * torch.finfo(factor.dtype).eps).all(-1)


def _woodbury(factor: Tensor, rows: Tensor, damping: Tensor | float) -> Tensor:
    """(AᵀA + λI)⁻¹b = (b − Aᵀ(AAᵀ + λI)⁻¹Ab) / λ: a K×K system instead of an m×m one."""
    inner = _cholesky(factor @ factor.mT, rows @ factor.mT, damping)
    return (rows - inner @ factor) / damping


def solve_gradients(curvature: LowRank, count: int, damping: Tensor | float) -> Tensor:
    """(AᵀA + λI)⁻¹gᵢ for the `count` gradients that the factor itself is made of, gᵢ = scale · A[first + i].

    (AᵀA + λI)⁻¹Aᵀ = Aᵀ(AAᵀ + λI)⁻¹: nothing is subtracted, so that this stays right where ‖C‖ is so many
    orders above λ that the general formula, which takes the difference of two nearly equal numbers
    and divides it by λ, has no digit left.
    """
    assert curvature.scale is not None
    dtype = wide_dtype(curvature.factor.device)
    factor = curvature.factor.to(dtype)
    damping = damping.to(dtype) if isinstance(damping, Tensor) else damping
    own = torch.eye(len(factor), dtype=dtype, device=factor.device)[curvature.first : curvature.first + count]
    inner = _cholesky(factor @ factor.mT, own * curvature.scale.to(dtype), damping)
    return inner @ factor


def _definite_part(matrix: Tensor, spectrum: Spectrum, damping: Tensor | float, rows: Tensor) -> Tensor:
    """For one matrix and its rows, or for a batch of both with a λ each, `(K, 1, 1)`."""
    if matrix.device.type == "cpu":
        values, vectors = torch.linalg.eigh(torch.where(torch.isfinite(matrix), matrix, 0.0))
        values = values.abs() if spectrum == "absolute" else values.clamp(min=0)
        solved = ((rows @ vectors) / (values[..., None, :] + damping)) @ vectors.mT
        return torch.where(torch.isfinite(matrix).all(-1).all(-1)[..., None, None], solved, torch.nan)
    # On a device, torch's eigh waits to check for errors, so it could not be captured in a graph.
    return _cholesky(definite_of(matrix, spectrum), rows, damping)


def definite_of(matrix: Tensor, spectrum: str) -> Tensor:
    """|C|, or for "clip" (|C| + C)/2, without eigenvalues."""
    absolute = symmetric(matrix @ matrix_sign(matrix))
    return absolute if spectrum == "absolute" else (absolute + matrix) / 2


def _solve_together(
    group: "ProcessGroup", rows: Tensor, damping: Tensor | float, solve_rows: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Every rank solves for the rows of all, since each product needs all ranks at the same rows.

    A row travels with its own damping, which a rule may have made different from rank to rank.
    """
    column = _column(damping, rows)
    sizes = [size for (size,) in gather_numbers(group, torch.tensor([len(rows)], device=rows.device))]
    gathered = torch.cat(gather_rows(group, torch.cat([rows, column], dim=1), sizes))
    solved = solve_rows(gathered[:, :-1], gathered[:, -1:])
    own: Tensor = torch.split(solved, sizes)[dist.get_rank(group)]
    return own


def _column(damping: Tensor | float, rows: Tensor) -> Tensor:
    """λ per row, `(K, 1)`; added and not copied, since a copy of a number to a device could not be captured."""
    return rows.new_zeros(len(rows), 1) + damping


def _solve_products(
    curvature: Products,
    rows: Tensor,
    damping: Tensor | float,
    spectrum: Spectrum,
    iterations: int,
    tolerance: float,
) -> Tensor:
    """In Krylov spaces; with the matrix itself where that takes fewer products, or where they have not come far.

    On a CPU one can see that. Elsewhere, and where the matrix would be large, a row b whose residual is above a tenth
    of it has no solution: it becomes NaN, and the caller leaves it out.
    """
    is_alone = curvature.group is None
    if rows.device.type == "cuda" and is_alone and curvature.size <= min(LARGEST_DIRECT, FEW_STEPS * len(rows)):
        return _solve_directly(curvature, rows, damping, spectrum)
    can_fall_back = may_end_early(rows) and curvature.size <= LARGEST_DIRECT
    if spectrum == "raw":
        solved = solve_by_residuals(curvature, rows, damping, iterations, tolerance)
        left = torch.linalg.vector_norm(rows - curvature.product(solved) - damping * solved, dim=1)
        far = left > UNSOLVED * torch.linalg.vector_norm(rows, dim=1)
        if can_fall_back and any_of(far, curvature.group):
            return _solve_directly(curvature, rows, damping, spectrum)
        return torch.where(far[:, None], torch.nan, solved)

    def solve(matrix: Tensor, right: Tensor, own: Tensor) -> Tensor:
        return _definite_part(matrix, spectrum, own, right)

    steps = min(iterations, KRYLOV_STEPS)
    solved, far = solve_in_krylov_space(curvature, rows, _column(damping, rows), solve, steps, tolerance, UNSOLVED)
    if can_fall_back and any_of(far, curvature.group):
        return _solve_directly(curvature, rows, damping, spectrum)
    return solved  # short of its end it has less of the curvature, and descends all the same


def _solve_directly(curvature: Products, rows: Tensor, damping: Tensor | float, spectrum: Spectrum) -> Tensor:
    """With the matrix that m products make."""
    matrix = symmetric(curvature.dense())
    if not isinstance(damping, Tensor) or damping.numel() == 1:
        number = damping.reshape(()) if isinstance(damping, Tensor) else damping
        return damped_solve(Dense(matrix), rows, number, spectrum)
    values, vectors = torch.linalg.eigh(matrix.to(wide_dtype(rows.device)))  # a λ for each row
    if spectrum != "raw":
        values = values.abs() if spectrum == "absolute" else values.clamp(min=0)
    turned = (rows.to(values.dtype) @ vectors) / (values + damping.to(values.dtype))
    solved: Tensor = (turned @ vectors.mT).to(rows.dtype)
    return solved


# What is below this part of the matrix's norm may end with a sign between −1 and 1: an error of |C| as small.
LOWEST = 1e-10
# Eigenvalues in [LOWEST, 1] are at their sign after this many rounds.
ROUNDS = 30
# √3 would take the largest eigenvalues back to zero, and their sign would be lost to rounding.
STEEPEST = 1.65


def matrix_sign(matrix: Tensor) -> Tensor:
    """The sign of a symmetric matrix, or of each in a batch, V sign(e) Vᵀ.

    The Newton-Schulz iteration X ← (3X − X³)/2 starts with all eigenvalues in [−1, 1] and takes each to its sign, but
    small ones grow only by 3/2 per round. Here X is first multiplied by

        ρ = min(1.65, √(3 / (1 + ℓ + ℓ²))),   ℓ ← ρℓ(3 − ρ²ℓ²)/2

    where ℓ is what the least of the eigenvalues above 1e-10 has become: small ones grow by 2.5 per round, and large
    ones, which may go down again, stay above 0.2. What is left below ±1 after 30 rounds was smaller than 1e-10 of the
    norm, so |C| = C·sign(C) has an error below that.

    >>> matrix_sign(torch.tensor([[0.0, 2.0], [2.0, 0.0]], dtype=torch.float64))
    tensor([[0., 1.],
            [1., 0.]], dtype=torch.float64)
    """
    scale = torch.linalg.matrix_norm(matrix, keepdim=True)
    sign = torch.where(scale > 0, matrix / scale, 0.0)
    low = LOWEST
    for _ in range(ROUNDS):
        steep = min(STEEPEST, math.sqrt(3 / (1 + low + low**2)))
        square = sign @ sign
        if sign.dim() == 2:
            sign = torch.addmm(sign, square, sign, beta=1.5 * steep, alpha=-0.5 * steep**3)
        else:
            sign = (1.5 * steep) * sign - (0.5 * steep**3) * (square @ sign)
        low = steep * low * (3 - (steep * low) ** 2) / 2
    return sign
