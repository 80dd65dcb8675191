"""The compiled kernel of a sorting network as one torch operator: when it runs, and on how many threads.

What it computes is in `_kernels.py`; the same in torch's own operators is in `_network_derivatives.py`.
"""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._arguments import one_of
from .._optional import is_installed
from ..errors import ArgumentError

Backend = Literal["auto", "numba", "torch"]

# Cells of a layer that are worth a thread: some tenths of a millisecond of work, against the thread's start.
CELLS_PER_THREAD = 100_000

_compiling = threading.Lock()


def check_backend(backend: str) -> Backend:
    """`backend`, if it is one and installed."""
    chosen: Backend = one_of(backend, ("auto", "numba", "torch"), "backend", "SortingNetwork")
    if chosen == "numba" and not is_installed("numba"):
        raise ArgumentError(
            "SortingNetwork: backend 'numba' is not installed: pip install newton-losses[numba]. The back end "
            "'torch' needs nothing and gives the same losses."
        )
    return chosen


def runs_compiled(backend: Backend, scores: Tensor) -> bool:
    """Whether the kernel computes the derivatives at these scores.

    On the CPU only; and not where a compiler or a transform of torch.func looks at the operators, which it would
    not see.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return backend != "torch" and scores.device.type == "cpu" and is_installed("numba")


@torch.library.custom_op("newton_losses::sorting_network", mutates_args=())
def network_operator(
    partners: Tensor, logs: Tensor, firsts: Tensor, seconds: Tensor, target: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses `(N,)`, gradients `(N, n)` and the sum of the Hessians, `(n, n)`.

    The gradients are empty without `firsts`, the sum without `seconds`. All but `partners` in float64; see
    `network_samples` for the arguments.
    """
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


@network_operator.register_fake
def _fake(
    partners: Tensor, logs: Tensor, firsts: Tensor, seconds: Tensor, target: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    count, width, size = _sizes(firsts, seconds, target)
    return target.new_empty(count), target.new_empty(count, width), target.new_empty(size, size)


def _sizes(firsts: Tensor, seconds: Tensor, target: Tensor) -> tuple[int, int, int]:
    """Samples, and how wide gradients and Hessian are: 0 where they are not wanted."""
    count, n = target.shape[:2]
    return count, n if firsts.shape[0] else 0, n if seconds.shape[0] else 0


@cache
def _kernel() -> Any:
    """The kernel, compiled or loaded from numba's cache."""
    with _compiling, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from . import _kernels

        empty = [np.empty((0,) * dimensions) for dimensions in (4, 4, 4, 3, 3, 1, 2, 2)]
        kernel: Any = _kernels.network_samples
        kernel(np.empty((0, 0), np.int64), *empty, 0, 0)
        return kernel
