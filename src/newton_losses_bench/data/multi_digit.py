"""Sets of many-digit numbers, put together on the device from pictures of single digits; random changes of these."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from newton_losses.errors import ArgumentError

from .digits import LabeledImages


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
        grid = F.affine_grid(matrices, list(planes.shape), align_corners=False)
        return F.grid_sample(planes, grid, mode="bilinear", align_corners=False).squeeze(1)


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
            raise ArgumentError("MultiDigit: changed pictures are no bytes any more. Leave as_bytes or affine out.")
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
        device = self._images.device
        if generator.device.type != device.type:
            raise ArgumentError(
                f"MultiDigit: the generator is on {generator.device}, the pictures on {device}. Make it with "
                f"torch.Generator(device={str(device)!r})."
            )
        shape = (batch_size, self.n, self.num_digits)
        indices = torch.randint(len(self._images), shape, generator=generator, device=device)
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
