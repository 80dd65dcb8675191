"""The terrains at the corners of a map: connected regions, scattered single corners, one shortest path.

A map of size k has k×k vertices. They are the inner corners of a (k+2)×(k+2) field whose outermost ring no
path can use: it only shows in the half tiles along the border of the picture.
"""

import numpy as np
from numpy.typing import NDArray

from newton_losses.errors import ArgumentError

from ._distances import optimal_vertices, skipped_by_some
from ._streams import Integers, Streams, below

NAMES = ("grass", "earth", "forest", "water", "rock")
# Ten times the costs 0.8, 1.2, 5.3, 7.7, 9.2: as integers, sums are exact and ties are ties on any machine.
TENTHS = np.array([8, 12, 53, 77, 92], dtype=np.int32)

# What regions are made of: half of them are walkable, so that paths wind instead of breaking through.
_REGION_TERRAINS = np.array([0, 0, 1, 1, 2, 2, 3, 4])
_CORNERS_PER_REGION = 14
_SCATTERED_PER_256 = 24
_UNIT = 16  # positions are in sixteenths of the distance between two corners
_MOST_ROUNDS = 2000


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
