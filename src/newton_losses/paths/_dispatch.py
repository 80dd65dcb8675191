"""The torch operators behind this package, and which back end runs them.

An operator of its own hides a back end from autograd, compilers and vmap, to which numba and Triton are invisible.
The first half is for exact paths, the second for relaxed ones. Argument checks for callers are in
`_shortest_path.py` and `_bellman_ford.py`.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from .._backends import obstacle
from .._tracing import is_captured
from ..errors import ArgumentError

Solved = tuple[Tensor, Tensor, Tensor, Tensor]

# Triton's kernels hold a whole grid in one program, up to this many cells. Larger grids are torch's.
LARGEST = 32 * 32

# --- exact paths ---


def choose(backend: str, device: torch.device) -> str:
    """The back end to run: the one asked for if it can run there, or the fastest available on the device."""
    native = {"cpu": "numba", "cuda": "triton"}.get(device.type)
    if backend == "auto":
        return native if native is not None and obstacle(native) is None else "torch"
    if backend == "torch":
        return backend
    if backend not in ("numba", "triton"):
        raise ArgumentError(
            f"shortest_path: backend is {backend!r}. Choose 'auto', 'torch', 'numba' (CPU) or 'triton' (CUDA)."
        )
    if backend != native:
        raise ArgumentError(
            f"shortest_path: backend {backend!r} cannot run on costs on {device.type!r}. Use backend='auto' to get "
            "the fastest that can."
        )
    if reason := obstacle(backend):
        raise ArgumentError(
            f"shortest_path: backend {backend!r} {reason}. backend='torch' needs nothing and gives the same paths."
        )
    return backend


def solve_maps(
    costs: Tensor, neighbors: int, start: int, goal: int, backend: str, check_nan: bool, check_reachable: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Path in the costs' dtype, cost in float64, unique and reachable, of floating maps `(..., H, W)`."""
    shape, leading = costs.shape, costs.shape[:-2]
    # Not -1: the number of maps cannot be inferred where there are none.
    maps = costs.detach().reshape(prod(leading), *shape[-2:]).contiguous()
    path, cost, unique, reachable = _solve(maps, neighbors, start, goal, backend)
    if (check_nan or check_reachable) and not is_captured(costs.device):
        _check(maps, cost, leading, check_nan, check_reachable)
    return path.reshape(shape), cost.reshape(leading), unique.reshape(leading), reachable.reshape(leading)


shortest_path_operator = torch.library.custom_op("newton_losses::shortest_path", solve_maps, mutates_args=())


@shortest_path_operator.register_fake
def _fake(costs: Tensor, *_: Any) -> Solved:
    leading = costs.shape[:-2]
    return (
        costs.new_empty(costs.shape),
        costs.new_empty(leading, dtype=torch.float64),
        costs.new_empty(leading, dtype=torch.bool),
        costs.new_empty(leading, dtype=torch.bool),
    )


@shortest_path_operator.register_vmap
def _vmap(info: Any, in_dims: tuple[int | None, ...], costs: Tensor, *rest: Any) -> tuple[Solved, Any]:
    # Maps are independent, so a vmapped dimension is one more leading dimension.
    assert in_dims[0] is not None
    return shortest_path_operator(costs.movedim(in_dims[0], 0), *rest), (0, 0, 0, 0)


def _solve(maps: Tensor, neighbors: int, start: int, goal: int, backend: str) -> Solved:
    if maps.shape[0] == 0:
        flags = maps.new_empty(0, dtype=torch.bool)
        return maps.clone(), maps.new_empty(0, dtype=torch.float64), flags, flags.clone()
    solve = solver(choose(backend, maps.device), maps.shape[1] * maps.shape[2])
    path, cost, unique, reachable = solve(maps, neighbors, start, goal)
    return path.to(maps.dtype), cost, unique, reachable


def solver(backend: str, cells: int) -> Callable[[Tensor, int, int, int], Solved]:
    """The function that solves maps of this many cells. Imported here because each needs a package of its own."""
    if backend == "numba":
        from . import _numba_kernels

        return _numba_kernels.solve
    if backend == "triton" and cells <= LARGEST:
        from . import _triton_shortest_path

        return _triton_shortest_path.solve
    from . import _torch_backend

    return _torch_backend.solve


def _check(maps: Tensor, cost: Tensor, leading: torch.Size, check_nan: bool, check_reachable: bool) -> None:
    """Raise for the first map that has no answer. On CUDA this waits for the device."""
    if check_nan and cost.isnan().any():
        index = torch.unravel_index(maps.isnan().flatten().nonzero()[0, 0], (*leading, *maps.shape[1:]))
        place = tuple(int(i) for i in index)
        raise ArgumentError(
            f"shortest_path: costs of shape {(*leading, *maps.shape[1:])} are NaN at {place}. Use +inf for a wall. "
            "With strict=False such a map is flagged in the result (cost NaN, reachable False, empty path)."
        )
    if check_reachable and cost.isinf().any():
        index = torch.unravel_index(cost.isinf().nonzero()[0, 0], leading or (1,))
        place = tuple(int(i) for i in index)
        raise ArgumentError(
            f"shortest_path: walls (+inf) cut the goal off from the start in map {place} of the batch. "
            "Without strict=True such a map is flagged in the result (cost inf, reachable False, empty path)."
        )


# --- relaxed paths ---


@torch.library.custom_op("newton_losses::relaxed_path", mutates_args=())
def path_operator(costs: Tensor, beta: float, iterations: int, loop: str, conorm: str) -> tuple[Tensor, Tensor]:
    """The relaxed path `(B, H, W)` of such costs in float32 or float64, and what the pullback needs.

    For each map and iteration t that is three grids and a number: the distances before iteration t, the position and
    the path after t steps back, and the running product p(t) of the while loop.
    """
    from ._triton_relaxation import relaxed_path

    path, kept = _fake_path(costs, beta, iterations, loop, conorm)
    relaxed_path(costs.contiguous(), path, kept, beta, iterations, loop, conorm)
    return path, kept


@path_operator.register_fake
def _fake_path(costs: Tensor, beta: float, iterations: int, loop: str, conorm: str) -> tuple[Tensor, Tensor]:
    count, height, width = costs.shape
    return costs.new_empty(costs.shape), costs.new_empty(count, iterations, 3 * height * width + 1)


@torch.library.custom_op("newton_losses::relaxed_path_pullback", mutates_args=())
def pullback_operator(kept: Tensor, gradient: Tensor, beta: float, iterations: int, loop: str, conorm: str) -> Tensor:
    """The gradient by the costs `(B, H, W)`, from that by the path and what `path_operator` kept."""
    from ._triton_relaxation import relaxed_path_pullback

    by_costs = gradient.new_empty(gradient.shape)
    relaxed_path_pullback(kept, gradient.contiguous(), by_costs, beta, iterations, loop, conorm)
    return by_costs


@pullback_operator.register_fake
def _fake_pullback(kept: Tensor, gradient: Tensor, beta: float, iterations: int, loop: str, conorm: str) -> Tensor:
    return gradient.new_empty(gradient.shape)
