"""One torch operator over all back ends: it chooses one and hides it from autograd, compilers and vmap.

What a caller sees, with its argument checks, is in `_shortest_path.py`.
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


def choose(backend: str, device: torch.device) -> str:
    """The back end that runs: the one asked for if it can, or the fastest that is there for the device."""
    native = {"cpu": "numba", "cuda": "triton"}.get(device.type)
    if backend == "auto":
        return native if native is not None and obstacle(native) is None else "torch"
    if backend == "torch":
        return backend
    if backend not in ("numba", "triton"):
        raise ArgumentError(
            f"shortest_path: backend is {backend!r}. It can be 'auto', 'torch', 'numba' (CPU) or 'triton' (CUDA)."
        )
    if backend != native:
        raise ArgumentError(
            f"shortest_path: backend {backend!r} cannot run on costs on {device.type!r}. Leave "
            "backend='auto' to get the fastest that can."
        )
    if reason := obstacle(backend):
        raise ArgumentError(
            f"shortest_path: backend {backend!r} {reason}. The back end 'torch' needs nothing and gives the same paths."
        )
    return backend


@torch.library.custom_op("newton_losses::shortest_path", mutates_args=())
def shortest_path_operator(
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
    # Maps are independent, so that a vmapped dimension is one more leading one.
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
    """What solves maps of so many cells. Imported here, because each needs a package of its own."""
    if backend == "numba":
        from . import _numba

        return _numba.solve
    if backend == "triton":
        from . import _grid_triton, _triton_large, _triton_small

        return _triton_small.solve if cells <= _grid_triton.LARGEST else _triton_large.solve
    from . import _torch_backend

    return _torch_backend.solve


def _check(maps: Tensor, cost: Tensor, leading: torch.Size, check_nan: bool, check_reachable: bool) -> None:
    """Raise for the first map that has no answer. On CUDA this waits for the device."""
    if check_nan and cost.isnan().any():
        index = torch.unravel_index(maps.isnan().flatten().nonzero()[0, 0], (*leading, *maps.shape[1:]))
        place = tuple(int(i) for i in index)
        raise ArgumentError(
            f"shortest_path: costs of shape {(*leading, *maps.shape[1:])} are NaN at {place}. A wall is "
            "+inf. With strict=False such a map comes back flagged (cost NaN, reachable False, empty path)."
        )
    if check_reachable and cost.isinf().any():
        index = torch.unravel_index(cost.isinf().nonzero()[0, 0], leading or (1,))
        place = tuple(int(i) for i in index)
        raise ArgumentError(
            f"shortest_path: walls (+inf) cut the goal off from the start in map {place} of the batch. "
            "Without strict=True such a map comes back flagged (cost inf, reachable False, empty path)."
        )
