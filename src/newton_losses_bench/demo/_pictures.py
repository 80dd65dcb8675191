"""The pictures of the demonstration, as PNG bytes. matplotlib is imported when one is drawn."""

import io
import itertools
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from newton_losses.sorting import exact_match

from ..random_streams import stream
from ..store import WEIGHTS
from ._runs import folder_of
from ._setting import ARMS, Arm, DemoConfig, RawPixelNetwork, glyphs

Record = dict[str, Any]
_SETS = 8
_GAP = 3  # white pixels between two numbers


def learning_curves(evaluations: dict[str, list[list[Record]]]) -> bytes:
    """Test exact match over the steps, a line an arm: the mean over the seeds, and each seed faintly."""
    figure, axes = _canvas(8.5, 4.2)
    for arm in ARMS:
        runs = evaluations[arm.name]
        steps = [record["step"] for record in runs[0]]
        curves = [[record["test"]["exact_match"] for record in records] for records in runs]
        for curve in curves:
            axes.plot(steps, curve, color=arm.colour, alpha=0.22, linewidth=1)
        mean = [statistics.fmean(values) for values in zip(*curves, strict=True)]
        axes.plot(steps, mean, color=arm.colour, linewidth=2.4, label=arm.title)
    axes.set_xlabel("training step")
    axes.set_ylabel("sets in the right order, %")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left")
    return _png(figure)


def sorted_numbers(out: Path, config: DemoConfig) -> bytes:
    """The same test sets, as two networks of seed 0 order them: each number framed green where it is in place."""
    from matplotlib.patches import Rectangle

    compared = [arm for arm in ARMS if arm.name in ("plain", "newton")]
    images, values = _test_sets(config)
    height, width = images.shape[-2] + _GAP, images.shape[-1] + _GAP
    figure, panels = _canvas(11, 0.5 * _SETS + 0.9, columns=len(compared))
    for axes, arm in zip(panels, compared, strict=True):
        scores = _scores(out, arm, images)
        right = int(exact_match(scores, values).sum())
        axes.set_title(f"{arm.title}: {right} of {_SETS} sets right", fontsize=11, color=arm.colour)
        axes.imshow(_sheet(images, scores).numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        in_place = values.gather(1, scores.argsort(1)) == values.sort(1).values
        for row, place in itertools.product(range(_SETS), range(config.n)):
            colour = "#3a9d5d" if in_place[row, place] else "#c0392b"
            corner = (place * width - 0.5, row * height - 0.5)
            axes.add_patch(
                Rectangle(
                    corner, width - _GAP, height - _GAP, fill=False, edgecolor=colour, linewidth=1.8, clip_on=False
                )
            )
        axes.set_axis_off()
    return _png(figure)


def _test_sets(config: DemoConfig) -> tuple[Tensor, Tensor]:
    from ..data import MultiDigit

    return MultiDigit(glyphs().test, config.n, config.digits).sample(_SETS, stream(0, "evaluation"))


def _scores(out: Path, arm: Arm, images: Tensor) -> Tensor:
    network = RawPixelNetwork((images.shape[-2], images.shape[-1]))
    network.load_state_dict(torch.load(folder_of(out, arm, 0) / WEIGHTS, weights_only=True))
    with torch.no_grad():
        scores: Tensor = network(images)
    return scores


def _sheet(images: Tensor, scores: Tensor) -> Tensor:
    """One picture of all sets `(B, n, 1, h, w)`, a row each, every row in the order of its scores."""
    order = scores.argsort(1)[:, :, None, None, None].expand_as(images)
    ordered = torch.nn.functional.pad(images.gather(1, order).squeeze(2), (0, _GAP, 0, _GAP))
    return torch.cat([torch.cat(list(row), dim=1) for row in ordered], dim=0)


def _canvas(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    # Without pyplot: no window system, no global state.
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
