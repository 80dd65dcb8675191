"""Exact shortest paths with integer vertex costs, for a batch of grids at once: which vertices are optimal?

This is the generator's own solver, because it must know more than a path: whether the path is unique. Solvers
for training are in `newton_losses.paths`.
"""

import numpy as np
from numpy.typing import NDArray

IntGrids = NDArray[np.int32]
Masks = NDArray[np.bool_]
_FAR = np.int32(1 << 28)


def distances_from_start(costs: IntGrids) -> IntGrids:
    """Least cost from (0, 0) to each vertex, both ends counted, 8 neighbours; `(N, H, W)` integers.

    Bellman-Ford on all grids at once: d(v) ← min(d(v), min over neighbours u of d(u) + cost(v)).
    """
    count, height, width = costs.shape
    padded = np.full((count, height + 2, width + 2), _FAR, dtype=np.int32)
    inner = padded[:, 1:-1, 1:-1]
    inner[:, 0, 0] = costs[:, 0, 0]
    while True:
        rows = np.minimum(np.minimum(padded[:, :-2], padded[:, 1:-1]), padded[:, 2:])
        nearest = np.minimum(np.minimum(rows[:, :, :-2], rows[:, :, 1:-1]), rows[:, :, 2:])
        closer = np.minimum(inner, nearest + costs)
        if np.array_equal(closer, inner):
            return closer
        inner[:] = closer


def optimal_vertices(costs: IntGrids) -> tuple[Masks, IntGrids, Masks]:
    """The vertices on any shortest path from (0, 0) to the last vertex, their distances, and "is it unique?".

    A vertex is optimal if d_start(v) + d_end(v) − cost(v) is the total. The path is unique exactly if the
    optimal vertices cost the total together: costs are positive, so a second path would add to the sum.
    """
    from_start = distances_from_start(costs)
    from_end = distances_from_start(costs[:, ::-1, ::-1])[:, ::-1, ::-1]
    total = from_start[:, -1, -1]
    optimal = from_start + from_end - costs == total[:, None, None]
    unique = np.where(optimal, costs, 0).sum(axis=(1, 2)) == total
    return optimal, from_start, unique


def skipped_by_some(optimal: Masks, distances: IntGrids, costs: IntGrids) -> Masks:
    """The optimal vertices that some shortest path avoids.

    Vertex v covers the interval (d(v) − cost(v), d(v)] of the way, and a shortest path covers the whole way
    once. So v is avoided by a path exactly if another optimal vertex also covers the point d(v).
    """
    count = len(optimal)
    flat = optimal.reshape(count, -1)
    most = int(flat.sum(axis=1).max())
    # Gather the few optimal vertices first: all pairs of all vertices would be too many.
    where = np.argsort(~flat, axis=1, kind="stable")[:, :most]
    is_optimal = np.take_along_axis(flat, where, axis=1)
    ends = np.take_along_axis(distances.reshape(count, -1), where, axis=1)
    starts = ends - np.take_along_axis(costs.reshape(count, -1), where, axis=1)
    covers = (starts[:, None, :] < ends[:, :, None]) & (ends[:, :, None] <= ends[:, None, :])
    covered = (covers & is_optimal[:, None, :]).sum(axis=2)
    result = np.zeros_like(flat)
    np.put_along_axis(result, where, is_optimal & (covered > 1), axis=1)
    return result.reshape(optimal.shape)
