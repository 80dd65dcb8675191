"""Small systems on a GPU in one kernel: the libraries take ten for a 5×5 matrix, and each is a launch.

Which form a curvature has, and what else could solve with it, is in `_solve.py`.
"""

import torch
from torch import Tensor

from .._optional import is_installed

# A matrix that a warp or four hold in their registers.
LARGEST = 32
# Asked once: a compiler does not look into a cached function.
HAS_TRITON = is_installed("triton")


def is_small(matrix: Tensor, rows: Tensor) -> bool:
    """Whether `small_solve` can serve: a float64 CUDA system of at most 32 unknowns that nobody differentiates."""
    if not (HAS_TRITON and matrix.is_cuda and matrix.dtype == torch.float64 and matrix.ndim == 2):
        return False
    if not (0 < len(matrix) <= LARGEST and len(rows) > 0):
        return False
    if torch.is_grad_enabled() and (matrix.requires_grad or rows.requires_grad):
        return False
    # A compiler cannot look into the question about transforms, and traces them itself.
    return torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active()


@torch.library.custom_op("newton_losses::small_solve", mutates_args=())
def small_solve(matrix: Tensor, rows: Tensor, definite: bool) -> Tensor:
    """`matrix`⁻¹ applied to each row of `rows`, `(K, m)` to `(K, m)`, both float64, by elimination.

    With `definite` there is no pivoting, and a pivot that is not positive makes everything NaN; without it,
    rows are exchanged for the largest pivot.
    """
    from ._small_solve_triton import eliminate_rows

    return eliminate_rows(matrix.contiguous(), rows.contiguous(), definite)


@small_solve.register_fake
def _(matrix: Tensor, rows: Tensor, definite: bool) -> Tensor:
    return rows.new_empty(rows.shape)
