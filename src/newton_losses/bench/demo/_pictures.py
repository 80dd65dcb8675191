"""The pictures of the demonstration, as PNG bytes. matplotlib is imported when one is drawn."""

import io
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...sorting import exact_match
from ..run_folder import WEIGHTS
from ..seeds import stream
from ._runs import folder_of
from ._setting import ARMS, Arm, DemoConfig, RawPixelNetwork, glyphs

Record = dict[str, Any]
_SETS = 6


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
    figure, panels = _canvas(11, 0.55 * _SETS + 0.9, columns=len(compared))
    for axes, arm in zip(panels, compared, strict=True):
        scores = _scores(out, arm, images)
        right = int(exact_match(scores, values).sum())
        axes.set_title(f"{arm.title}: {right} of {_SETS} sets right", fontsize=11, color=arm.colour)
        axes.imshow(_sheet(images, scores), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        found, wanted = values.gather(1, scores.argsort(1)), values.sort(1).values
        for row in range(_SETS):
            for place in range(config.n):
                good = bool(found[row, place] == wanted[row, place])
                corner = (place * 20 + 0.5, row * 12 + 0.5)
                colour = "#3a9d5d" if good else "#c0392b"
                axes.add_patch(Rectangle(corner, 17, 9, fill=False, edgecolor=colour, linewidth=1.8))
        axes.set_axis_off()
    return _png(figure)


def _test_sets(config: DemoConfig) -> tuple[Tensor, Tensor]:
    from ..data import MultiDigit

    return MultiDigit(glyphs().test, config.n, config.digits).sample(_SETS, stream(1, "evaluation"))


def _scores(out: Path, arm: Arm, images: Tensor) -> Tensor:
    network = RawPixelNetwork((images.shape[-2], images.shape[-1]))
    network.load_state_dict(torch.load(folder_of(out, arm, 0) / WEIGHTS, weights_only=True))
    with torch.no_grad():
        scores: Tensor = network(images)
    return scores


def _sheet(images: Tensor, scores: Tensor) -> Tensor:
    """One picture of all sets, a row each, every row in the order of its scores; 8×16 numbers, frames apart."""
    order = scores.argsort(1)
    sheet = torch.zeros(12 * images.shape[0], 20 * images.shape[1])
    for row in range(images.shape[0]):
        for place, item in enumerate(order[row].tolist()):
            sheet[12 * row + 1 : 12 * row + 9, 20 * place + 1 : 20 * place + 17] = images[row, item, 0]
    return sheet


def _canvas(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    # Without pyplot: no window system, no global state.
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
