"""Digits drawn in a 5×7 pixel font and distorted at random: the data of the demonstration, which needs no files."""

import functools

import torch

from .digits import Affine, LabeledImages
from .files import Splits

# Ten digits of 5×7 pixels, one word per row.
_FONT = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "01110 10001 00001 00110 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
_COUNTS = Splits(train=20_000, val=2_000, test=5_000)


@functools.cache
def glyphs() -> Splits[LabeledImages]:
    """Distorted digits of 10×10 pixels: rotated, shifted, sheared and scaled at random, the same in every run."""
    rows = [[[int(bit) for bit in word] for word in digit.split()] for digit in _FONT]
    font = torch.zeros(10, 10, 10)
    font[:, 1:8, 2:7] = torch.tensor(rows, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    affine = Affine()

    def draw(count: int) -> LabeledImages:
        labels = torch.randint(10, (count,), generator=generator)
        images = affine.apply(font[labels], affine.draw(count, generator))
        return LabeledImages((255 * images).round().to(torch.uint8), labels)

    return Splits(*(draw(count) for count in _COUNTS))
