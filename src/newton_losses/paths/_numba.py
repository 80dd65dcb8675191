"""The CPU back end: spreads the maps over threads and hands them to the compiled kernel of `_numba_kernels.py`."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._grid import OFFSETS

# Row relaxations per row of a map after which Dijkstra's algorithm takes over.
BUDGET = 40
# Vertices that are worth a thread: some tenths of a millisecond of work, against the thread's start.
VERTICES_PER_THREAD = 10_000

_compiling = threading.Lock()


@cache
def _kernel(dtype: np.dtype[Any]) -> Any:
    """The kernel, compiled for maps of this dtype, or loaded from numba's cache."""
    with _compiling, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from . import _numba_kernels

        _numba_kernels.solve_maps(*_arguments(np.zeros((1, 2, 2), dtype), 8, 0, 3))
        return _numba_kernels.solve_maps


def _arguments(maps: Any, neighbors: int, start: int, goal: int) -> tuple[Any, ...]:
    offsets = np.array(OFFSETS[neighbors], np.int64)
    count = maps.shape[0]
    flags = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    return maps, offsets, start, goal, np.zeros_like(maps), np.empty(count), *flags, BUDGET


def solve(costs: Tensor, neighbors: int, start: int, goal: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Path, cost (float64), unique and reachable of maps `(B, H, W)`; start and goal are flat indices.

    On as many threads as torch uses, fewer where the maps are not worth them. The threads live for one call:
    a pool that is kept would be dead in a forked process, and hang it.
    """
    dtype = costs.dtype if costs.dtype in (torch.float32, torch.float64) else torch.float32
    maps = costs.to(dtype).contiguous().numpy()
    kernel = _kernel(maps.dtype)
    maps, offsets, start, goal, path, cost, unique, reachable, budget = _arguments(maps, neighbors, start, goal)

    def work(part: slice) -> None:
        results = path[part], cost[part], unique[part], reachable[part]
        kernel(maps[part], offsets, start, goal, *results, budget)

    threads = max(1, min(torch.get_num_threads(), maps.shape[0], maps.size // VERTICES_PER_THREAD))
    if threads == 1:
        work(slice(None))
    else:
        bounds = np.linspace(0, maps.shape[0], threads + 1).astype(int)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, [slice(a, b) for a, b in pairwise(bounds)]))
    return (
        torch.from_numpy(path),
        torch.from_numpy(cost),
        torch.from_numpy(unique),
        torch.from_numpy(reachable),
    )
