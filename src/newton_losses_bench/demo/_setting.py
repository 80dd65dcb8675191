"""The task of the demonstration and its arms.

Two-digit numbers, drawn in a 5×7 pixel font and distorted at random, are to be ranked from the order of sets of
five. The network gets the pixels as they are, 0 to 255, and so starts with scores far apart: the situation in
which the usual loss of differentiable sorting fails. On the real benchmark scores get as far apart in the
course of a long training; here it takes no time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..config import SortingConfig
from ..data import Affine, LabeledImages, Splits
from ..tasks import SortingTask

# Ten digits of 5×7 pixels, a word a row.
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


@dataclass(frozen=True, kw_only=True)
class DemoConfig(SortingConfig):
    """A run of the demonstration. Only what an arm changes differs from the paper's values, and `steps`."""

    sources: ClassVar[tuple[str, ...]] = ("glyphs",)

    algorithm: str = "softsort"
    data: str = "glyphs"
    digits: int = 2
    batch_size: int = 32
    steps: int = 2_500
    eval_every: int = 125
    validation_sets: int = 200
    test_sets: int = 1_000
    device: str = "cpu"

    def with_arm(self, arm: "Arm", seed: int) -> Self:
        """This configuration for one arm and seed, resolved."""
        return replace(self, seed=seed, **arm.settings).resolved()


@dataclass(frozen=True)
class Arm:
    """One of the things compared: a short name for files, a title and a colour for people, settings for the run."""

    name: str
    title: str
    colour: str
    settings: dict[str, Any]


ARMS = (
    Arm("plain", "usual loss", "#c0392b", {"numerics": "reference"}),
    Arm("clipped", "usual loss, gradient clipping", "#e08e3c", {"numerics": "reference", "clip_norm": 1.0}),
    Arm(
        "newton",
        "usual loss + Newton (Fisher)",
        "#2e6fb7",
        {"numerics": "reference", "curvature": "fisher", "damping": 100.0},
    ),
    Arm("stable", "stable loss", "#3a9d5d", {"numerics": "stable"}),
    Arm(
        "stable-newton",
        "stable loss + Newton (Fisher)",
        "#7b4fa3",
        {"numerics": "stable", "curvature": "fisher", "damping": 100.0},
    ),
)


class RawPixelNetwork(nn.Module):
    """Scores from unscaled pixels: `(B, n, 1, height, width)` from 0 to 1, taken times 255, to `(B, n)`."""

    def __init__(self, image_size: tuple[int, int], precision: str = "float32") -> None:
        super().__init__()
        height, width = image_size
        self.layers = nn.Sequential(
            nn.Linear(height * width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(255 * images.flatten(-3))
        return scores.squeeze(-1)


def glyphs() -> Splits[LabeledImages]:
    """Distorted digits of 10×10 pixels: turned, shifted, slanted and scaled at random, the same in every run."""
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


def make_demo_task(config: DemoConfig) -> SortingTask:
    """The task of a run of the demonstration."""
    network: Callable[[tuple[int, int], str], nn.Module] = RawPixelNetwork
    return SortingTask(config, glyphs(), network)
