"""What the demonstration trains: a task, a network, five losses.

Two-digit numbers, drawn in a 5×7 pixel font and distorted at random, are to be ranked; all that is known is the order
of sets of five. The network gets raw pixels, 0 to 255, and so starts with scores far apart: the situation in which the
usual loss of differentiable sorting fails. On the real benchmark scores get that far apart during a long training; here
they are from the first step on.
"""

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..config import SortingConfig, run_name
from ..data import Affine, LabeledImages, MultiDigit, Splits
from ..settings import setting
from ..sweep import Job
from ..tasks import SortingTask, random_stream
from ..train import Progress, run

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
_PROGRAM = f"{__name__}:train_arm"


def _other_default(name: str, value: Any) -> Any:
    return field(default=value, metadata=SortingConfig.__dataclass_fields__[name].metadata)


@dataclass(frozen=True, kw_only=True)
class DemoConfig(SortingConfig):
    """A run of the demonstration: a sorting run on drawn digits, with small batches and few steps."""

    algorithm: str = _other_default("algorithm", "softsort")
    data: str = setting("data", "Drawn digits.", "glyphs", choices=("glyphs",), protocol=True)
    digits: int = _other_default("digits", 2)
    batch_size: int = _other_default("batch_size", 32)
    steps: int = _other_default("steps", 2_500)
    eval_every: int = _other_default("eval_every", 125)
    validation_sets: int = _other_default("validation_sets", 200)
    test_sets: int = _other_default("test_sets", 1_000)
    device: str = _other_default("device", "cpu")

    def with_arm(self, arm: "Arm", seed: int) -> Self:
        """This configuration for one arm and seed, resolved."""
        return replace(self, seed=seed, **arm.settings).resolved()


@dataclass(frozen=True)
class Arm:
    """One of the losses compared: a short name, a title and a tone of `report.figures`, settings for the run."""

    name: str
    title: str
    tone: int
    settings: dict[str, Any]


_NEWTON = {"curvature": "fisher", "damping": 100.0}
ARMS = (
    Arm("plain", "usual loss", 2, {"numerics": "reference"}),
    Arm("clipped", "usual loss, gradient clipping", 5, {"numerics": "reference", "clip_norm": 1.0}),
    Arm("newton", "usual loss + Newton (Fisher)", 1, {"numerics": "reference", **_NEWTON}),
    Arm("stable", "stable loss", 3, {"numerics": "stable"}),
    Arm("stable-newton", "stable loss + Newton (Fisher)", 4, {"numerics": "stable", **_NEWTON}),
)


class RawPixelNetwork(nn.Module):
    """Scores of raw pixels: `(B, n, 1, height, width)` from 0 to 1, multiplied by 255, to `(B, n)`."""

    def __init__(self, image_size: tuple[int, int], precision: str = "float32") -> None:
        super().__init__()
        height, width = image_size
        self.layers = nn.Sequential(
            nn.Linear(height * width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(255 * images.flatten(-3))
        return scores.squeeze(-1)


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


def train_arm(configuration: dict[str, Any], folder: str, progress: Progress) -> None:
    """The program of the demonstration's jobs; see `sweep.Job`."""

    def make(config: Any) -> SortingTask:
        return SortingTask(config, glyphs(), RawPixelNetwork)

    run(DemoConfig.from_dict(configuration).resolved(), folder, progress=progress, make=make)


def demo_jobs(out: Path, config: DemoConfig, seeds: int) -> dict[tuple[str, int], Job]:
    """A job for every arm and seed. Seed by seed, so that the first comparison is complete early."""
    jobs = {}
    for seed in range(seeds):
        for arm in ARMS:
            configuration = config.with_arm(arm, seed).to_dict()
            folder = out / "runs" / run_name(configuration)
            jobs[arm.name, seed] = Job(
                f"{arm.title}, seed {seed}", str(folder), configuration, keep_weights=True, program=_PROGRAM
            )
    return jobs


def sample_sets(config: DemoConfig, count: int) -> tuple[Tensor, Tensor]:
    """Test sets to look at: pictures `(count, n, 1, height, width)` and values `(count, n)`."""
    return MultiDigit(glyphs().test, config.n, config.digits).sample(count, random_stream(0, "evaluation"))
