"""Random shifts, turns, scalings and slants of small pictures, drawn and applied on the device."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from newton_losses.errors import ArgumentError


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
