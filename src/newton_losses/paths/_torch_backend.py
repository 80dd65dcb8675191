"""The grid as a graph, and the back end in plain torch: all maps relaxed at once, on every device.

Off the CPU it runs a fixed number of rounds and reads nothing back, so that a CUDA graph can capture it; on the CPU
it stops as soon as nothing changes.
"""

from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

Neighbors = Literal[4, 8]


# In reading order. Every back end looks for a vertex's predecessor in this order, so ties are broken alike.
OFFSETS: Final[dict[int, tuple[tuple[int, int], ...]]] = {
    4: ((-1, 0), (0, -1), (0, 1), (1, 0)),
    8: ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)),
}


def longest_path(height: int, width: int, neighbors: int) -> int:
    """The most vertices that a best path with the fewest vertices can have on this grid.

    Such a path has no chord: two of its vertices that touch are consecutive, or the part between them could be left
    out at no cost. It therefore holds at most two vertices of a 2×2 block where diagonals touch (a third would close
    a triangle), and at most three where they do not.
    """
    blocks = ((height + 1) // 2) * ((width + 1) // 2)
    return min(blocks * (2 if neighbors == 8 else 3), height * width)


def solve(costs: Tensor, neighbors: int, start: int, goal: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Path (bool), cost (float64), unique and reachable of contiguous maps `(B, H, W)`."""
    batch, height, width = costs.shape
    invalid = costs.isnan().flatten(1).any(1)
    # NaN compares as false and becomes 0, which harms no other map; its own map is overruled below.
    costs = torch.where(costs > 0, costs, 0).double()
    rounds = longest_path(height, width, neighbors) - 1

    distance = _distances(costs, neighbors, start, rounds)
    tight = _tight(distance, costs, neighbors, start)
    hops = _hops(tight, neighbors, start, rounds)
    parent = _parents(tight, hops, neighbors)

    cost = torch.where(invalid, torch.nan, distance.flatten(1)[:, goal])
    reachable = cost.isfinite()
    path = _walk(parent.flatten(1), goal, rounds) & reachable[:, None]
    tied = (tight.sum(0) > 1).flatten(1)
    unique = ~(tied & path).any(1) & reachable
    return path.view(batch, height, width), cost, unique, reachable


def _distances(costs: Tensor, neighbors: int, start: int, rounds: int) -> Tensor:
    """The least solution of d[v] = min over neighbours u of d[u] + c[v], with d[start] = c[start]."""
    # Negated, because torch pools maxima; negation is exact, so the sums round the same.
    negated = torch.full_like(costs, -torch.inf)
    negated.flatten(1)[:, start] = -costs.flatten(1)[:, start]
    for _ in range(rounds):
        if neighbors == 8:
            nearest = functional.max_pool2d(negated, 3, stride=1, padding=1)
        else:
            nearest = torch.maximum(
                functional.max_pool2d(negated, (3, 1), stride=1, padding=(1, 0)),
                functional.max_pool2d(negated, (1, 3), stride=1, padding=(0, 1)),
            )
        relaxed = torch.maximum(negated, nearest - costs)
        if costs.device.type == "cpu" and torch.equal(relaxed, negated):
            break
        negated = relaxed
    return -negated


def _shifted(values: Tensor, neighbors: int, outside: float) -> Tensor:
    """The values of every vertex's neighbours, `(K, B, H, W)` in the order of OFFSETS."""
    height, width = values.shape[-2:]
    padded = functional.pad(values, (1, 1, 1, 1), value=outside)
    return torch.stack([padded[:, 1 + i : 1 + i + height, 1 + j : 1 + j + width] for i, j in OFFSETS[neighbors]])


def _tight(distance: Tensor, costs: Tensor, neighbors: int, start: int) -> Tensor:
    """Which neighbours u of v have d[u] + c[v] == d[v]: `(K, B, H, W)`, none for the start."""
    tight = (_shifted(distance, neighbors, torch.inf) + costs == distance) & distance.isfinite()
    tight.flatten(2)[:, :, start] = False
    return tight


def _hops(tight: Tensor, neighbors: int, start: int, rounds: int) -> Tensor:
    """The fewest steps from the start to each vertex along tight edges."""
    far = 2**30
    hops = torch.full(tight.shape[1:], far, dtype=torch.int32, device=tight.device)
    hops.flatten(1)[:, start] = 0
    for _ in range(rounds):
        reached = _shifted(hops, neighbors, far).masked_fill_(~tight, far).amin(0) + 1
        relaxed = torch.minimum(hops, reached)
        if hops.device.type == "cpu" and torch.equal(relaxed, hops):
            break
        hops = relaxed
    return hops


def _parents(tight: Tensor, hops: Tensor, neighbors: int) -> Tensor:
    """The flat index of each vertex's predecessor: the first tight one that is a step nearer the start."""
    height, width = hops.shape[-2:]
    chosen = tight & (_shifted(hops, neighbors, 2**30) == hops - 1)
    here = torch.arange(height * width, device=tight.device).view(height, width)
    parent = here.expand(hops.shape)
    # From the last neighbour to the first, so that the first has the last word.
    for nearer, (i, j) in zip(chosen.flip(0), reversed(OFFSETS[neighbors]), strict=True):
        parent = torch.where(nearer, here + (i * width + j), parent)
    return parent


def _walk(parent: Tensor, goal: int, rounds: int) -> Tensor:
    """Follow the predecessors from the goal until they stand still at the start: `(B, H·W)`."""
    path = torch.zeros_like(parent, dtype=torch.bool)
    position = torch.full_like(parent[:, :1], goal)
    path[:, goal] = True
    for _ in range(rounds):
        previous = parent.gather(1, position)
        if parent.device.type == "cpu" and torch.equal(previous, position):
            break
        position = previous
        path.scatter_(1, position, True)
    return path
