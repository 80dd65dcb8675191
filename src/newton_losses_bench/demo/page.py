"""The demonstration's page: its figures, its words, and the template `page.html` that shows them. One file that needs
nothing else, no network either. matplotlib and Jinja2 are imported when the page is written."""

import base64
import io
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..config import SortingConfig
from ..describe import count
from ..models import RawPixelNetwork
from ..report.figures import Figure, Line, chart, variables
from ..store import WEIGHTS, read_record, write_atomically
from ..sweep import Job
from .task import ARMS, Arm, sample_sets

Evaluations = dict[str, list[list[dict[str, Any]]]]  # for each arm's name, for each seed, the evaluations of its run
_SETS = 6
# Characters for two by two pixels: upper left is worth 8, upper right 4, lower left 2, lower right 1.
_BLOCKS = " ▗▖▄▝▐▞▟▘▚▌▙▀▜▛█"

TEN_LINES = """\
import newton_losses as nl

loss = nl.sorting.SortingLoss(
    "softsort", temperature=0.1, numerics="reference", exchangeable=False
)
newton_loss = nl.NewtonLoss(loss, "fisher", damping=100)  # the one line that is new

for images, values in batches:
    optimizer.zero_grad()
    newton_loss(network(images), values).backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Row:
    """Test accuracies of an arm in percent at the last evaluation, one per seed."""

    arm: Arm
    exact: list[float]
    element_wise: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.exact)

    @property
    def std(self) -> float:
        return statistics.stdev(self.exact) if len(self.exact) > 1 else 0.0

    @property
    def figure(self) -> str:
        """The mean and, over several seeds, the deviation in per cent."""
        return f"{self.mean:.1f} ± {self.std:.1f} %" if len(self.exact) > 1 else f"{self.mean:.1f} %"


def read_evaluations(jobs: Mapping[tuple[str, int], Job]) -> Evaluations:
    """The evaluations of finished runs."""
    found: Evaluations = {}
    for (name, _), job in jobs.items():
        found.setdefault(name, []).append(list(read_record(Path(job.folder)).curve))
    return found


def summarise(evaluations: Evaluations) -> list[Row]:
    """One row per arm."""
    last = {name: [records[-1]["test"] for records in runs] for name, runs in evaluations.items()}
    return [
        Row(arm, *([one[metric] for one in last[arm.name]] for metric in ("exact_match", "element_wise")))
        for arm in ARMS
    ]


def verdict(rows: list[Row]) -> str:
    """What the figures show, in words that follow from them and from nothing else."""
    by_name = {row.arm.name: row for row in rows}
    plain, clipped, newton, stable, both = (
        by_name[name] for name in ("plain", "clipped", "newton", "stable", "stable-newton")
    )
    wins = sum(a > b for a, b in zip(newton.exact, plain.exact, strict=True))
    difference, spread = both.mean - stable.mean, stable.std + both.std
    compared = "more" if abs(difference) > spread else "no more"
    noise = f"{compared} than the seeds differ (± {stable.std:.1f} and ± {both.std:.1f})"
    better = [row.mean > newton.mean for row in (clipped, stable)]
    remedies = "do even better" if all(better) else "for comparison" if any(better) else "do worse"
    return (
        f"The usual loss orders {plain.mean:.0f} % of the sets correctly; as a Newton loss, {newton.mean:.0f} % "
        f"(better for {wins} of {count(len(newton.exact), 'seed')}). Two remedies without curvature {remedies}: "
        f"gradient clipping reaches {clipped.mean:.0f} %, and the same loss in log space {stable.mean:.0f} %. On top "
        f"of that stable loss, a Newton loss makes a difference of {difference:+.1f} points, "
        f"{noise if len(both.exact) > 1 else 'on a single seed'}."
    )


def write_page(out: Path, config: SortingConfig, jobs: Mapping[tuple[str, int], Job], evaluations: Evaluations) -> Path:
    """Write the page into `out`; returns its path."""
    from jinja2 import Environment, StrictUndefined

    rows, first = summarise(evaluations), next(iter(jobs))[1]  # a seed
    images, values = sample_sets(config, _SETS)
    given = [_numbers(images[0], values[0], order) for order in (torch.arange(config.n), values[0].argsort())]
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    page = template.from_string(source).render(
        config=config,
        colours=variables(),
        chance=100 / math.factorial(config.n),
        task=zip(("given", "wanted"), given, strict=True),
        rows=rows,
        seeds=[seed for name, seed in jobs if name == ARMS[0].name],
        race=_learning_curves(evaluations),
        verdict=verdict(rows),
        sorted={arm.name: list(map(_numbers, images, values, _orders(jobs[arm.name, first], images))) for arm in ARMS},
        code=TEN_LINES,
    )
    write_atomically(out / "index.html", page.encode())
    return out / "index.html"


def in_blocks(images: Tensor) -> str:
    """Pictures `(n, 1, height, width)` side by side in characters, two by two pixels each, for a terminal.

    >>> print(in_blocks(torch.tensor([[[[1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]]]])))
    ▚▀
    """
    row = torch.cat([torch.nn.functional.pad(image[0], (0, 4)) for image in images], dim=1)[:, :-4] > 0.4
    bits = row[0::2, 0::2] * 8 + row[0::2, 1::2] * 4 + row[1::2, 0::2] * 2 + row[1::2, 1::2] * 1
    return "\n".join("".join(_BLOCKS[int(value)] for value in line) for line in bits)


class Number(NamedTuple):
    """A number of a set: its value, its picture as PNG in base64, and whether it is in its place."""

    value: int
    picture: str
    right: bool


def _numbers(images: Tensor, values: Tensor, order: Tensor) -> list[Number]:
    """A set in some order."""
    from matplotlib.image import imsave

    found = []
    for image, value, wanted in zip(images[order], values[order], values.sort().values, strict=True):
        buffer = io.BytesIO()
        imsave(buffer, 1 - image[0].numpy(), cmap="gray", vmin=0, vmax=1, format="png")
        found.append(Number(int(value), base64.b64encode(buffer.getvalue()).decode(), bool(value == wanted)))
    return found


def _orders(job: Job, images: Tensor) -> Tensor:
    """The order that a trained network gives each set."""
    network = RawPixelNetwork((images.shape[-2], images.shape[-1]))
    network.load_state_dict(torch.load(Path(job.folder) / WEIGHTS, weights_only=True))
    with torch.no_grad():
        scores: Tensor = network(images)
    return scores.argsort(1)


def _learning_curves(evaluations: Evaluations) -> Figure:
    """Test accuracy over the steps: for each arm the mean over the seeds, and their range as a band."""
    lines = []
    for arm in ARMS:
        runs = evaluations[arm.name]
        steps = np.array([record["step"] for record in runs[0]])
        values = np.array([[record["test"]["exact_match"] for record in records] for records in runs])
        lines.append(Line(arm.title, arm.tone, steps, values.mean(0), values.min(0), values.max(0)))
    return chart("race", "Sets in the right order, %", lines, width=4.6, height=2.6)
