"""The CUDA back end for large maps: one kernel, one thread per map. Importing this module imports triton.

A thread relaxes its map row by row, downwards and upwards in turn, as the CPU kernel does, and follows the path back.
Threads never read what another wrote, so nothing has to be synchronised. The maps lie side by side, cell by cell, so
that the threads of a warp read one line of memory. Nothing goes to the host.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

# A warp, so that every map of a block has a thread of its own.
BLOCK = 32
FAR = tl.constexpr(2**30)
INFINITY = tl.constexpr(float("inf"))


def solve(costs: Tensor, neighbors: int, start: int, goal: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Path (uint8), cost (float64), unique and reachable of maps `(B, H, W)`."""
    batch, height, width = costs.shape
    invalid = costs.isnan().flatten(1).any(1)
    # NaN compares as false: it becomes a 0 here, and its map is overruled below.
    clean = torch.where(costs > 0, costs, 0).double()
    cells = functional.pad(clean, (1, 1, 1, 1), value=torch.inf).permute(1, 2, 0).contiguous()
    distance = torch.full_like(cells, torch.inf)
    hops = torch.full_like(cells, FAR.value, dtype=torch.int32)
    path = torch.zeros_like(cells, dtype=torch.uint8)
    tied = torch.empty(batch, dtype=torch.bool, device=costs.device)

    first, last = ((v // width + 1) * (width + 2) + v % width + 1 for v in (start, goal))
    distance.view(-1, batch)[first] = cells.view(-1, batch)[first]
    hops.view(-1, batch)[first] = 0
    with torch.cuda.device(costs.device):
        # No software pipelining (num_stages=1): loads must not overtake the stores before them.
        solve_maps[(triton.cdiv(batch, BLOCK),)](
            cells, distance, hops, path, tied, batch, height, width, first, last,
            DIAGONAL=neighbors == 8, BLOCK=BLOCK, num_warps=1, num_stages=1,
        )  # fmt: skip
    cost = torch.where(invalid, torch.nan, distance.view(-1, batch)[last])
    reachable = cost.isfinite()
    inner = path[1:-1, 1:-1].permute(2, 0, 1) * reachable[:, None, None]
    return inner.contiguous(), cost, reachable & ~tied, reachable


@_jit
def solve_maps(  # type: ignore[no-untyped-def]
    costs, distance, hops, path, tied_out, count, height, width, start, goal,
    DIAGONAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # In 64 bits: a cell times the number of maps can be beyond 32. Written as a sum because triton passes an
    # argument of 1 as a constant, which has no dtype to convert.
    count = tl.program_id(0).to(tl.int64) * 0 + count
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = lane < count
    # Every pointer below is to a map's own first cell; cell v of it is v · count further on.
    costs += lane
    distance += lane
    hops += lane
    path += lane
    stride = width + 2

    changing = 1
    while changing > 0:
        changed = tl.zeros([BLOCK], tl.int32)
        for row in range(1, height + 1):
            changed |= relax_row(costs, distance, row * stride, -stride, count, width, live, DIAGONAL, BLOCK)
        for k in range(height):
            row = height - k
            changed |= relax_row(costs, distance, row * stride, stride, count, width, live, DIAGONAL, BLOCK)
        changing = tl.max(changed, 0)

    cost = tl.load(distance + goal * count, mask=live, other=INFINITY)
    vertex = tl.zeros([BLOCK], tl.int64) + goal
    todo = live & (cost < INFINITY)
    tl.store(path + vertex * count, 1, mask=todo)
    # Until the first tie there is one way back only; it is the path, whatever the rule for ties.
    vertex, tied = trace(costs, distance, hops, path, vertex, todo, start, count, stride, False, DIAGONAL, BLOCK)
    tl.store(tied_out + lane, tied, mask=live)
    if tl.max(tied.to(tl.int32), 0) > 0:
        changing = 1
        while changing > 0:
            changed = tl.zeros([BLOCK], tl.int32)
            for k in range(height * width):
                cell = (k // width + 1) * stride + k % width + 1
                changed |= relax_hops(costs, distance, hops, cell, count, stride, tied, DIAGONAL)
            for k in range(height * width):
                back = height * width - 1 - k
                cell = (back // width + 1) * stride + back % width + 1
                changed |= relax_hops(costs, distance, hops, cell, count, stride, tied, DIAGONAL)
            changing = tl.max(changed, 0)
        trace(costs, distance, hops, path, vertex, tied, start, count, stride, True, DIAGONAL, BLOCK)


@_jit
def relax_row(  # type: ignore[no-untyped-def]
    costs, distance, row, other, count, width, live, DIAGONAL: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Relax the row that begins at cell `row` from the one `other` cells away and along itself."""
    changed = tl.zeros([BLOCK], tl.int32)
    running = tl.full([BLOCK], INFINITY, tl.float64)
    left = running
    above = tl.load(distance + (row + other + 1) * count, mask=live, other=INFINITY)
    for j in range(1, width + 1):
        cell = (row + j) * count
        right = tl.load(distance + cell + (other + 1) * count, mask=live, other=INFINITY)
        nearest = tl.minimum(running, above)
        if DIAGONAL:
            nearest = tl.minimum(nearest, tl.minimum(left, right))
        before = tl.load(distance + cell, mask=live, other=INFINITY)
        reached = nearest + tl.load(costs + cell, mask=live, other=INFINITY)
        running = tl.minimum(reached, before)
        tl.store(distance + cell, running, mask=live)
        changed |= (running < before).to(tl.int32)
        left = above
        above = right
    running = tl.full([BLOCK], INFINITY, tl.float64)
    for k in range(width):
        cell = (row + width - k) * count
        before = tl.load(distance + cell, mask=live, other=INFINITY)
        reached = running + tl.load(costs + cell, mask=live, other=INFINITY)
        running = tl.minimum(reached, before)
        tl.store(distance + cell, running, mask=live)
        changed |= (running < before).to(tl.int32)
    return changed


@_jit
def relax_hops(  # type: ignore[no-untyped-def]
    costs, distance, hops, cell, count, stride, live, DIAGONAL: tl.constexpr
):  # fmt: skip
    """Lower a cell's number of steps from the start to one more than that of its best tight predecessor."""
    at = cell * count
    here = tl.load(distance + at, mask=live, other=INFINITY)
    cost = tl.load(costs + at, mask=live, other=INFINITY)
    before = tl.load(hops + at, mask=live, other=0)
    fewest = before
    for k in tl.static_range(9):
        # Of the 3×3 cells around: without the middle and, unless diagonals touch, without the corners.
        if k != 4 and (DIAGONAL or k % 2 == 1):
            other = at + ((k // 3 - 1) * stride + k % 3 - 1) * count
            there = tl.load(distance + other, mask=live, other=INFINITY)
            steps = tl.load(hops + other, mask=live, other=FAR) + 1
            tight = (there + cost == here) & (here < INFINITY)
            fewest = tl.where(tight, tl.minimum(fewest, steps), fewest)
    tl.store(hops + at, fewest, mask=live)
    return (fewest < before).to(tl.int32)


@_jit
def trace(  # type: ignore[no-untyped-def]
    costs, distance, hops, path, vertex, todo, start, count, stride,
    BY_HOPS: tl.constexpr, DIAGONAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Mark the way back from `vertex` to the start. Without hops to decide ties it stops at the first one."""
    tied = tl.zeros([BLOCK], tl.int1)
    todo = todo & (vertex != start)
    while tl.max(todo.to(tl.int32), 0) > 0:
        at = vertex * count
        here = tl.load(distance + at, mask=todo, other=INFINITY)
        cost = tl.load(costs + at, mask=todo, other=INFINITY)
        fewer = tl.load(hops + at, mask=todo, other=0) - 1
        found = tl.zeros([BLOCK], tl.int32)
        previous = vertex
        for k in tl.static_range(8, -1, -1):
            # From the last neighbour to the first, so that the first has the last word.
            if k != 4 and (DIAGONAL or k % 2 == 1):
                other = vertex + (k // 3 - 1) * stride + k % 3 - 1
                there = tl.load(distance + other * count, mask=todo, other=INFINITY)
                tight = todo & (there + cost == here)
                if BY_HOPS:
                    tight = tight & (tl.load(hops + other * count, mask=todo, other=FAR) == fewer)
                previous = tl.where(tight, other, previous)
                found += tight.to(tl.int32)
        if not BY_HOPS:
            tied = tied | (found > 1)
            todo = todo & (found == 1)
        vertex = tl.where(todo, previous, vertex)
        tl.store(path + vertex * count, 1, mask=todo)
        todo = todo & (vertex != start)
    return vertex, tied
