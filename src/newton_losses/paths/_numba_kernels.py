"""The CPU back end: maps spread over threads, each solved by kernels that numba compiles at first use.

Rows are relaxed whole: from the row next to it, then along itself in both directions. Sweeping down and up in turn,
the distances are final after as many turns as the best path goes up and down, a few on most maps. A map that needs
more goes to Dijkstra's algorithm, so a labyrinth also costs n log n.

Maps lie in padded arrays whose rim is +inf, so no neighbour has to be checked for a border. Importing this module
imports numba.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._backends import compiled, compiling
from ._torch_backend import OFFSETS

Array = Any  # numpy arrays, as numba sees them

# How often the rows of a map are relaxed, on average, before Dijkstra's algorithm takes over.
BUDGET = 40
# Fewer vertices than this, a few tenths of a millisecond of work, are not worth starting a thread.
VERTICES_PER_THREAD = 10_000


@cache
def _kernel(dtype: np.dtype[Any]) -> Any:
    """The kernel, compiled for maps of this dtype, or loaded from numba's cache."""
    with compiling("shortest paths"):
        solve_maps(*_arguments(np.zeros((1, 2, 2), dtype), 8, 0, 3))
        return solve_maps


def _arguments(maps: Any, neighbors: int, start: int, goal: int) -> tuple[Any, ...]:
    offsets = np.array(OFFSETS[neighbors], np.int64)
    count = maps.shape[0]
    flags = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    return maps, offsets, start, goal, np.zeros_like(maps), np.empty(count), *flags, BUDGET


def solve(costs: Tensor, neighbors: int, start: int, goal: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Path, cost (float64), unique and reachable of maps `(B, H, W)`; start and goal are flat indices.

    On as many threads as torch uses, fewer for little work. The threads live for one call: a pool that is kept would
    be dead in a forked process, and hang it.
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


@compiled
def solve_maps(
    maps: Array,
    offsets: Array,
    start: int,
    goal: int,
    path: Array,
    cost: Array,
    unique: Array,
    reachable: Array,
    budget: int,
) -> None:
    """Solve `(B, H, W)` maps one after the other. On entry the path is all 0 and the flags are false.

    `offsets` are the neighbours' (row, column) steps in order, `budget` that of `BUDGET`.
    """
    count, height, width = maps.shape
    stride = width + 2
    first = (start // width + 1) * stride + start % width + 1
    last = (goal // width + 1) * stride + goal % width + 1
    steps = offsets[:, 0] * stride + offsets[:, 1]
    costs = np.full((height + 2, stride), np.inf)
    distance = np.full((height + 2, stride), np.inf)
    route = np.empty(height * width, np.int64)
    for index in range(count):
        if not load(maps[index], costs, distance):
            cost[index] = np.nan
            continue
        flat_costs, flat_distance = costs.ravel(), distance.ravel()
        flat_distance[first] = flat_costs[first]
        if not sweep(distance, costs, first // stride, last, steps.size == 8, budget * height):
            dijkstra(flat_distance, flat_costs, steps, first)
        cost[index] = flat_distance[last]
        if not np.isfinite(cost[index]):
            continue
        length = trace(flat_distance, flat_costs, steps, first, last, route)
        unique[index], reachable[index] = length > 0, True
        if length == 0:
            length = trace_tied(flat_distance, flat_costs, steps, first, last, route)
        for k in range(length):
            path[index, route[k] // stride - 1, route[k] % stride - 1] = 1


@compiled
def load(grid: Array, costs: Array, distance: Array) -> bool:
    """Copy a map into the padded costs, negatives as 0, and reset all distances. False if there is a NaN."""
    height, width = grid.shape
    valid = True
    for i in range(height):
        for j in range(width):
            value = np.float64(grid[i, j])
            if value != value:
                valid = False
            costs[i + 1, j + 1] = value if value > 0.0 else 0.0
            distance[i + 1, j + 1] = np.inf
    return valid


@compiled
def sweep(distance: Array, costs: Array, start_row: int, goal: int, diagonal: bool, budget: int) -> bool:
    """Relax rows downwards and upwards in turn until nothing changes. False if the budget ran out first."""
    height, stride = distance.shape[0] - 2, distance.shape[1]
    # A row whose distances fell has news for the row below it and for the row above it.
    news_down, news_up = np.zeros(height + 2, np.bool_), np.zeros(height + 2, np.bool_)
    relax_row(distance, costs, start_row, 0, diagonal, np.inf)
    news_down[start_row] = news_up[start_row] = True
    changed = True
    while changed:
        changed = False
        for step in (1, -1):
            news = news_down if step == 1 else news_up
            for k in range(1, height):
                row = k + 1 if step == 1 else height - k
                if not news[row - step]:
                    continue
                news[row - step] = False
                budget -= 1
                # Distances beyond the goal's cannot be on its path.
                bound = distance[goal // stride, goal % stride]
                if relax_row(distance, costs, row, row - step, diagonal, bound):
                    news_down[row] = news_up[row] = changed = True
        if budget < 0:
            return not changed
    return True


@compiled
def relax_row(distance: Array, costs: Array, row: int, other: int, diagonal: bool, bound: float) -> bool:
    """Relax a row from the other one and along itself. True if a distance fell to at most the bound."""
    here, there, cost = distance[row], distance[other], costs[row]
    width = here.size - 2
    changed = False
    running = np.inf
    for j in range(1, width + 1):
        nearest = there[j]
        if diagonal:
            left, right = there[j - 1], there[j + 1]
            nearest = left if left < nearest else nearest
            nearest = right if right < nearest else nearest
        nearest = running if running < nearest else nearest
        running = nearest + cost[j]
        before = here[j]
        if running < before:
            here[j] = running
            changed = changed or running <= bound
        else:
            running = before
    running = np.inf
    for k in range(width):
        j = width - k
        running = running + cost[j]
        before = here[j]
        if running < before:
            here[j] = running
            changed = changed or running <= bound
        else:
            running = before
    return changed


@compiled
def dijkstra(distance: Array, costs: Array, steps: Array, start: int) -> None:
    """All distances with a binary heap. With vertex costs the first to reach a vertex reaches it best."""
    distance[:] = np.inf
    distance[start] = costs[start]
    heap = np.empty(distance.size, np.int64)
    heap[0], size = start, 1
    while size > 0:
        nearest, size = heap[0], size - 1
        sift_down(heap, distance, heap[size], size)
        for step in steps:
            vertex = nearest + step
            if distance[vertex] == np.inf:
                reached = distance[nearest] + costs[vertex]
                if reached < np.inf:
                    distance[vertex] = reached
                    sift_up(heap, distance, vertex, size)
                    size += 1


@compiled
def sift_up(heap: Array, distance: Array, vertex: int, hole: int) -> None:
    """Put a vertex into the heap whose first free place is the hole."""
    while hole > 0:
        parent = (hole - 1) // 2
        if distance[heap[parent]] <= distance[vertex]:
            break
        heap[hole] = heap[parent]
        hole = parent
    heap[hole] = vertex


@compiled
def sift_down(heap: Array, distance: Array, vertex: int, size: int) -> None:
    """Put a vertex into a heap of this size whose top is free."""
    hole = 0
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        if child + 1 < size and distance[heap[child + 1]] < distance[heap[child]]:
            child += 1
        if distance[vertex] <= distance[heap[child]]:
            break
        heap[hole] = heap[child]
        hole = child
    heap[hole] = vertex


@compiled
def trace(distance: Array, costs: Array, steps: Array, start: int, goal: int, route: Array) -> int:
    """Write the route back from the goal and return its length, or 0 at the first vertex with a tie.

    Without a tie on the way there is only one route, and the rules for ties do not matter.
    """
    vertex, length = goal, 1
    route[0] = goal
    while vertex != start:
        found = 0
        for step in steps:
            if distance[vertex + step] + costs[vertex] == distance[vertex]:
                if found != 0:
                    return 0
                found = step
        vertex = vertex + found
        route[length] = vertex
        length += 1
    return length


@compiled
def trace_tied(distance: Array, costs: Array, steps: Array, start: int, goal: int, route: Array) -> int:
    """Write the route with the fewest vertices, then the first in the order of the neighbours; its length."""
    # Breadth first from the start along the tight edges; route serves as the queue until it is written.
    hops = np.full(distance.size, -1, np.int64)
    hops[start] = 0
    route[0], head, tail = start, 0, 1
    while hops[goal] < 0:
        vertex, head = route[head], head + 1
        for step in steps:
            other = vertex + step
            if hops[other] < 0 and distance[vertex] + costs[other] == distance[other] < np.inf:
                hops[other] = hops[vertex] + 1
                route[tail], tail = other, tail + 1
    length = int(hops[goal]) + 1
    vertex = route[0] = goal
    for k in range(1, length):
        for step in steps:
            other = vertex + step
            if hops[other] == hops[vertex] - 1 and distance[other] + costs[vertex] == distance[vertex]:
                vertex = other
                break
        route[k] = vertex
    return length
