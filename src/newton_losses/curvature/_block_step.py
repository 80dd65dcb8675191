"""The step for 65 to 147 unknowns as one kernel: a block of threads holds the system in its registers, in float64.

With a stored matrix it takes over earlier, from 33 unknowns on. The libraries take some ninety launches, and most of
the time of factorising so small a matrix is latency. Where λ is far above the curvature, the kernel sums a Neumann
series instead of eliminating, to the last digit of the result. It is CUDA C, in `elimination.cu` and `block_step.cu`,
and compiled by NVRTC at first use. Where that is not possible, for example while a graph is being captured,
`block_kernels` returns `None` and operators compute the same.
"""

import struct
import warnings
from pathlib import Path

import torch
from torch import Tensor

from .._backends import on_device, parts_of
from ..nvrtc import CudaError, Kernels, compiler
from ._fisher import BLOCK_TYPES, LARGEST_BLOCK, new_results

# Unknowns that a kernel is compiled for.
SIZES = (70, 84, 98, 112, 126, LARGEST_BLOCK)
# GPUs in which float64 is half as fast as float32, and not a 32nd or a 64th part.
CAPABILITIES = ((8, 0), (9, 0), (10, 0))
# As in the kernel: right sides and threads of a block, and how many gradients it reads at a time.
SIDES, THREADS, PART = 7, 256, 32
RELATIVE, NORMALIZED, MEAN, INDEFINITE, WIDE_MATRIX, WIDE_DAMPING = (1 << bit for bit in range(6))
GIVEN = "10Q2d3i4x"  # the kernel's `struct Given`
TYPES = dict(zip(BLOCK_TYPES, ("float", "double"), strict=True))

_kernels: dict[tuple[int, int, torch.dtype], Kernels | None] = {}


def block_kernels(gradient: Tensor, unknowns: int) -> Kernels | None:
    """The kernel for tensors that fit, or `None` where it cannot be compiled, or not now."""
    size = size_for(unknowns)
    key = (gradient.get_device(), size, gradient.dtype)
    if key not in _kernels:
        if torch.cuda.is_current_stream_capturing():  # in which nothing may be loaded
            return None
        _kernels[key] = _compiled_for(*key)
    return _kernels[key]


def launch_block(
    kernels: Kernels,
    gradient: Tensor,
    value: Tensor | None,
    kept: Tensor | None,
    damping: Tensor | None,
    number: float,
    factor: float,
    normalized: bool,
    mean: bool,
    counter: Tensor | None,
    matrix: Tensor | None = None,
    indefinite: bool = False,
    unit: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, kept and (count, mean value) as `launch_fisher` returns them.

    With a `matrix` that is the curvature, in the place of the Fisher.
    """
    samples, outputs = gradient.shape
    few = samples < outputs and matrix is None
    size = size_for(samples if few else outputs)
    gradient = gradient.contiguous()
    value = None if value is None else value.contiguous()
    kept = None if kept is None else kept.contiguous()
    unit = None if unit is None else unit.to(gradient.dtype)
    damping = damping if damping is None or damping.dtype in TYPES else damping.double()
    if matrix is not None:
        matrix = matrix.contiguous() if matrix.dtype in TYPES else matrix.double().contiguous()
    rows, used, numbers = new_results(gradient)
    flags = RELATIVE * (factor > 0) | NORMALIZED * normalized | MEAN * mean | INDEFINITE * indefinite
    flags |= WIDE_MATRIX * _is_wide(matrix) | WIDE_DAMPING * _is_wide(damping)
    tensors = (gradient, value, kept, matrix, damping, unit, rows, used, numbers, counter)
    places = (0 if tensor is None else tensor.data_ptr() for tensor in tensors)
    most = torch.finfo(gradient.dtype).max
    given = struct.pack(GIVEN, *places, factor or number, most, samples, outputs, flags)
    blocks = parts_of(outputs if few else samples, SIDES)
    with on_device(gradient):
        kernels.launch_struct("block_step", blocks, THREADS, shared_bytes(size, matrix is not None), given)
    return rows, used, numbers


def size_for(unknowns: int) -> int:
    return next(size for size in SIZES if size >= unknowns)


def shared_bytes(size: int, stored: bool) -> int:
    """Shared memory beyond what the kernel declares: the matrix, and a part of the gradients it is made of."""
    matrix = parts_of(size * (size | 1), 2) * 2
    return 8 * (matrix if stored else matrix + PART * (parts_of(size, 4) * 4 + 2))


def _is_wide(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.dtype == torch.float64


def _compiled_for(device: int, size: int, dtype: torch.dtype) -> Kernels | None:
    capability = torch.cuda.get_device_capability(device)
    # The kernel declares less than 16 KiB itself.
    memory = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    if capability not in CAPABILITIES or memory < shared_bytes(size, False) + 2**14 or compiler() is None:
        return None
    major, minor = capability
    defined = (f"SIZE={size}", f"NUMBER={TYPES[dtype]}")
    files = (Path(__file__).with_name(name) for name in ("elimination.cu", "block_step.cu"))
    try:
        kernels = Kernels(device, *files, architecture=f"sm_{major}{minor}", defined=defined)
        kernels.grant("block_step", shared_bytes(size, False))
        return kernels
    except CudaError as error:
        warnings.warn(
            f"newton_losses: the kernel for {size} unknowns could not be built; torch's operators do its work, more "
            f"slowly. {error}",
            stacklevel=2,
        )
        return None
