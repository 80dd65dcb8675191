"""The compiled kernels of a sorting network as torch operators: when they run, and on how many threads.

What they compute is in `_network_numba.py` (numba) and `_network_triton.py`; the same in torch's own operators is in
`_network_derivatives.py`.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._arguments import one_of
from .._backends import compiling, obstacle
from .._tracing import is_watched, sees_operators
from ..errors import ArgumentError

Backend = Literal["auto", "numba", "triton", "torch"]
Kernel = Literal["numba", "triton"]

# What "auto" is on a device; on all others it is torch.
AUTOMATIC: dict[str, Kernel] = {"cpu": "numba", "cuda": "triton"}
NATIVE: dict[Kernel, str] = {"numba": "cpu", "triton": "cuda"}
# Beyond this a sample's matrix does not fit into a program of Triton's kernels.
LARGEST_TRITON = 64
# Cells of a layer that are worth a thread: some tenths of a millisecond of work, against the thread's start.
CELLS_PER_THREAD = 100_000


def check_backend(backend: str) -> Backend:
    """`backend`, if it exists and is installed."""
    chosen: Backend = one_of(backend, ("auto", "numba", "triton", "torch"), "backend", "SortingNetwork")
    if chosen in ("numba", "triton") and (reason := obstacle(chosen)):
        raise ArgumentError(
            f"SortingNetwork: backend {chosen!r} {reason}. backend='torch' needs nothing and gives the same losses."
        )
    return chosen


def chosen_kernel(backend: Backend, scores: Tensor) -> Kernel | None:
    """The kernel that computes the derivatives at these scores `(..., n)`; `None` is torch.

    A kernel is not used on other devices, nor under a compiler or a transform of torch.func, which could not see
    its operators.
    """
    if sees_operators():
        return None
    device = scores.device.type
    kernel = AUTOMATIC.get(device) if backend == "auto" else backend
    if kernel is None or kernel == "torch" or obstacle(kernel):
        return None
    if kernel == "triton" and scores.shape[-1] > LARGEST_TRITON:
        return None
    return kernel if device == NATIVE[kernel] or (kernel == "triton" and _is_interpreted()) else None


def _is_interpreted() -> bool:
    """Whether Triton's kernels run in its interpreter, and so on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@torch.library.custom_op("newton_losses::sorting_network_differences", mutates_args=())
def differences_operator(values: Tensor, partners: Tensor, scale: Tensor, law: str) -> Tensor:
    """The differences that the comparators see, `(layers, n, N)`, of `(n, N)` values in float64, by Triton.

    `scale` `(layers, n)` is the steepness, negative for the wire that gets the smaller value.
    """
    from ._network_triton import network_differences

    return network_differences(values, partners, scale, law)


@differences_operator.register_fake
def _fake_differences(values: Tensor, partners: Tensor, scale: Tensor, law: str) -> Tensor:
    return values.new_empty(*partners.shape, values.shape[1])


def network_losses(
    partners: Tensor, logs: Tensor, firsts: Tensor, seconds: Tensor, target: Tensor, cells: Tensor, kernel: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses `(N,)`, gradients `(N, n)` and the sum of the Hessians, `(n, n)`, by the `kernel` "numba" or "triton".

    The gradients are empty without `firsts`, the sum without `seconds`. All but `partners` in float64; see
    `network_samples` in `_network_numba.py` for the arguments.
    """
    if kernel == "triton":
        from ._network_triton import losses_by_triton

        return losses_by_triton(partners, logs, firsts, seconds, target, cells)
    return _losses_by_numba(partners, logs, firsts, seconds, target, cells)


network_operator = torch.library.custom_op("newton_losses::sorting_network", network_losses, mutates_args=())


def losses_by_kernel(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """`network_losses` of the same arguments."""
    found: tuple[Tensor, Tensor, Tensor] = (network_operator if is_watched(given[4]) else network_losses)(*given)
    return found


@network_operator.register_fake
def _fake_losses(
    partners: Tensor, logs: Tensor, firsts: Tensor, seconds: Tensor, target: Tensor, cells: Tensor, kernel: str
) -> tuple[Tensor, Tensor, Tensor]:
    count, width, size = _sizes(firsts, seconds, target)
    return target.new_empty(count), target.new_empty(count, width), target.new_empty(size, size)


def _losses_by_numba(
    partners: Tensor, logs: Tensor, firsts: Tensor, seconds: Tensor, target: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    count, width, size = _sizes(firsts, seconds, target)
    value, gradient = np.empty(count), np.empty((count, width))
    inputs = [tensor.contiguous().numpy() for tensor in (partners, logs, firsts, seconds, target, cells)]
    kernel = _kernel()

    def work(part: tuple[int, int]) -> Any:
        total = np.zeros((size, size))
        kernel(*inputs, value, gradient, total, *part)
        return total

    effort = target.numel() * len(partners) * (1 + 2 * size)
    threads = max(1, min(torch.get_num_threads(), count, effort // CELLS_PER_THREAD))
    if threads == 1:
        total = work((0, count))
    else:
        # The threads live for one call: a pool that is kept would be dead in a forked process, and hang it.
        bounds = [count * thread // threads for thread in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            total = sum(pool.map(work, pairwise(bounds)))
    return torch.from_numpy(value), torch.from_numpy(gradient), torch.from_numpy(total)


def _sizes(firsts: Tensor, seconds: Tensor, target: Tensor) -> tuple[int, int, int]:
    """Samples, and how wide gradients and Hessian are: 0 where they are not wanted."""
    count, n = target.shape[:2]
    return count, n if firsts.shape[0] else 0, n if seconds.shape[0] else 0


@cache
def _kernel() -> Any:
    """The kernel, compiled or loaded from numba's cache."""
    with compiling("the derivatives of sorting networks"):
        from . import _network_numba

        empty = [np.empty((0,) * dimensions) for dimensions in (4, 4, 4, 3, 3, 1, 2, 2)]
        kernel: Any = _network_numba.network_samples
        kernel(np.empty((0, 0), np.int64), *empty, 0, 0)
        return kernel
