"""Maps with costs and shortest paths in the file format of the Warcraft set: three `.npy` files a split.

Reading and checking the format lives here; folders and sums are in `_warcraft.py` and `terrain.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from ._files import DataError, DataNotFoundError, Splits, known_split, verify_files
from ._path_maps import PathMaps

PARTS: dict[str, npt.DTypeLike] = {"maps": np.uint8, "vertex_weights": np.float16, "shortest_paths": np.uint8}
TILE = 8


def file_name(split: str, part: str) -> str:
    """The name of a file of the format, as in `train_maps.npy`."""
    return f"{split}_{part}.npy"


class MapFiles:
    """One split in `folder`, mapped into memory: nothing is read before it is used.

    `maps` is `(N, 8k, 8k, 3)` uint8, `weights` `(N, k, k)` float16, `paths` `(N, k, k)` uint8 of 0 and 1.
    """

    def __init__(self, folder: Path, split: str, size: int, sums: Mapping[str, str], advice: str, check: bool) -> None:
        self.folder, self.split, self.size = folder, known_split(split), size
        self._sums, self._advice = sums, advice
        arrays = [_open(folder / file_name(split, part), dtype, advice) for part, dtype in PARTS.items()]
        self.maps, self.weights, self.paths = arrays
        count = len(self.weights)
        wanted = [(count, TILE * size, TILE * size, 3), (count, size, size), (count, size, size)]
        for part, array, shape in zip(PARTS, arrays, wanted, strict=True):
            if array.shape != shape or count == 0:
                raise DataError(
                    f"{folder / file_name(split, part)} holds an array of shape {array.shape}; maps of size "
                    f"{size}×{size} have {shape} here. {advice}"
                )
        if check:
            self.verify()

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        return self.maps[index], self.weights[index], self.paths[index]

    def verify(self, again: bool = False) -> None:
        """Compare the md5 sums of the three files, once for as long as they do not change, or `again`."""
        names = [file_name(self.split, part) for part in PARTS]
        verify_files(self.folder, {name: self._sums[name] for name in names}, self._advice, again)

    def path_maps(self) -> PathMaps:
        """The whole split as tensors in memory."""
        return PathMaps.from_arrays(self.maps, self.weights, self.paths)


def normalized_splits(train: MapFiles, val: MapFiles, test: MapFiles) -> Splits[PathMaps]:
    """All three splits as tensors, normalised by the mean and standard deviation of the training maps."""
    train_maps = train.path_maps().with_statistics()
    mean, std = train_maps.mean, train_maps.std
    others = (files.path_maps().with_statistics(mean, std) for files in (val, test))
    return Splits(train_maps, *others)


def _open(path: Path, dtype: npt.DTypeLike, advice: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataNotFoundError(f"{path} is not there. {advice}") from None
    except Exception as error:
        # A file that ends too early, one that is no .npy file, a pickle: numpy has many ways to fail at a header.
        raise DataError(f"{path} cannot be read as a .npy file ({error}): it is damaged. {advice}") from error
    if array.dtype != dtype:
        raise DataError(f"{path} holds {array.dtype}, not {np.dtype(dtype)}. {advice}")
    return array
