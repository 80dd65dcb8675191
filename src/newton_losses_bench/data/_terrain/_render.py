"""From the terrains at the corners to pixels: blended tiles, ragged edges, shifted textures, colour jitter.

A tile of 8×8 pixels lies between four corners. The picture of size k×k vertices has 8k×8k pixels; vertex
(i, j) lies at pixel (8i + 4, 8j + 4), so the tile grid is shifted by (4, 4) pixels.
"""

import numpy as np
from numpy.typing import NDArray

from ._streams import Streams, below
from ._textures import SHEET, VARIANTS, edge_sheets, texture_sheets

TILE = 8
_BAND = 48  # out of 256: how far behind the strongest terrain another one still shows through
_EDGE = 3  # edges are displaced by noise of up to 3/8 of the bilinear weights
_JITTER = 12  # half width of the jitter of a terrain's colour, the same all over a map
_GRAIN = 8  # half width of the noise of a single pixel
_TERRAINS = 5


def render(streams: Streams, corners: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pictures `(N, 8k, 8k, 3)` of the fields `(N, k+2, k+2)`.

    The strength of terrain t at a pixel is the bilinear weight of the corners that have it, out of 256, plus
    noise. With a_t = max(0, strength_t − max strength + band)², the colour is Σ a_t·texture_t / Σ a_t.
    """
    pixels = TILE * (corners.shape[1] - 2)
    textures, edges = _drawn_variation(streams, len(corners), pixels)
    strengths = []
    for terrain in range(_TERRAINS):
        weight = _bilinear(corners == terrain)
        # Noise only where one of the four corners has the terrain: it must not appear out of nothing.
        strengths.append(np.where(weight > 0, weight + edges[:, terrain], -512))
    floor = np.maximum.reduce(strengths) - _BAND
    colour = np.zeros((len(corners), 3, pixels, pixels), dtype=np.int32)
    total = np.zeros((len(corners), 1, pixels, pixels), dtype=np.int32)
    for terrain, strength in enumerate(strengths):
        share = np.maximum(strength - floor, 0).astype(np.int32)[:, None] ** 2
        colour += share * textures[:, terrain]
        total += share
    colour //= total
    colour += _grain(streams, pixels)
    return np.ascontiguousarray(np.clip(colour, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1))


def _bilinear(indicator: NDArray[np.bool_]) -> NDArray[np.int16]:
    """Weights `(N, 8k, 8k)` out of 256 of the corners `(N, k+2, k+2)` in which the indicator is true."""
    rising: NDArray[np.int16] = np.arange(1, 2 * TILE, 2, dtype=np.int16)  # sixteenths, at the centres of the pixels
    falling = rising[::-1]
    values = indicator.astype(np.int16)
    count, side, _ = values.shape
    rows = values[:, :-1, None] * falling[:, None] + values[:, 1:, None] * rising[:, None]
    rows = rows.reshape(count, TILE * (side - 1), side)
    both = rows[..., :-1, None] * falling + rows[..., 1:, None] * rising
    half = TILE // 2
    whole = both.reshape(count, TILE * (side - 1), -1)
    return whole[:, half:-half, half:-half].astype(np.int16, copy=False)


def _drawn_variation(streams: Streams, count: int, pixels: int) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Each map's own texture planes `(N, 5, 3, p, p)` and edge noise `(N, 5, p, p)`.

    For each terrain a map draws a variant, its offset and a jitter of its colour.
    """
    repeats = -(-(pixels + SHEET) // SHEET)
    sheets = np.tile(texture_sheets(), (1, 1, 1, repeats, repeats))
    noises = np.tile(edge_sheets(), (1, repeats, repeats)) * _EDGE >> 2
    words = streams.words(9 * _TERRAINS).reshape(count, 9, _TERRAINS)
    offsets = below(words[:, :4], SHEET)
    variants = below(words[:, 4:6], VARIANTS)
    jitter = (below(words[:, 6:], 2 * _JITTER + 1) - _JITTER).astype(np.int16)
    textures = np.empty((count, _TERRAINS, 3, pixels, pixels), dtype=np.int16)
    edges = np.empty((count, _TERRAINS, pixels, pixels), dtype=np.int16)
    for index in range(count):
        for terrain in range(_TERRAINS):
            row, column, edge_row, edge_column = offsets[index, :, terrain]
            variant, edge_variant = variants[index, :, terrain]
            window = sheets[terrain, variant, :, row : row + pixels, column : column + pixels]
            np.add(window, jitter[index, :, terrain, None, None], out=textures[index, terrain])
            edge_window = noises[edge_variant, edge_row : edge_row + pixels]
            edges[index, terrain] = edge_window[:, edge_column : edge_column + pixels]
    return textures, edges


def _grain(streams: Streams, pixels: int) -> NDArray[np.int16]:
    """Noise of single pixels, the same in all channels, `(N, 1, p, p)`; two bytes make it a triangle."""
    octets = streams.octets(2 * pixels * pixels).astype(np.int16)
    both = octets.reshape(len(octets), 2, pixels, pixels).sum(axis=1, dtype=np.int16) - 255
    grain: NDArray[np.int16] = (both * _GRAIN >> 8)[:, None]
    return grain
