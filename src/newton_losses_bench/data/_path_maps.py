"""Maps, costs and paths as tensors on a device, and the batches of an epoch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from newton_losses.errors import ArgumentError, ShapeError


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
        if generator.device.type != self.maps.device.type:
            raise ArgumentError(
                f"PathMaps: the generator is on {generator.device}, the data on {self.maps.device}. Make it "
                f"with torch.Generator(device={str(self.maps.device)!r})."
            )
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
