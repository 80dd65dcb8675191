"""Pictures of single digits: MNIST from its files, or downloaded, and the small set that scikit-learn brings."""

import gzip
import hashlib
import os
import struct
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from newton_losses.errors import ShapeError

from .files import DataError, DataNotFoundError, Progress, Splits, data_root, fetch, known_split, root_options

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
# The packed files, as they are published.
FILE_SUMS = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
# The values themselves, one byte each, so that every kind of file is checked in the same way.
_CONTENT_SUMS = {
    "train": ("6510e85a72c3e9475c492d559d3770d2", "e86ee40d66677c011a9abda399ec8c4d"),
    "t10k": ("240610fa99e73bfa49df8e7fc24d3206", "073c3904dfbd3e141ff8aa01cfde6b15"),
}
_NPZ_KEYS = {"train": ("x_train", "y_train"), "t10k": ("x_test", "y_test")}
_TRAINING_IMAGES = 55000

Arrays = tuple[NDArray[np.uint8], NDArray[np.uint8]]
_IDX_UNSIGNED_BYTE = 8
# Of scikit-learn's digits, in the order of the file, which goes from writer to writer: shuffled, one hand would be in
# several parts.
_DIGITS_BOUNDS = {"train": (0, 1297), "val": (1297, 1497), "test": (1497, 1797)}


class LabeledImages:
    """Pictures `images` `(K, height, width)` uint8, 0 black to 255 white, and `labels` `(K,)` int64.

    >>> data = LabeledImages(torch.zeros(3, 8, 8, dtype=torch.uint8), torch.tensor([7, 1, 4]))
    >>> len(data), data[1][1].item(), len(data.part(0, 2))
    (3, 1, 2)
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        if images.ndim != 3 or images.dtype != torch.uint8 or labels.shape != images.shape[:1]:
            raise ShapeError(
                "Labelled images are a uint8 tensor (K, height, width) and K labels, not "
                f"{images.dtype} {tuple(images.shape)} and {tuple(labels.shape)}."
            )
        self.images = images
        self.labels = labels.to(torch.int64)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} images")
        return self.images[index], self.labels[index]

    def part(self, begin: int, end: int) -> "LabeledImages":
        """The images from `begin` up to, not including, `end`."""
        return LabeledImages(self.images[begin:end], self.labels[begin:end])

    def to(self, device: torch.device | str) -> "LabeledImages":
        """The same data on a device."""
        return LabeledImages(self.images.to(device), self.labels.to(device))


class MNIST(LabeledImages):
    """The 60,000 training (`train=True`) or 10,000 test images of MNIST, 28×28.

    Read from `root/MNIST/raw/` as torchvision keeps them (idx files, packed or not), or else from `mnist.npz`
    in `root/MNIST/` or `root/` (keys `x_train`, `y_train`, `x_test`, `y_test`). With `download`, packed idx
    files that are missing are fetched there first. With `check`, the contents have to be MNIST's, byte for byte,
    wherever they come from.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        train: bool = True,
        download: bool = False,
        check: bool = True,
        mirrors: Sequence[str] = MIRRORS,
        progress: Progress | None = None,
    ) -> None:
        base = data_root(root)
        part = "train" if train else "t10k"
        if download and not _is_there(base, part):
            for name in (name for name in FILE_SUMS if name.startswith(part)):
                fetch(base / "MNIST" / "raw", name, FILE_SUMS[name], mirrors, progress)
        arrays = _read(base, part)
        if arrays is None:
            command = " ".join(["newton-losses data fetch mnist", *root_options(base)])
            raise DataNotFoundError(
                f"MNIST is not there. Looked for {part}-images-idx3-ubyte and {part}-labels-idx1-ubyte, "
                f"packed as .gz or not, in {base / 'MNIST' / 'raw'}, and for {base / 'MNIST' / 'mnist.npz'} "
                f"and {base / 'mnist.npz'}. Fetch it with `{command}` "
                "(download=True in Python), or put one of these there."
            )
        if check:
            _check_content(base, part, arrays)
        # A copy, since torch wants memory that may be written to.
        super().__init__(*(torch.from_numpy(array.copy()) for array in arrays))

    @staticmethod
    def splits(
        root: str | os.PathLike[str] | None = None,
        download: bool = False,
        progress: Progress | None = None,
    ) -> Splits[LabeledImages]:
        """The protocol's parts: the first 55,000 training images, the other 5,000, the 10,000 test images."""
        train = MNIST(root, train=True, download=download, progress=progress)
        test = MNIST(root, train=False, download=download, progress=progress)
        return Splits(
            train.part(0, _TRAINING_IMAGES), train.part(_TRAINING_IMAGES, len(train)), test.part(0, len(test))
        )

    @staticmethod
    def places(root: str | os.PathLike[str] | None = None) -> list[Path]:
        """Where its files are looked for: a folder, and two files."""
        base = data_root(root)
        return [base / "MNIST" / "raw", *_npz_names(base)]


def _idx_files(base: Path, part: str, suffix: str) -> list[Path]:
    return [base / "MNIST" / "raw" / f"{part}-{name}-ubyte{suffix}" for name in ("images-idx3", "labels-idx1")]


def _npz_files(base: Path) -> list[Path]:
    return [path for path in _npz_names(base) if path.exists()]


def _npz_names(base: Path) -> tuple[Path, Path]:
    return base / "MNIST" / "mnist.npz", base / "mnist.npz"


def _is_there(base: Path, part: str) -> bool:
    """Is there anything but packed files? Those the download itself looks at: it replaces damaged ones."""
    return bool(_npz_files(base)) or all(path.exists() for path in _idx_files(base, part, ""))


def _read(base: Path, part: str) -> Arrays | None:
    """Images and labels from the first place where there are any, else None."""
    for suffix in ("", ".gz"):
        images, labels = _idx_files(base, part, suffix)
        if images.exists() and labels.exists():
            return read_idx(images), read_idx(labels)
    for path in _npz_files(base):
        return _read_npz(path, part)
    return None


def _read_npz(path: Path, part: str) -> Arrays:
    images_key, labels_key = _NPZ_KEYS[part]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return arrays[images_key].astype(np.uint8), arrays[labels_key].astype(np.uint8)
    except KeyError as error:
        raise DataError(f"{path} has no array {error}; it needs x_train, y_train, x_test, y_test.") from error
    except Exception as error:
        # numpy, zipfile and zlib have many ways to fail at what they did not write.
        raise DataError(f"{path} cannot be read ({error}): it is truncated or damaged.") from error


def _check_content(base: Path, part: str, arrays: Arrays) -> None:
    for what, array, wanted in zip(("images", "labels"), arrays, _CONTENT_SUMS[part], strict=True):
        found = hashlib.md5(array.tobytes(), usedforsecurity=False).hexdigest()
        if found != wanted:
            raise DataError(
                f"The {part} {what} under {base} are not MNIST's: the md5 sum of their values is {found}, "
                f"not {wanted}. Remove the files and fetch them again, or pass check=False for another set "
                "in the same format."
            )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes: two zero bytes, a type, the number of axes, big-endian lengths, the values.

    A name that ends in `.gz` is unpacked on the way.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}): it is truncated or damaged.") from error
    if len(content) < 4 or content[:3] != bytes((0, 0, _IDX_UNSIGNED_BYTE)):
        raise DataError(f"{path} does not begin like an idx file of unsigned bytes: it is damaged.")
    axes = content[3]
    begin = 4 + 4 * axes
    if len(content) < begin:
        raise DataError(f"{path} ends within its header, after {len(content)} bytes: it is truncated.")
    shape = struct.unpack(f">{axes}I", content[4:begin])
    if len(content) != begin + prod(shape):
        raise DataError(
            f"{path} has {len(content) - begin} values where its header {shape} asks for {prod(shape)}: "
            "it is truncated or damaged."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=begin).reshape(shape)


class Digits(LabeledImages):
    """One split of scikit-learn's digits: the first 1,297 pictures, the next 200, the last 300.

    Their 17 grey levels are stretched to 0, …, 255. A set this small is soon known by heart: draw training
    sets with an `Affine` to get an endless supply.

    >>> Digits("test").images.shape
    torch.Size([300, 8, 8])
    """

    def __init__(self, split: str = "train") -> None:
        from sklearn.datasets import load_digits

        begin, end = _DIGITS_BOUNDS[known_split(split)]
        data = load_digits()
        levels = torch.from_numpy(data.images[begin:end]).to(torch.int32)
        images = (levels * 255 + 8) // 16
        super().__init__(images.to(torch.uint8), torch.from_numpy(data.target[begin:end]))

    @staticmethod
    def splits() -> Splits[LabeledImages]:
        """All three splits."""
        return Splits(*(Digits(split) for split in Splits._fields))
