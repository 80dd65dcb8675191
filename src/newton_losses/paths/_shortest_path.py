"""Shortest paths on grids of vertex costs, as a caller sees them: arguments, checks, results. Back ends search."""

import operator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._arguments import dense_tensor
from .._tracing import is_watched
from ..errors import ArgumentError, ShapeError
from ._dispatch import shortest_path_operator, solve_maps
from ._torch_backend import OFFSETS, Neighbors

Backend = Literal["auto", "numba", "triton", "torch"]
Vertex = tuple[int, int]


class PathSolution(NamedTuple):
    """The best paths of a batch of maps, and what is known about them. `(...)` is the costs' leading shape.

    - `path` is `(..., H, W)` in the costs' dtype: 1 on the path, both ends included, 0 elsewhere.
    - `cost` is `(...)` in float64: the sum of the path's vertex costs, the start's included.
    - `unique` is `(...)` bool: true only if no other path is as good (see `solve`).
    - `reachable` is `(...)` bool: false where no path of finite cost exists. Then the path is all 0 and the cost
      +inf, or NaN if the map holds a NaN.
    """

    path: Tensor
    cost: Tensor
    unique: Tensor
    reachable: Tensor


def shortest_path(
    costs: Tensor,
    neighbors: Neighbors = 8,
    start: Vertex | None = None,
    goal: Vertex | None = None,
    *,
    strict: bool | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The 0/1 mask of the cheapest path on each map: `(..., H, W)` costs to a mask of that shape and dtype.

    The path runs from `start` to `goal` (row, column), by default from the top left to the bottom right, between
    vertices that share a side or, with `neighbors=8`, a corner. Its cost is the sum of the costs of its vertices,
    both ends included.

    `solve` takes the same arguments and returns more. The mask is piecewise constant in the costs, so no gradient
    flows through it.

    >>> shortest_path(torch.tensor([[1.0, 9.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 1.0]]))
    tensor([[1., 0., 0.],
            [1., 0., 0.],
            [0., 1., 1.]])
    """
    return solve(costs, neighbors, start, goal, strict=strict, backend=backend).path


def solve(
    costs: Tensor,
    neighbors: Neighbors = 8,
    start: Vertex | None = None,
    goal: Vertex | None = None,
    *,
    strict: bool | None = None,
    backend: Backend = "auto",
) -> PathSolution:
    """The cheapest path of each map `(..., H, W)`, its cost, and whether it is unique and exists at all.

    Costs: negative costs count as 0, +inf is a wall. Distances follow the recurrence

        d[start] = c[start],    d[v] = min over the neighbours u of v of d[u] + c[v]

    summed in float64 from the start, whatever the costs' dtype. A float sum never falls when an operand grows, so
    there is one least solution, and every back end finds it to the last bit.

    Ties: an edge u → v is *tight* if d[u] + c[v] == d[v] in float64. Among the paths of tight edges the one with the
    fewest vertices wins; among those, going back from the goal, the first predecessor in reading order (row by row
    from the top left). All back ends return the same path. `unique` is true if every vertex of the path has exactly
    one tight predecessor; then no other path is as good. It is false wherever a tie was broken, and may be false for
    a path without a rival if a vertex of cost 0 touches it.

    `strict` decides what raises an `ArgumentError`. `None`: a NaN on the CPU, nothing elsewhere, because looking
    would wait for the device. `True`: a NaN, or a goal cut off by walls, on every device except while a CUDA graph
    is captured. `False`: nothing. What does not raise is flagged in the result and harms no other map.

    `backend`: "auto" uses numba on the CPU and Triton on CUDA where they are installed, else torch.

    >>> best = solve(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), neighbors=4)
    >>> best.cost, best.unique
    (tensor(7., dtype=torch.float64), tensor(True))
    """
    _check_costs(costs)
    count = _check_neighbors(neighbors)
    _check_strict(strict)
    if not isinstance(backend, str):
        raise ArgumentError(f"shortest_path: backend is {backend!r}. Pass a name such as 'auto'.")
    height, width = costs.shape[-2:]
    first = _flat("start", (0, 0) if start is None else start, height, width)
    last = _flat("goal", (-1, -1) if goal is None else goal, height, width)
    on_cpu = costs.device.type == "cpu"
    check_nan = on_cpu if strict is None else bool(strict)
    floating = costs.detach() if costs.is_floating_point() else costs.double()
    solve = shortest_path_operator if is_watched(floating) else solve_maps
    path, cost, unique, reachable = solve(floating, count, first, last, backend, check_nan, bool(strict))
    return PathSolution(path.to(costs.dtype), cost, unique, reachable)


def path_cost(costs: Tensor, path: Tensor) -> Tensor:
    """The sum of the costs on a path, Σ over the cells of path · max(cost, 0): `(..., H, W)` to `(...)`.

    A cost of +inf off the path counts as 0, not as NaN. Differentiable in the costs and in the path, which may be
    relaxed. Summed in float64 and returned in the dtype of the two, of whole numbers in float64: so it equals the
    `cost` of a solution up to the order of summation.

    >>> costs = torch.tensor([[1.0, 2.0], [float("inf"), 4.0]])
    >>> path_cost(costs, shortest_path(costs))
    tensor(5.)
    """
    dense_tensor(costs, "costs", "path_cost", allow_meta=True)
    dense_tensor(path, "the path's cells", "path_cost", allow_meta=True)
    if costs.ndim < 2 or path.ndim < 2 or costs.shape[-2:] != path.shape[-2:]:
        raise ShapeError(
            f"path_cost: costs have shape {tuple(costs.shape)} and the path {tuple(path.shape)}. Both must end in "
            "the same (H, W)."
        )
    # Walls only: elsewhere the derivative by the path is the cost, on the path or off it.
    passable = torch.where(costs.isinf() & (path == 0), 0, costs.clamp(min=0))
    wide, dtype = torch.float64, torch.result_type(costs, path)
    return (passable * path).sum((-2, -1), dtype=wide).to(dtype if dtype.is_floating_point else wide)


def _check_costs(costs: Tensor) -> None:
    if dense_tensor(costs, "costs", "shortest_path", allow_meta=True).ndim < 2 or 0 in costs.shape[-2:]:
        raise ShapeError(
            f"shortest_path: costs have shape {tuple(costs.shape)}. Pass the vertex costs of grids, (..., H, W), with "
            "at least one row and one column."
        )


def _check_neighbors(neighbors: Any) -> int:
    """`neighbors`, Python's integer or NumPy's, if a vertex can have so many."""
    try:
        number = operator.index(neighbors)
    except TypeError:
        number = 0
    if number not in OFFSETS:
        raise ArgumentError(f"shortest_path: neighbors is {neighbors!r}. Choose 4, or 8 to include the diagonals.")
    return number


def _check_strict(strict: object) -> None:
    if strict is not None and not isinstance(strict, (bool, np.bool_)):
        raise ArgumentError(f"shortest_path: strict is {strict!r}. Choose None, True or False.")


def _flat(name: str, vertex: Vertex, height: int, width: int) -> int:
    """A (row, column), negative ones from the end as in Python, as an index into the flattened map."""
    try:
        row, column = (operator.index(place) for place in vertex)
    except (TypeError, ValueError):
        raise ArgumentError(f"shortest_path: {name} is {vertex!r}. Pass a vertex, (row, column).") from None
    if not (-height <= row < height and -width <= column < width):
        raise ArgumentError(
            f"shortest_path: {name} is {tuple(vertex)}, outside maps of {height} rows and {width} columns."
        )
    return (row % height) * width + column % width
