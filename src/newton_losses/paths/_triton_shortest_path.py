"""The CUDA kernel of shortest paths on maps of up to `LARGEST` cells: one program per map. Importing it imports triton.

All cells are relaxed at once until none changes, and the path is followed back. A distance is the least sum over all
ways to a cell, each added up from the start, whatever the order of relaxing: so the numbers equal those of the other
back ends to the last bit. A program holds its whole grid, flattened and padded, and gets a neighbour's value by
`tl.gather`; the kernels of `_triton_relaxation.py` share that part.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

FAR = tl.constexpr(2**30)
INFINITY = tl.constexpr(float("inf"))


def padded(cells: int) -> int:
    """This many cells rounded up to a power of two, and at least a warp."""
    return max(32, 1 << (cells - 1).bit_length())


@_jit
def neighbors(height, width, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each vertex's eight neighbours `(8, SIZE)`, row by row, and whether they are on the grid; k is opposite 7 − k."""
    k = tl.arange(0, 8)[:, None]
    vertex = tl.arange(0, SIZE)[None, :]
    cell = k + (k >= 4).to(tl.int32)  # of the 3×3 around, without the middle
    row = vertex // width + cell // 3 - 1
    column = vertex % width + cell % 3 - 1
    inside = (vertex < height * width) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return tl.where(inside, row * width + column, vertex), inside


@_jit
def of_neighbors(values, others, inside, outside, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The values `(SIZE,)` of each vertex's neighbours, `(8, SIZE)`: all in one gather."""
    found = tl.gather(values, tl.reshape(others, [8 * SIZE]), 0)
    return tl.where(inside, tl.reshape(found, [8, SIZE]), outside)


def solve(costs: Tensor, neighbors: int, start: int, goal: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Path (uint8), cost (float64), unique and reachable of maps `(B, H, W)`."""
    costs = costs.contiguous()
    batch, height, width = costs.shape
    path = torch.empty_like(costs, dtype=torch.uint8)
    cost = costs.new_empty(batch, dtype=torch.float64)
    unique, reachable = (costs.new_empty(batch, dtype=torch.bool) for _ in range(2))
    size = padded(height * width)
    with torch.cuda.device_of(costs):  # type: ignore[no-untyped-call]
        solve_map[(batch,)](
            costs, path, cost, unique, reachable, height, width, start, goal,
            DIAGONAL=neighbors == 8, SIZE=size, num_warps=max(1, min(8, size // 64)), num_stages=1,
        )  # fmt: skip
    return path, cost, unique, reachable


@_jit
def solve_map(  # type: ignore[no-untyped-def]
    costs, path, cost_out, unique, reachable, height, width, start, goal,
    DIAGONAL: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One map; in 64 bits where the number of maps is a factor."""
    place = tl.program_id(0).to(tl.int64)
    cells = height * width
    vertex = tl.arange(0, SIZE)
    live = vertex < cells
    given = tl.load(costs + place * cells + vertex, mask=live, other=0.0).to(tl.float64)
    invalid = tl.max((given != given).to(tl.int32), 0)
    # NaN compares as false: it becomes a 0 here, and its map is overruled below.
    own = tl.where(given > 0, given, 0.0)
    others, inside = neighbors(height, width, SIZE)
    if not DIAGONAL:
        k = tl.arange(0, 8)[:, None]
        inside = inside & ((k == 1) | (k == 3) | (k == 4) | (k == 6))

    distance = nearest_ways(own, vertex == start, others, inside, SIZE)
    cost = tl.sum(tl.where(vertex == goal, distance, 0.0), 0)
    there = (1 - invalid) * (cost < INFINITY).to(tl.int32)
    around = of_neighbors(distance, others, inside, INFINITY, SIZE)
    tight = inside & (around + own[None, :] == distance[None, :]) & (distance < INFINITY)[None, :]
    ways = tl.sum(tight.to(tl.int32), 0)
    marked, tied = follow(first_of(tight, others), ways, goal, start, there, 2, SIZE)
    if tied > 0:
        hops = fewest_hops(tight, vertex == start, others, inside, SIZE)
        shorter = of_neighbors(hops, others, inside, FAR, SIZE) == (hops - 1)[None, :]
        marked, _ = follow(first_of(tight & shorter, others), ways, goal, start, there, FAR, SIZE)
    tl.store(path + place * cells + vertex, marked.to(tl.uint8), mask=live)
    tl.store(cost_out + place, tl.where(invalid > 0, float("nan"), cost))
    tl.store(reachable + place, there > 0)
    tl.store(unique + place, there * (1 - tied) > 0)


@_jit
def nearest_ways(own, is_start, others, inside, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The least cost of a way from the start to each cell, with both ends."""
    distance = tl.where(is_start, own, INFINITY)
    changing = 1
    while changing > 0:
        before = distance
        # Twice, since it takes as long to find out whether anything has changed.
        for _ in tl.static_range(2):
            reached = tl.min(of_neighbors(distance, others, inside, INFINITY, SIZE), 0) + own
            distance = tl.minimum(distance, reached)
        changing = tl.max((distance < before).to(tl.int32), 0)
    return distance


@_jit
def fewest_hops(tight, is_start, others, inside, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The fewest steps of a cheapest way to each cell."""
    hops = tl.where(is_start, 0, FAR)
    changing = 1
    while changing > 0:
        steps = of_neighbors(hops, others, inside, FAR, SIZE) + 1
        fewer = tl.minimum(hops, tl.min(tl.where(tight, steps, FAR), 0))
        changing = tl.max((fewer < hops).to(tl.int32), 0)
        hops = fewer
    return hops


@_jit
def first_of(chosen, others):  # type: ignore[no-untyped-def]
    """The first of each cell's neighbours that are chosen, `(8, SIZE)`; 0 where none is."""
    k = tl.arange(0, 8)[:, None]
    first = tl.min(tl.where(chosen, k, 8), 0)
    return tl.sum(tl.where(k == first[None, :], others, 0), 0)


@_jit
def follow(previous, ways, goal, start, there, MOST: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Mark the way back from the goal to the start, or to a cell with `MOST` ways or more; the latter is reported."""
    vertex = tl.arange(0, SIZE)
    # Written as sums because a number from the host, or in the code, is no tensor that a loop could change.
    tied = there * 0
    at = goal + tied
    marked = tl.where(vertex == at, there, 0)
    going = there * (at != start).to(tl.int32)
    while going > 0:
        here = vertex == at
        tied = (tl.sum(tl.where(here, ways, 0), 0) >= MOST).to(tl.int32)
        at = tl.where(tied > 0, at, tl.sum(tl.where(here, previous, 0), 0))
        marked = marked | (vertex == at).to(tl.int32)
        going = (1 - tied) * (at != start).to(tl.int32)
    return marked, tied
