"""Where the terrains of a generated map lie, and its one shortest path, drawn with integers only.

A map of size k has k×k vertices. They are the inner corners of a (k+2)×(k+2) field whose outermost ring no
path can use: it only shows in the half tiles along the border of the picture. The pixels are made in
`terrain_pictures.py`.
"""

import numpy as np
from numpy.typing import NDArray

from newton_losses.errors import ArgumentError

Integers = NDArray[np.int64]
IntGrids = NDArray[np.int32]
Masks = NDArray[np.bool_]

NAMES = ("grass", "earth", "forest", "water", "rock")
# Ten times the costs 0.8, 1.2, 5.3, 7.7, 9.2: as integers, sums are exact and ties are ties on any machine.
TENTHS = np.array([8, 12, 53, 77, 92], dtype=np.int32)

# What regions are made of: half of them are walkable, so that paths wind instead of breaking through.
_REGION_TERRAINS = np.array([0, 0, 1, 1, 2, 2, 3, 4])
_CORNERS_PER_REGION = 14
_SCATTERED_PER_256 = 24
_UNIT = 16  # positions are in sixteenths of the distance between two corners
_MOST_ROUNDS = 2000
_FAR = np.int32(1 << 28)


# Random integers that are the same on every machine


def below(words: NDArray[np.uint64], bound: int) -> Integers:
    """Map 64-bit words to 0, …, bound − 1 by multiplication and shift; bound is at most 2³¹."""
    return (((words >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)


class Streams:
    """One independent stream of words for each of the maps `first`, …, `first + count − 1` of a set.

    Only the raw 64-bit words of a Philox generator are used: numpy promises their stream, while it may change how
    `Generator` turns them into bounded integers or floats.

    The stream of a map depends on the seed, the set and the map's own number, and on nothing else, so that
    a longer set begins with the shorter one and maps can be drawn in chunks of any length.
    """

    def __init__(self, seed: int, set_number: int, first: int, count: int) -> None:
        self._generators = [
            np.random.Philox(key=np.array([seed, (set_number << 40) + first + offset], dtype=np.uint64))
            for offset in range(count)
        ]

    def words(self, count: int, rows: NDArray[np.intp] | None = None) -> NDArray[np.uint64]:
        """The next `count` words of the streams in `rows` (default: of all), `(len(rows), count)`."""
        chosen = range(len(self._generators)) if rows is None else rows
        words = [self._generators[row].random_raw(count) for row in chosen]
        return np.stack(words).astype(np.uint64)

    def octets(self, count: int) -> NDArray[np.uint8]:
        """The next `count` bytes of every stream, `(streams, count)`, eight from a word."""
        words = self.words(-(-count // 8))
        # Little-endian by name: the bytes must not depend on the machine's own order.
        return words.astype("<u8").view(np.uint8)[:, :count]


# Terrains


def draw_corners(streams: Streams, count: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Draw `count` fields: terrains `(count, size+2, size+2)` and the shortest path `(count, size, size)`.

    Regions are grown from random sites in a randomly warped plane. Then single corners are scattered, and
    wherever two shortest paths tie, some of the vertices that make the difference are drawn again until the
    path is unique.
    """
    side = size + 2
    terrains = _regions(streams, side)
    words = streams.words(2 * side * side).reshape(count, 2, side, side)
    scattered = below(words[:, 0], 256) < _SCATTERED_PER_256
    terrains = np.where(scattered, below(words[:, 1], 5), terrains)
    paths = _make_paths_unique(streams, terrains)
    return terrains.astype(np.uint8), paths


def _regions(streams: Streams, side: int) -> Integers:
    """Every corner takes the terrain of the nearest site, distances measured in a warped plane."""
    sites = max(4, side * side // _CORNERS_PER_REGION)
    words = streams.words(3 * sites)
    margin = _UNIT
    span = _UNIT * side + 2 * margin
    site_rows = below(words[:, :sites], span) - margin
    site_columns = below(words[:, sites : 2 * sites], span) - margin
    site_terrains = _REGION_TERRAINS[below(words[:, 2 * sites :], len(_REGION_TERRAINS))]

    rows, columns = np.mgrid[:side, :side] * _UNIT
    warped_rows = rows + _warp(streams, side)
    warped_columns = columns + _warp(streams, side)
    squares = (warped_rows[:, None] - site_rows[:, :, None, None]) ** 2
    squares += (warped_columns[:, None] - site_columns[:, :, None, None]) ** 2
    nearest = squares.argmin(axis=1).reshape(len(words), -1)
    return np.take_along_axis(site_terrains, nearest, axis=1).reshape(-1, side, side)


def _warp(streams: Streams, side: int) -> Integers:
    """A smooth displacement of about a corner's distance: white noise under two 3×3 box filters."""
    padded = side + 4
    words = streams.words(padded * padded)
    noise = below(words, 256).reshape(-1, padded, padded) - 128
    for _ in range(2):
        noise = noise[:, :-2] + noise[:, 1:-1] + noise[:, 2:]
        noise = noise[:, :, :-2] + noise[:, :, 1:-1] + noise[:, :, 2:]
    return noise >> 5


def _make_paths_unique(streams: Streams, terrains: Integers) -> NDArray[np.bool_]:
    """Draw corners of `terrains` again, in place, until each map has one shortest path; return the paths.

    With five costs nine of ten maps have several shortest paths, and a label that is one of them is
    nothing that a network could learn. Only vertices that some shortest path visits and another avoids are
    drawn again, each with chance 1/4: about five of the 144 vertices of a 12×12 map.
    """
    size = terrains.shape[-1] - 2
    paths = np.zeros((len(terrains), size, size), dtype=np.bool_)
    left = np.arange(len(terrains))
    for _ in range(_MOST_ROUNDS):
        costs = TENTHS[terrains[left, 1:-1, 1:-1]]
        optimal, distances, unique = optimal_vertices(costs)
        paths[left[unique]] = optimal[unique]
        left = left[~unique]
        if len(left) == 0:
            return paths
        differing = skipped_by_some(optimal[~unique], distances[~unique], costs[~unique])
        words = streams.words(2 * size * size, left).reshape(len(left), 2, size, size)
        again = differing & (below(words[:, 0], 4) == 0)
        terrains[left, 1:-1, 1:-1] = np.where(again, below(words[:, 1], 5), terrains[left, 1:-1, 1:-1])
    raise ArgumentError(
        f"terrain: {len(left)} maps of size {size} still had several shortest paths after {_MOST_ROUNDS} "
        "rounds of drawing corners again. Choose a smaller size."
    )


# Exact shortest paths. This is the generator's own solver, because it must know more than a path: whether the path is
# unique. Solvers for training are in `newton_losses.paths`.


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
