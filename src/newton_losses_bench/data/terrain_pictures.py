"""The pixels of generated maps: textures, blended tiles, ragged edges, colour jitter. Integers only.

A tile of 8×8 pixels lies between four corners. The picture of size k×k vertices has 8k×8k pixels; vertex
(i, j) lies at pixel (8i + 4, 8j + 4), so the tile grid is shifted by (4, 4) pixels. Textures are sheets of 64×64 pixels
that tile without seams, several per terrain, drawn from a seed that no caller chooses, so that all sets look alike.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from .path_maps import TILE
from .terrain_layout import NAMES, Integers, Streams, below

SHEET = 64
VARIANTS = 4
_TEXTURE_SEED = 0x7E44A1
_BAND = 48  # out of 256: how far behind the strongest terrain another one still shows through
_EDGE = 3  # edges are displaced by noise of up to 3/8 of the bilinear weights
_JITTER = 12  # half width of the jitter of a terrain's colour, the same all over a map
_GRAIN = 8  # half width of the noise of a single pixel
_TERRAINS = len(NAMES)


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


# Textures


@cache
def texture_sheets() -> NDArray[np.int16]:
    """All sheets, `(terrain, variant, channel, row, column)`, values about 0 to 255."""
    painters = (_grass, _earth, _forest, _water, _rock)
    sheets = np.empty((len(painters), VARIANTS, 3, SHEET, SHEET), dtype=np.int16)
    for terrain, paint in enumerate(painters):
        for variant in range(VARIANTS):
            streams = Streams(_TEXTURE_SEED, terrain, variant, 1)
            sheets[terrain, variant] = paint(streams)
    sheets.flags.writeable = False
    return sheets


@cache
def edge_sheets() -> NDArray[np.int16]:
    """Smooth noise from −128 to 127, `(VARIANTS, row, column)`, which makes the edges of regions ragged."""
    sheets = [_noise(Streams(_TEXTURE_SEED, 1000, variant, 1), passes=2) for variant in range(VARIANTS)]
    return (np.stack(sheets) - 128).astype(np.int16)


def _noise(streams: Streams, passes: int) -> Integers:
    """Noise under `passes` 3×3 box filters on the torus, stretched to the range 0 to 255."""
    noise = streams.octets(SHEET * SHEET).reshape(SHEET, SHEET).astype(np.int64)
    for _ in range(passes):
        noise = noise + np.roll(noise, 1, axis=0) + np.roll(noise, -1, axis=0)
        noise = noise + np.roll(noise, 1, axis=1) + np.roll(noise, -1, axis=1)
    noise -= noise.min()
    stretched: Integers = noise * 255 // noise.max()
    return stretched


def _site_squares(streams: Streams) -> Integers:
    """Squared distances on the torus to one site per square of 8×8 pixels, `(sites, row, column)`."""
    spacing = 8
    across = SHEET // spacing
    words = streams.words(2 * across * across)[0].reshape(2, across, across)
    jitter = below(words, spacing)
    base = np.arange(across) * spacing
    site_rows = (base[:, None] + jitter[0]).ravel()
    site_columns = (base[None, :] + jitter[1]).ravel()
    half = SHEET // 2
    pixels = np.arange(SHEET)
    rows = (pixels[None, :] - site_rows[:, None] + half) % SHEET - half
    columns = (pixels[None, :] - site_columns[:, None] + half) % SHEET - half
    squares: Integers = (rows**2)[:, :, None] + (columns**2)[:, None, :]
    return squares


def _tinted(base: tuple[int, int, int], slope: tuple[int, int, int], height: Integers) -> Integers:
    """Colour `base + slope · height / 256` for each pixel, `(3, row, column)`."""
    colour: Integers = np.array(base)[:, None, None] + (np.array(slope)[:, None, None] * height >> 8)
    return colour


def _grass(streams: Streams) -> Integers:
    mottled = _noise(streams, passes=3) - 128
    blades = _noise(streams, passes=0)
    colour = _tinted((50, 88, 26), (30, 38, 16), mottled)
    return colour + np.where(blades > 205, np.array([16, 26, 6])[:, None, None], 0)


def _earth(streams: Streams) -> Integers:
    worn = _noise(streams, passes=2) - 128
    colour = _tinted((120, 86, 48), (44, 38, 28), worn)
    pebbles = _site_squares(streams).min(axis=0)
    colour += np.where(pebbles <= 1, np.array([30, 28, 24])[:, None, None], 0)
    return colour - np.where((pebbles > 1) & (pebbles <= 4), np.array([14, 13, 10])[:, None, None], 0)


def _forest(streams: Streams) -> Integers:
    squares = _site_squares(streams)
    nearest = squares.min(axis=0)
    # A crown is a dome, lit from the upper left: bright where the way up and left leads off the trunk.
    dome = np.maximum(0, 24 - nearest) * 10
    lit = np.roll(nearest, (2, 2), axis=(0, 1)) - nearest
    leaves = _noise(streams, passes=0) - 128
    height = dome + np.clip(lit, -16, 16) * -4 + (leaves >> 2)
    return _tinted((14, 30, 12), (40, 78, 26), height)


def _water(streams: Streams) -> Integers:
    swell = _noise(streams, passes=3)
    rows = np.arange(SHEET)[:, None] * 32
    phase = (rows + swell * 2) % 256
    ripple = np.abs(phase - 128)  # a triangle wave: it needs no sine, which machines round differently
    crest = np.where(ripple > 112, 60, 0)
    return _tinted((18, 46, 98), (30, 50, 66), ripple + crest + (swell - 128))


def _rock(streams: Streams) -> Integers:
    squares = _site_squares(streams)
    order = np.sort(squares, axis=0)
    facet = squares.argmin(axis=0) * 89 % 64
    crack = np.where(order[1] - order[0] < 8, -80, 0)
    grain = _noise(streams, passes=1) - 128
    return _tinted((98, 94, 92), (110, 108, 104), facet + crack + (grain >> 2))
