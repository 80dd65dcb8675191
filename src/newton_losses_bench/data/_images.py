"""Labelled pictures of single digits as tensors: what every source of digits gives, whatever its files."""

import torch
from torch import Tensor

from newton_losses.errors import ShapeError


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
