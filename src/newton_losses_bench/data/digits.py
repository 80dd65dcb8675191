"""Pictures of single digits, and sets of many-digit numbers put together from them on the device.

The pictures are MNIST's, from its files or downloaded, or the small set that scikit-learn brings.
"""

import gzip
import hashlib
import math
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from newton_losses.errors import ArgumentError, ShapeError

from .files import DataError, DataNotFoundError, Splits, data_root, fetch, root_options

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
    >>> len(data), len(data.part(0, 2))
    (3, 2)
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
    ) -> None:
        base = data_root(root)
        part = "train" if train else "t10k"
        if download and not _is_there(base, part):
            for name in (name for name in FILE_SUMS if name.startswith(part)):
                fetch(base / "MNIST" / "raw", name, FILE_SUMS[name], MIRRORS)
        arrays = _read(base, part)
        if arrays is None:
            command = " ".join(["newton-losses data fetch mnist", *root_options(base)])
            raise DataNotFoundError(
                f"MNIST is not in {base}. Fetch it with `{command}` (download=True in Python), or take the smaller "
                f"set `digits`, which needs no download. Looked for {part}-images-idx3-ubyte and "
                f"{part}-labels-idx1-ubyte, packed as .gz or not, in {base / 'MNIST' / 'raw'}, and for "
                f"{base / 'MNIST' / 'mnist.npz'} and {base / 'mnist.npz'}."
            )
        if check:
            _check_content(base, part, arrays)
        # A copy, since torch wants memory that may be written to.
        super().__init__(*(torch.from_numpy(array.copy()) for array in arrays))

    @staticmethod
    def splits(root: str | os.PathLike[str] | None = None, download: bool = False) -> Splits[LabeledImages]:
        """The protocol's parts: the first 55,000 training images, the other 5,000, the 10,000 test images."""
        train = MNIST(root, train=True, download=download)
        test = MNIST(root, train=False, download=download)
        return Splits(
            train.part(0, _TRAINING_IMAGES), train.part(_TRAINING_IMAGES, len(train)), test.part(0, len(test))
        )


def _idx_files(base: Path, part: str, suffix: str) -> list[Path]:
    return [base / "MNIST" / "raw" / f"{part}-{name}-ubyte{suffix}" for name in ("images-idx3", "labels-idx1")]


def _npz_files(base: Path) -> list[Path]:
    return [path for path in (base / "MNIST" / "mnist.npz", base / "mnist.npz") if path.exists()]


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
    if len(content) != begin + math.prod(shape):
        raise DataError(
            f"{path} has {len(content) - begin} values where its header {shape} asks for {math.prod(shape)}: "
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

        if split not in _DIGITS_BOUNDS:
            raise ArgumentError(f"split={split!r} is not known; it is one of 'train', 'val', 'test'.")
        begin, end = _DIGITS_BOUNDS[split]
        data = load_digits()
        levels = torch.from_numpy(data.images[begin:end]).to(torch.int32)
        images = (levels * 255 + 8) // 16
        super().__init__(images.to(torch.uint8), torch.from_numpy(data.target[begin:end]))

    @staticmethod
    def splits() -> Splits[LabeledImages]:
        """All three splits."""
        return Splits(*(Digits(split) for split in Splits._fields))


# Numbers of several digits


@dataclass(frozen=True)
class Affine:
    """Half widths of uniform draws, one for each picture: 0 switches a kind of change off.

    `shift` is in shares of the side, `rotation` in degrees, `scale` and `slant` are relative. Zero all of
    them and pictures stay what they are.

    >>> generator = torch.Generator().manual_seed(0)
    >>> affine = Affine()
    >>> affine.apply(torch.zeros(3, 8, 8), affine.draw(3, generator)).shape
    torch.Size([3, 8, 8])
    """

    shift: float = 0.08
    rotation: float = 12.0
    scale: float = 0.12
    slant: float = 0.2

    def __post_init__(self) -> None:
        if min(self.shift, self.rotation, self.scale, self.slant) < 0 or self.scale >= 1:
            raise ArgumentError(f"{self}: widths are not negative, and scale is below 1.")

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Random changes of `count` pictures, on the generator's device: `(count, 2, 3)` matrices.

        A matrix maps places of the new picture to places of the old, both from −1 to 1 along each axis.
        """
        uniform = 2 * torch.rand(6, count, generator=generator, device=generator.device) - 1
        angle = uniform[0] * math.radians(self.rotation)
        slant = uniform[1] * self.slant
        width, height = 1 + uniform[2] * self.scale, 1 + uniform[3] * self.scale
        # Twice, because the side is 2 long in these coordinates.
        right, down = 2 * self.shift * uniform[4], 2 * self.shift * uniform[5]
        cosine, sine = angle.cos(), angle.sin()
        first = torch.stack((cosine / width, (slant * cosine - sine) / height, right), dim=-1)
        second = torch.stack((sine / width, (slant * sine + cosine) / height, down), dim=-1)
        return torch.stack((first, second), dim=1)

    @staticmethod
    def apply(images: Tensor, matrices: Tensor) -> Tensor:
        """Change float pictures `(M, height, width)` by `(M, 2, 3)` matrices; outside of them is black."""
        planes = images.unsqueeze(1)
        grid = functional.affine_grid(matrices, list(planes.shape), align_corners=False)
        return functional.grid_sample(planes, grid, mode="bilinear", align_corners=False).squeeze(1)


class DigitBatch(NamedTuple):
    """`images` `(B, n, 1, height, digits·width)`, and their `values` `(B, n)` int64.

    Images are float32 from 0 to 1, or bytes from 0 to 255 where those were asked for.
    """

    images: Tensor
    values: Tensor


class MultiDigit:
    """Draws sets of `n` numbers of `num_digits` digits each, every digit uniformly and with replacement.

    The value of a number is Σ_d 10^(num_digits−1−d)·label_d, its picture the digits side by side, divided by
    255. Two numbers of a set may be equal. Pictures and labels stay on the device on which they are given.
    With `affine`, every digit is changed at random each time it is drawn: an endless supply. With `as_bytes`
    pictures stay the bytes that they are stored as.

    A step is `draw` (all the randomness) and `assemble` (no randomness); `sample` does both. Neither
    synchronises with the host, so a CUDA graph can hold them; register the generator with the graph.

    >>> data = LabeledImages(torch.zeros(10, 8, 8, dtype=torch.uint8), torch.arange(10))
    >>> sets = MultiDigit(data, n=5)
    >>> images, values = sets.sample(3, torch.Generator().manual_seed(0))
    >>> images.shape, values.shape
    (torch.Size([3, 5, 1, 8, 32]), torch.Size([3, 5]))
    """

    def __init__(
        self,
        data: LabeledImages,
        n: int = 5,
        num_digits: int = 4,
        affine: Affine | None = None,
        as_bytes: bool = False,
    ) -> None:
        if n < 1 or not 1 <= num_digits <= 18:
            raise ArgumentError(f"MultiDigit: n={n} has to be at least 1, and num_digits={num_digits} 1 to 18.")
        if len(data) == 0:
            raise ArgumentError("MultiDigit: there are no pictures to draw from.")
        if affine is not None and as_bytes:
            raise ArgumentError("MultiDigit: pictures changed by affine are floats. Pass affine or as_bytes, not both.")
        self.n, self.num_digits, self.affine, self._as_bytes = n, num_digits, affine, as_bytes
        self._images = data.images.contiguous()
        self._labels = data.labels
        powers = [10 ** (num_digits - 1 - digit) for digit in range(num_digits)]
        self._powers = torch.tensor(powers, device=data.labels.device)
        self._rows = torch.arange(data.images.shape[1], device=data.images.device)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the picture of a number."""
        height, width = self._images.shape[1:]
        return height, width * self.num_digits

    def draw(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Which pictures, `(B, n, digits)` indices, and their changes, `(B·n·digits, 2, 3)` or None."""
        shape = (batch_size, self.n, self.num_digits)
        indices = torch.randint(len(self._images), shape, generator=generator, device=self._images.device)
        matrices = None if self.affine is None else self.affine.draw(indices.numel(), generator)
        return indices, matrices

    def assemble(self, indices: Tensor, matrices: Tensor | None = None) -> DigitBatch:
        """The pictures and values of what was drawn."""
        values = (self._labels[indices] * self._powers).sum(dim=-1)
        if matrices is None:
            images = self._gather(indices)
            images = images if self._as_bytes else images.to(torch.float32) / 255
        else:
            images = self._gather_changed(indices, matrices)
        return DigitBatch(images, values)

    def sample(self, batch_size: int, generator: torch.Generator) -> DigitBatch:
        """A batch of fresh sets."""
        return self.assemble(*self.draw(batch_size, generator))

    def _gather(self, indices: Tensor) -> Tensor:
        # Row by row, digit by digit, in the order of the result: one gather writes it, nothing is permuted.
        height, width = self._images.shape[1:]
        rows = indices.unsqueeze(-2) * height + self._rows[:, None]
        picked = self._images.reshape(-1, width).index_select(0, rows.flatten())
        return picked.reshape(*indices.shape[:-1], 1, height, -1)

    def _gather_changed(self, indices: Tensor, matrices: Tensor) -> Tensor:
        height, width = self._images.shape[1:]
        digits = self._images.index_select(0, indices.flatten()).to(torch.float32) / 255
        changed = Affine.apply(digits, matrices).reshape(*indices.shape, height, width)
        return changed.transpose(-3, -2).reshape(*indices.shape[:-1], 1, height, -1)
