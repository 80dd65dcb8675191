"""Look-alike maps, drawn by a seeded generator, for when the Warcraft files are not there.

They have the same form (corners as vertices, blended 8-pixel tiles, five terrains with the same costs, file
names and dtypes) and are not that benchmark: figures on them do not compare with figures on it. All
arithmetic is on integers, so that a seed gives the same bytes on every machine.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from newton_losses.errors import ArgumentError

from ..machine import locked
from .files import (
    DataError,
    DataNotFoundError,
    Splits,
    atomic_folder,
    data_root,
    file_md5,
    known_split,
    root_options,
    written_to,
)
from .path_maps import PARTS, TILE, MapFiles, PathMaps, file_name, normalized_splits
from .terrain_layout import NAMES as NAMES
from .terrain_layout import TENTHS, Streams, draw_corners
from .terrain_pictures import render

VERSION = 1
COSTS = (TENTHS / 10).astype(np.float16)
_FACTS = "terrain.json"
_CHUNK = 32  # maps drawn at once: the intermediate arrays still fit a processor's cache


class Drawn(NamedTuple):
    """Drawn maps as arrays: uint8 `(N, 8k, 8k, 3)`, float16 `(N, k, k)`, uint8 of 0 and 1 `(N, k, k)`."""

    maps: NDArray[np.uint8]
    weights: NDArray[np.float16]
    paths: NDArray[np.uint8]


def draw(
    count: int,
    size: int = 12,
    seed: int = 0,
    split: str = "train",
    first: int = 0,
    advance: Callable[[int], None] | None = None,
) -> Drawn:
    """Draw the maps number `first`, …, `first + count − 1` of a split. Each has one shortest path, no ties.

    `advance(more)` is called after every few maps.

    >>> maps, weights, paths = draw(2, size=6)
    >>> maps.shape, weights.shape, paths.shape
    ((2, 48, 48, 3), (2, 6, 6), (2, 6, 6))
    >>> bool((draw(1, size=6, first=1).maps[0] == maps[1]).all())
    True
    """
    _check_numbers(count, size, seed)
    if first < 0:
        raise ArgumentError(f"terrain.draw: first={first} is negative; maps are counted from 0.")
    set_number = Splits._fields.index(known_split(split))
    side = TILE * size
    drawn = Drawn(
        np.empty((count, side, side, 3), np.uint8),
        np.empty((count, size, size), np.float16),
        np.empty((count, size, size), np.uint8),
    )
    for begin in range(0, count, _CHUNK):
        end = min(begin + _CHUNK, count)
        streams = Streams(seed, set_number, first + begin, end - begin)
        corners, paths = draw_corners(streams, end - begin, size)
        drawn.maps[begin:end] = render(streams, corners)
        drawn.weights[begin:end] = COSTS[corners[:, 1:-1, 1:-1]]
        drawn.paths[begin:end] = paths
        if advance is not None:
            advance(end - begin)
    return drawn


def make(
    root: str | os.PathLike[str] | None = None,
    size: int = 12,
    counts: Sequence[int] = (10000, 1000, 1000),
    seed: int = 0,
    overwrite: bool = False,
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Write the three splits to `root/terrain/<size>x<size>/` and return that folder.

    A set that is already there with the same settings is left as it is, and one with other settings refused; with
    `overwrite` it is replaced, whatever it is. `advance(more)` is called after every few maps. An interrupted call
    leaves everything as it was: the set appears, or takes the place of the old one, once all of it is there.
    """
    if len(counts) != 3:
        raise ArgumentError(f"terrain.make: counts={tuple(counts)} has to be three numbers, train, val and test.")
    for count in counts:
        _check_numbers(count, size, seed)
    folder = _folder(data_root(root), size)
    settings = {"version": VERSION, "size": size, "counts": list(counts), "seed": seed}
    # What is to be replaced anyway may be damaged, and is often why.
    there = None if overwrite else _facts(folder)
    if there is not None and there["settings"] == settings:
        return folder
    if there is not None:
        raise ArgumentError(
            f"terrain.make: {folder} already holds a set with other settings, {there['settings']}; asked for "
            f"{settings}. Choose another root, or replace it with overwrite=True (--overwrite)."
        )
    with written_to(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Other processes that need the maps wait meanwhile.
        with locked(folder.parent):
            if not overwrite and _facts(folder) is not None:
                return folder
            with atomic_folder(folder) as temporary:
                for split, count in zip(Splits._fields, counts, strict=True):
                    arrays: tuple[NDArray[Any], ...] = draw(count, size, seed, split, advance=advance)
                    for part, array in zip(PARTS, arrays, strict=True):
                        np.save(temporary / file_name(split, part), array)
                sums = {path.name: file_md5(path) for path in sorted(temporary.iterdir())}
                facts = {"settings": settings, "md5": sums}
                (temporary / _FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return folder


def load(root: str | os.PathLike[str] | None, size: int, counts: Sequence[int], seed: int) -> Splits[PathMaps]:
    """So many maps of each split as tensors, normalised by the training maps; stored first if none of this size are.

    What is stored is used where it has the seed and as many maps: a longer set begins with the shorter one. Other maps
    are drawn every time.
    """
    if _facts(_folder(data_root(root), size)) is None:
        make(root, size, counts, seed)
    stored = [Terrain(root, split, size) for split in Splits._fields]
    enough = all(len(files) >= count for files, count in zip(stored, counts, strict=True))
    if enough and stored[0].settings["seed"] == seed:
        return normalized_splits(files.path_maps(count) for files, count in zip(stored, counts, strict=True))
    drawn = (draw(count, size, seed, split) for split, count in zip(Splits._fields, counts, strict=True))
    return normalized_splits(PathMaps.from_arrays(*arrays) for arrays in drawn)


class Terrain(MapFiles):
    """One split of look-alike maps from `root/terrain/<size>x<size>/`, as `make` wrote them.

    With `check`, the md5 sums of the split's files are compared.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        split: str = "train",
        size: int = 12,
        check: bool = True,
    ) -> None:
        folder = _folder(data_root(root), size)
        facts = _facts(folder)
        if facts is None:
            raise DataNotFoundError(f"There is no finished set of look-alike maps in {folder}. {_advice(folder, size)}")
        self.settings: dict[str, object] = facts["settings"]
        super().__init__(folder, split, size, facts["md5"], _advice(folder, size, facts["settings"]), check)

    @staticmethod
    def splits(root: str | os.PathLike[str] | None = None, size: int = 12, check: bool = True) -> Splits[PathMaps]:
        """All three splits as tensors, normalised by the mean and standard deviation of the training maps."""
        return normalized_splits(Terrain(root, split, size, check).path_maps() for split in Splits._fields)


def _folder(root: Path, size: int) -> Path:
    return root / "terrain" / f"{size}x{size}"


def _facts(folder: Path) -> dict[str, Any] | None:
    """What `make` wrote down last about the set in a folder; None if there is no finished set."""
    path = folder / _FACTS
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return {"settings": dict(facts["settings"]), "md5": dict(facts["md5"])}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError) as error:
        size = int(folder.name.partition("x")[0])
        raise DataError(f"{path} is damaged ({error!r}). {_advice(folder, size, {})}") from error


def _advice(folder: Path, size: int, damaged: dict[str, Any] | None = None) -> str:
    """How to draw a set that is not there, or again one that is `damaged`, of these settings where they are known."""
    options = [f"--size {size}", *root_options(folder.parents[1])]
    if damaged:
        train, test, _ = damaged["counts"]
        options += [f"--train {train}", f"--test {test}", f"--seed {damaged['seed']}"]
    options += ["--overwrite"] if damaged is not None else []
    return f"Draw the maps with `newton-losses data make terrain {' '.join(options)}`, in Python with terrain.make."


def _check_numbers(count: int, size: int, seed: int) -> None:
    if count < 1:
        raise ArgumentError(f"terrain: {count} maps were asked for; expected at least one.")
    if not 2 <= size <= 128:
        raise ArgumentError(f"terrain: size={size} is not possible; a side has 2 to 128 vertices.")
    if not 0 <= seed < 1 << 64:
        raise ArgumentError(f"terrain: seed={seed} is not possible; it is an integer from 0 to 2⁶⁴ − 1.")
