"""Small systems on a GPU in one kernel: the libraries take ten for a 5×5 matrix, and each is a launch.

Which form a curvature has, and what else could solve with it, is in `_solve.py`.
"""

from typing import Literal

import torch
from torch import Tensor

from .._backends import HAS_TRITON
from .._tracing import is_differentiated_otherwise

# A matrix that a warp holds in its registers.
LARGEST = 32

Kind = Literal["definite", "raw", "absolute", "clip"]


def is_small(matrix: Tensor, rows: Tensor, damping: Tensor | float = 0.0) -> bool:
    """Whether `solve_small` can serve: a CUDA system of at most 32 unknowns that is not differentiated."""
    tensors = [tensor for tensor in (matrix, rows, damping) if isinstance(tensor, Tensor)]
    if not (HAS_TRITON and rows.device.type == "cuda" and rows.device == matrix.device and matrix.ndim == 2):
        return False
    if not (0 < len(matrix) <= LARGEST and len(rows) > 0):
        return False
    if not all(tensor.is_floating_point() for tensor in tensors):
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    # A compiler cannot look into the question about transforms, and traces them itself.
    return torch.compiler.is_compiling() or not is_differentiated_otherwise()


def solve_small(matrix: Tensor, rows: Tensor, damping: Tensor | float, kind: Kind) -> Tensor:
    """(C + λI)⁻¹ applied to each row, `(K, m)` to `(K, m)` in the dtype of `rows`, computed in float64.

    "definite" is for a C without negative eigenvalues: a pivot of C + λI that is not above its rounding makes
    everything NaN. The other kinds are the spectra of `damped_solve`.
    """
    tensor, number = (None, float(damping)) if not isinstance(damping, Tensor) else (damping.reshape(()), 0.0)
    if tensor is not None and tensor.device != rows.device:
        # One number from the host, which becomes an argument of a kernel; a copy could not be captured.
        tensor = tensor + rows.new_zeros((), dtype=torch.float64)
    solved: Tensor = small_solve(matrix.double(), rows, tensor, number, kind)
    return solved


@torch.library.custom_op("newton_losses::small_solve", mutates_args=())
def small_solve(matrix: Tensor, rows: Tensor, damping: Tensor | None, number: float, kind: str) -> Tensor:
    """`solve_small` with a float64 matrix; λ is in `damping`, or without it `number`."""
    from ._small_solve_triton import solve_rows

    return solve_rows(matrix.contiguous(), rows.contiguous(), damping, number, kind)


@small_solve.register_fake
def _(matrix: Tensor, rows: Tensor, damping: Tensor | None, number: float, kind: str) -> Tensor:
    return rows.new_empty(rows.shape)
