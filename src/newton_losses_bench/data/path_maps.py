"""Maps with costs and shortest paths: tensors on a device, the file format of the Warcraft set, and that set itself.

Generated maps in the same format are in `terrain.py`.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray
from torch import Tensor

from newton_losses.errors import ShapeError

from .files import DataError, DataNotFoundError, Splits, data_root, known_split, verify_files

# The three files of a split, and the side of a tile in pixels.
PARTS: dict[str, npt.DTypeLike] = {"maps": np.uint8, "vertex_weights": np.float16, "shortest_paths": np.uint8}
TILE = 8

WARCRAFT = "warcraft_shortest_path_oneskin"
WARCRAFT_SIZE = 12
WARCRAFT_SUMS = {
    "train_maps.npy": "c31760c5fbd9d034b6e21a6612895e69",
    "train_vertex_weights.npy": "761cc8098730504335efdefec3b221a6",
    "train_shortest_paths.npy": "1483015985796f3bf9f3e5e00cb8e855",
    "val_maps.npy": "cfe9288a537d46be48c0c287885f8405",
    "val_vertex_weights.npy": "452753f9d8b31ac03bbd532953974072",
    "val_shortest_paths.npy": "95e81a2a3263d6520fa5f07a8701c74a",
    "test_maps.npy": "a5c50ae11e4bd01cb1a2cd76e5849b22",
    "test_vertex_weights.npy": "071dbcf2aa9d98fc255abdcb780151b1",
    "test_shortest_paths.npy": "deae60b10d932e2a37271df4b44e295d",
}
_WARCRAFT_ADVICE = (
    "The Warcraft maps are fetched by hand: download the archive of 915,169,563 bytes from "
    "https://doi.org/10.17617/3.YJCQ5S and unpack it, so that the folder "
    f"{WARCRAFT}/12x12 lies under the data root. Generated look-alike maps need no download: "
    "`newton-losses data make terrain`."
)


class PathBatch(NamedTuple):
    """What a step sees: `images` `(B, 3, 8k, 8k)`, `weights` and `paths` `(B, k, k)`, all float32."""

    images: Tensor
    weights: Tensor
    paths: Tensor


@dataclass(frozen=True)
class PathMaps:
    """A split on one device: `maps` uint8 `(N, 8k, 8k, 3)`, `weights` float16 and `paths` uint8 `(N, k, k)`.

    A batch's images are (pixel − mean) / std, with `mean` and `std` `(3,)` per channel, in units of 0 to 255.

    >>> maps = torch.zeros(5, 16, 16, 3, dtype=torch.uint8)
    >>> cells = torch.ones(5, 2, 2)
    >>> data = PathMaps(maps, cells.half(), cells.byte())
    >>> generator = torch.Generator().manual_seed(0)
    >>> [len(batch.paths) for batch in data.batches(2, generator)]
    [2, 2, 1]
    """

    maps: Tensor
    weights: Tensor
    paths: Tensor
    mean: Tensor | None = None
    std: Tensor | None = None

    def __post_init__(self) -> None:
        if self.maps.ndim != 4 or self.maps.shape[-1] != 3 or len(self.maps) == 0:
            raise ShapeError(f"PathMaps: maps have the shape (N, 8k, 8k, 3), not {tuple(self.maps.shape)}.")
        cells = self.weights.shape
        if self.weights.ndim != 3 or self.paths.shape != cells or len(self.maps) != cells[0]:
            raise ShapeError(
                f"PathMaps: weights and paths have the shape (N, k, k), with N = {len(self.maps)} as for the "
                f"maps, not {tuple(cells)} and {tuple(self.paths.shape)}."
            )

    @classmethod
    def from_arrays(cls, maps: NDArray[Any], weights: NDArray[Any], paths: NDArray[Any]) -> "PathMaps":
        """From arrays of numpy, which are copied: they may be files mapped into memory."""
        return cls(*(torch.from_numpy(np.array(array)) for array in (maps, weights, paths)))

    def __len__(self) -> int:
        return len(self.maps)

    @property
    def size(self) -> int:
        """k, the number of vertices along a side."""
        return self.weights.shape[-1]

    def to(self, device: torch.device | str) -> "PathMaps":
        """The same data on a device."""
        mean = None if self.mean is None else self.mean.to(device)
        std = None if self.std is None else self.std.to(device)
        return PathMaps(self.maps.to(device), self.weights.to(device), self.paths.to(device), mean, std)

    def with_statistics(self, mean: Tensor | None = None, std: Tensor | None = None) -> "PathMaps":
        """Normalise by `mean` and `std`, or by the channels' own mean and standard deviation (divisor N)."""
        if mean is None or std is None:
            mean, std = self._statistics()
        return replace(self, mean=mean, std=std)

    def _statistics(self) -> tuple[Tensor, Tensor]:
        # Counts are integers: they do not depend on the order of summation, so nor on threads or device.
        values = torch.arange(256, device=self.maps.device)
        channels = self.maps.unbind(dim=-1)
        counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in channels])
        total = (counts * values).sum(dim=1)
        squares = (counts * values.square()).sum(dim=1)
        count = self.maps[..., 0].numel()
        mean = total.double() / count
        variance = squares.double() / count - mean.square()
        # A channel without any variation, as in a test picture of one colour, would divide by zero.
        std = torch.where(variance > 0, variance, 1.0).sqrt()
        return mean.float(), std.float()

    def order(self, generator: torch.Generator | None) -> Tensor:
        """A random order of all samples, drawn on the device; without a generator, the order of the files."""
        if generator is None:
            return torch.arange(len(self), device=self.maps.device)
        return torch.randperm(len(self), generator=generator, device=self.maps.device)

    def batch(self, indices: Tensor) -> PathBatch:
        """The samples at `indices` `(B,)`: pure tensor operations of fixed shape, without synchronisation."""
        pixels = self.maps.index_select(0, indices).to(torch.float32)
        if self.mean is not None and self.std is not None:
            pixels = (pixels - self.mean) / self.std
        # Stored as (row, column, channel), the permuted tensor is in channels_last format: no copy is made.
        images = pixels.permute(0, 3, 1, 2)
        weights = self.weights.index_select(0, indices).to(torch.float32)
        return PathBatch(images, weights, self.paths.index_select(0, indices).to(torch.float32))

    def batches(self, batch_size: int = 70, generator: torch.Generator | None = None) -> Iterator[PathBatch]:
        """One epoch; the last batch may be smaller. With a generator the order is drawn from it at once."""
        for indices in torch.split(self.order(generator), batch_size):
            yield self.batch(indices)


def file_name(split: str, part: str) -> str:
    """The name of a file of the format, as in `train_maps.npy`."""
    return f"{split}_{part}.npy"


class MapFiles:
    """One split in `folder`, mapped into memory. With `check`, the md5 sums of its three files have to be `sums`.

    `maps` is `(N, 8k, 8k, 3)` uint8, `weights` `(N, k, k)` float16, `paths` `(N, k, k)` uint8 of 0 and 1.
    """

    def __init__(self, folder: Path, split: str, size: int, sums: Mapping[str, str], advice: str, check: bool) -> None:
        self.folder, self.split, self.size = folder, known_split(split), size
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
            names = [file_name(split, part) for part in PARTS]
            verify_files(folder, {name: sums[name] for name in names}, advice)

    def __len__(self) -> int:
        return len(self.weights)

    def path_maps(self, count: int | None = None) -> PathMaps:
        """The first `count` maps, or all, as tensors in memory."""
        return PathMaps.from_arrays(self.maps[:count], self.weights[:count], self.paths[:count])


def normalized_splits(parts: Iterable[PathMaps]) -> Splits[PathMaps]:
    """All three splits, normalised by the mean and standard deviation of the training maps."""
    train, *others = parts
    train = train.with_statistics()
    return Splits(train, *(part.with_statistics(train.mean, train.std) for part in others))


def _open(path: Path, dtype: npt.DTypeLike, advice: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataNotFoundError(f"{path} was not found. {advice}") from None
    except Exception as error:
        # A file that ends too early, one that is no .npy file, a pickle: numpy has many ways to fail at a header.
        raise DataError(f"{path} cannot be read as a .npy file ({error}): it is damaged. {advice}") from error
    if array.dtype != dtype:
        raise DataError(f"{path} holds {array.dtype}, not {np.dtype(dtype)}. {advice}")
    return array


class Warcraft(MapFiles):
    """One split of the Warcraft set from `root/warcraft_shortest_path_oneskin/12x12/`.

    `root/Warcraft/12x12/` and `root/Warcraft/warcraft_shortest_path_oneskin/12x12/` do as well. With `check`,
    the md5 sums of the split's files are compared.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None, split: str = "train", check: bool = True) -> None:
        super().__init__(
            _warcraft_folder(data_root(root)), split, WARCRAFT_SIZE, WARCRAFT_SUMS, _WARCRAFT_ADVICE, check
        )

    @staticmethod
    def splits(root: str | os.PathLike[str] | None = None, check: bool = True) -> Splits[PathMaps]:
        """All three splits as tensors, normalised by the mean and standard deviation of the training maps."""
        return normalized_splits(Warcraft(root, split, check).path_maps() for split in Splits._fields)


def _warcraft_folder(root: Path) -> Path:
    candidates = [root / WARCRAFT / "12x12", root / "Warcraft" / "12x12", root / "Warcraft" / WARCRAFT / "12x12"]
    for folder in candidates:
        if folder.is_dir():
            return folder
    places = ", ".join(str(folder) for folder in candidates)
    raise DataNotFoundError(f"The Warcraft maps were not found; looked for the folders {places}. {_WARCRAFT_ADVICE}")
