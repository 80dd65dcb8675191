"""The textures of the five terrains: sheets of 64×64 pixels that tile without seams, several per terrain.

They are drawn once, from a seed of their own that no caller chooses, so that all sets look alike.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ._streams import Integers, Streams, below

SHEET = 64
VARIANTS = 4
_TEXTURE_SEED = 0x7E44A1


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


def _site_squares(streams: Streams, spacing: int = 8) -> Integers:
    """Squared distances on the torus to one site a square of 8×8 pixels, `(sites, row, column)`."""
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
