"""The demonstration's page: its figures, its words, and the template `page.html` that shows them. One file that needs
nothing else, no network either. matplotlib and Jinja2 are imported when the page is written."""

import base64
import io
import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from newton_losses.sorting import exact_match

from ..store import WEIGHTS, read_record, write_atomically
from ..sweep import Job
from .task import ARMS, Arm, DemoConfig, RawPixelNetwork, sample_sets

Record = dict[str, Any]
Evaluations = dict[str, list[list[Record]]]
_SETS = 6
_GAP = 3  # pixels between two numbers
_RIGHT, _WRONG = "#3a9d5d", "#c0392b"
# Characters for two by two pixels: upper left is worth 8, upper right 4, lower left 2, lower right 1.
_BLOCKS = " ▗▖▄▝▐▞▟▘▚▌▙▀▜▛█"

TEN_LINES = """\
import newton_losses as nl

loss = nl.sorting.SortingLoss("softsort", temperature=0.1, numerics="reference", exchangeable=False)
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
    def mean_element_wise(self) -> float:
        return statistics.fmean(self.element_wise)


def read_evaluations(jobs: Mapping[tuple[str, int], Job]) -> Evaluations:
    """For each arm's name, for each seed, the evaluations of a finished run."""
    found: Evaluations = {}
    for (name, _), job in jobs.items():
        found.setdefault(name, []).append(list(read_record(Path(job.folder)).curve))
    return found


def summarise(evaluations: Evaluations) -> list[Row]:
    """One row per arm."""
    rows = []
    for arm in ARMS:
        last = [records[-1]["test"] for records in evaluations[arm.name]]
        rows.append(Row(arm, [r["exact_match"] for r in last], [r["element_wise"] for r in last]))
    return rows


def verdict(rows: list[Row]) -> str:
    """What the figures show, in words that follow from them and from nothing else."""
    by_name = {row.arm.name: row for row in rows}
    plain, clipped, newton = by_name["plain"], by_name["clipped"], by_name["newton"]
    stable, both = by_name["stable"], by_name["stable-newton"]
    wins = sum(a > b for a, b in zip(newton.exact, plain.exact, strict=True))
    difference, spread = both.mean - stable.mean, stable.std + both.std
    compared = "more" if abs(difference) > spread else "no more"
    noise = f"{compared} than the seeds differ (± {stable.std:.1f} and ± {both.std:.1f})"
    return (
        f"The usual loss orders {plain.mean:.0f} % of the sets correctly; as a Newton loss, {newton.mean:.0f} % "
        f"(better for {wins} of {len(newton.exact)} seeds). Two remedies without curvature "
        f"{_compared((clipped, stable), newton)}: gradient clipping reaches {clipped.mean:.0f} %, and the same loss in "
        f"log space {stable.mean:.0f} %. On top of that stable loss, a Newton loss changes {difference:+.1f} points, "
        f"{noise if len(both.exact) > 1 else 'on a single seed'}."
    )


def _compared(rows: tuple[Row, ...], other: Row) -> str:
    if all(row.mean > other.mean for row in rows):
        return "do even better"
    return "do worse" if all(row.mean < other.mean for row in rows) else "for comparison"


def write_page(out: Path, config: DemoConfig, jobs: Mapping[tuple[str, int], Job], evaluations: Evaluations) -> Path:
    """Write the page and its pictures into `out`; returns the path of the page."""
    from jinja2 import Environment, StrictUndefined

    rows = summarise(evaluations)
    images, values = sample_sets(config, _SETS)
    pictures = {"task": _task(images[0], values[0]), "learning_curves": _learning_curves(evaluations)}
    shown = {arm.name: _scores(jobs[arm.name, 0], images) for arm in ARMS}
    pictures |= {f"digits_{name}": _sorted_numbers(images, values, scores) for name, scores in shown.items()}
    for name, picture in pictures.items():
        write_atomically(out / f"{name}.png", picture)
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    page = template.from_string(source).render(
        config=config,
        chance=100 / math.factorial(config.n),
        rows=rows,
        right={name: int(exact_match(scores, values).sum()) for name, scores in shown.items()},
        sets=_SETS,
        verdict=verdict(rows),
        code=TEN_LINES,
        pictures={name: base64.b64encode(picture).decode() for name, picture in pictures.items()},
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


def _task(images: Tensor, values: Tensor) -> bytes:
    """One set as it is given, and in its right order."""
    figure, panels = _canvas(7, 2.3, rows=2)
    for axes, order, title in zip(
        panels, (torch.arange(len(values)), values.argsort()), ("given", "wanted"), strict=True
    ):
        _show(axes, [images[order]], [["#888888"] * len(values)])
        axes.set_title(title, fontsize=11, loc="left")
    return _png(figure)


def _learning_curves(evaluations: Evaluations) -> bytes:
    """Test accuracy over the steps: for each arm the mean over the seeds, and each seed faintly."""
    figure, axes = _canvas(8.5, 4.2)
    for arm in ARMS:
        runs = evaluations[arm.name]
        steps = [record["step"] for record in runs[0]]
        curves = [[record["test"]["exact_match"] for record in records] for records in runs]
        for curve in curves:
            axes.plot(steps, curve, color=arm.color, alpha=0.22, linewidth=1)
        mean = [statistics.fmean(values) for values in zip(*curves, strict=True)]
        axes.plot(steps, mean, color=arm.color, linewidth=2.4, label=arm.title)
    axes.set_xlabel("training step")
    axes.set_ylabel("sets in the right order, %")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left")
    return _png(figure)


def _sorted_numbers(images: Tensor, values: Tensor, scores: Tensor) -> bytes:
    """Test sets in the order of a network's scores, one per row: each number framed green where it is in place."""
    figure, axes = _canvas(5.5, 0.5 * len(values))
    order = scores.argsort(1)
    in_place = values.gather(1, order) == values.sort(1).values
    sets = [pictures[places] for pictures, places in zip(images, order, strict=True)]
    _show(axes, sets, [[_RIGHT if right else _WRONG for right in row] for row in in_place.tolist()])
    return _png(figure)


def _show(axes: Any, sets: list[Tensor], colors: list[list[str]]) -> None:
    """Sets of pictures `(n, 1, height, width)`, one per row, every picture in a frame of its color."""
    from matplotlib.patches import Rectangle

    height, width = sets[0].shape[-2:]
    rows = [torch.cat(list(torch.nn.functional.pad(one[:, 0], (0, _GAP, 0, _GAP))), dim=1) for one in sets]
    ink = torch.cat(rows)
    # Black ink on a transparent sheet.
    axes.imshow(torch.stack([*3 * [torch.zeros_like(ink)], ink], dim=-1).numpy(), interpolation="nearest")
    for row, place in itertools.product(range(len(sets)), range(len(sets[0]))):
        corner = (place * (width + _GAP) - 0.5, row * (height + _GAP) - 0.5)
        axes.add_patch(
            Rectangle(corner, width, height, fill=False, edgecolor=colors[row][place], linewidth=1.8, clip_on=False)
        )
    axes.set_axis_off()


def _scores(job: Job, images: Tensor) -> Tensor:
    network = RawPixelNetwork((images.shape[-2], images.shape[-1]))
    network.load_state_dict(torch.load(Path(job.folder) / WEIGHTS, weights_only=True))
    with torch.no_grad():
        scores: Tensor = network(images)
    return scores


def _canvas(width: float, height: float, rows: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    # Without pyplot: no window system, no global state. Transparent, for light and dark pages.
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes = figure.subplots(rows, 1)
    for one in axes if rows > 1 else [axes]:
        one.set_facecolor("none")
    return figure, axes


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
