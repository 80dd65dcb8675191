"""What the demonstration trains: five losses on the same small sorting task, each a run like any other.

Two-digit numbers, drawn in a 5×7 pixel font and distorted at random, are to be ranked; all that is known is the order
of sets of five. The network gets raw pixels, 0 to 255, and so starts with scores far apart: the situation in which the
usual loss of differentiable sorting fails. On the real benchmark scores get that far apart during a long training; here
they are from the first step on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import SortingConfig
from ..data import MultiDigit, glyphs
from ..sweep import Job
from ..tasks import random_stream

DEMO = SortingConfig(
    algorithm="softsort", data="glyphs", digits=2, batch_size=32, steps=2_500, eval_every=125, validation_sets=200,
    test_sets=1_000, device="cpu",
)  # fmt: skip


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


def arm_config(config: SortingConfig, arm: Arm, seed: int) -> SortingConfig:
    """The configuration of one arm and seed, resolved."""
    return replace(config, seed=seed, **arm.settings).resolved()


def demo_jobs(out: Path, config: SortingConfig, seeds: Iterable[int]) -> dict[tuple[str, int], Job]:
    """A job for every arm and seed. Seed by seed, so that the first comparison is complete early."""
    return {
        (arm.name, seed): Job.of(
            f"{arm.title}, seed {seed}", arm_config(config, arm, seed), out / "runs", "cpu", keep_weights=True
        )
        for seed in seeds
        for arm in ARMS
    }


def sample_sets(config: SortingConfig, count: int) -> tuple[Tensor, Tensor]:
    """Test sets to look at: pictures `(count, n, 1, height, width)` and values `(count, n)`."""
    return MultiDigit(glyphs().test, config.n, config.digits).sample(count, random_stream(0, "evaluation"))
