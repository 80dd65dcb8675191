"""The figures of a report, drawn with matplotlib as SVG that fits light and dark pages.

Colours are written as CSS variables with the light page's values as a fallback, so that a figure inside the page
follows its scheme; `standalone` gives a file its own two schemes. Names of lines are labels beside the picture, in
`Figure.legend`, so that they wrap on a phone.
"""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..store import RunRecord
from .collect import METHODS, Evidence, PaperFigures, Runs, Setting, column_title, columns, finite, percentage
from .paper_claims import SETTINGS_OF_GOAL

FloatArray = npt.NDArray[np.float64]
# A colour on light and on dark paper. Matplotlib draws with the first; it is replaced by the variable of its name.
COLOURS = {
    "ink": ("#1d2126", "#e6e8eb"),
    "soft": ("#565d66", "#a9b0ba"),
    "rule": ("#d9dce1", "#383e46"),
    "tone-0": ("#5f6670", "#a9b0bb"),
    "tone-1": ("#1f5fa8", "#7db3ee"),
    "tone-2": ("#b4470a", "#f29e6b"),
    "tone-3": ("#1d7a48", "#74cb9c"),
    "tone-4": ("#7a46a6", "#c5a3ea"),
    "tone-5": ("#806300", "#dabf62"),
}


def variables() -> str:
    """The colours as CSS variables, for light and dark."""
    return " ".join(f"--{name}: light-dark({light}, {dark});" for name, (light, dark) in COLOURS.items())


@dataclass(frozen=True)
class Line:
    """A line of a chart, with the bounds of its band; where they are equal there is none."""

    label: str
    tone: int
    x: FloatArray
    y: FloatArray
    low: FloatArray
    high: FloatArray
    dashed: bool = False


@dataclass(frozen=True)
class Figure:
    """A drawing: its title, its SVG, and the names of its lines with tone and dashes."""

    name: str
    title: str
    svg: str = field(repr=False)
    legend: Sequence[tuple[str, int, bool]] = ()


@cache
def _axes(width: float, height: float, left: float = 0.11) -> Any:
    """Axes to draw on, made once: making them takes longer than drawing."""
    import matplotlib
    from matplotlib.figure import Figure as Drawing

    soft, rule = COLOURS["soft"][0], COLOURS["rule"][0]
    style: dict[Any, Any] = {
        f"{axis}tick.{name}": value for axis in "xy" for name, value in (("color", soft), ("major.size", 0))
    }
    style |= {"axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": soft, "axes.labelcolor": soft}
    style |= {"axes.grid": True, "axes.axisbelow": True, "grid.color": rule, "grid.linewidth": 0.6, "font.size": 8}
    with matplotlib.rc_context({**style, "xtick.minor.size": 0}):
        drawing = Drawing(figsize=(width, height))
        bottom = 0.22 / height
        axes = drawing.add_axes((left, bottom, 0.94 - left, 1 - bottom - 0.1 / height))
        # Labels that are not there need no place; finding one would measure every tick's text again.
        axes.xaxis.set_label_coords(0.5, -0.1)
        axes.yaxis.set_label_coords(-0.1, 0.5)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}")
    drawing.patch.set_visible(False)
    axes.patch.set_visible(False)
    return axes


def _svg(axes: Any, name: str, words: str) -> str:
    """What was drawn as one `<svg>` element, without fixed colours, fonts or size. The axes are empty afterwards."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        nothing = dict.fromkeys(("Date", "Creator", "Type", "Format"))
        FigureCanvasSVG(axes.figure).print_svg(text, metadata=nothing)  # type: ignore[no-untyped-call]
    for artist in (*axes.lines, *axes.patches, *axes.artists):
        artist.remove()
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r"font: [^;\"]*?([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    # Places need no more than two digits; the labels beside them are left alone.
    svg = re.sub(r'(?<= )d="[^"]+"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    svg = re.sub(r"\s+", " ", svg).replace("> <", "><")
    for colour, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{colour}, {light})")
    view = re.search(r'viewBox="[^"]+"', svg)
    assert view is not None
    label = words.replace("&", "and").replace('"', "”").replace("<", "below ")
    return f'<svg class="chart" role="img" aria-label="{label}" {view[0]}' + svg[svg.index(">") :].strip()


def chart(name: str, title: str, lines: Sequence[Line], *, width: float = 3.7, height: float = 2.1) -> Figure:
    """Accuracies over steps, with bands. The range covers every band."""
    axes = _axes(width, height)
    for line in lines:
        colour = COLOURS[f"tone-{line.tone}"][0]
        if (line.low < line.high).any():
            around = [*line.x, *line.x[::-1]], [*line.high, *line.low[::-1]]
            axes.fill(*around, facecolor=colour, alpha=0.16, linewidth=0)
        axes.plot(line.x, line.y, color=colour, linewidth=1.4, linestyle=(0, (4, 3)) if line.dashed else "-")
    low, high = min(line.low.min() for line in lines), max(line.high.max() for line in lines)
    room = 0.05 * (high - low) or 0.5
    axes.set_ylim(max(low - room, -0.5), min(high + room, 100.5))
    axes.set_xlim(0, max(line.x[-1] for line in lines))
    axes.locator_params("both", nbins=4)
    words = "; ".join(f"{line.label} ends at {line.y[-1]:.1f}" for line in lines)
    legend = [(line.label, line.tone, line.dashed) for line in lines]
    return Figure(name, title, _svg(axes, name, f"{title}: {words}"), legend)


def headline(found: Evidence) -> Figure:
    """Table 1 beside the paper's: from the plain loss to the best Newton loss, for the paper and for us.

    Ours are at the paper's length where there are such runs. The legend says which numerics and which length.
    """
    names = columns("table1")
    axes = _axes(4.6, 0.5 * len(names) + 0.35, left=0.23)
    words = []
    ours = found.full if found.full.done("table1")[0] else found.short
    rows: list[tuple[str, Setting, str, int]] = [
        (f"the paper, {found.full.label}", PaperFigures(), "reference", 4),
        (f"ours, {ours.label}", ours, "reference", 1),
        (f"ours in log space, {found.full.label}", found.full, "stable", 3),
    ]
    for place, column in enumerate(names):
        for row, (label, source, numerics, tone) in enumerate(rows):
            y, colour = -place + 0.26 - 0.26 * row, COLOURS[f"tone-{tone}"][0]
            plain = source.figure(column, "baseline", numerics)
            newton = [one for name in SETTINGS_OF_GOAL[1:] if (one := source.figure(column, name, numerics))]
            best = max(newton, key=lambda figure: figure.mean, default=None)
            if plain and best:
                axes.plot([plain.mean, best.mean], [y, y], color=colour, linewidth=1.6)
            if plain:
                axes.plot([plain.mean], [y], "o", color=colour, markersize=4.6, markerfacecolor="none")
            if best:
                axes.plot([best.mean], [y], "o", color=colour, markersize=4.6)
                words.append(f"{column_title(column)}, {label.split(',')[0]}: {best.mean:.0f}")
        if place:
            axes.axhline(0.5 - place, color=COLOURS["rule"][0], linewidth=0.6)
    axes.set_yticks(
        [-place for place in range(len(names))], [column_title(name).replace(" network", "") for name in names]
    )
    for label in axes.get_yticklabels():
        label.set_color(COLOURS["ink"][0])
    axes.set_ylim(-len(names) + 0.5, 0.5)
    axes.set_xlim(0, 92)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    svg, legend = (
        _svg(axes, "table1", "Table 1: " + "; ".join(words)),
        [(label, tone, False) for label, *_, tone in rows],
    )
    return Figure("table1", "Sets ordered right, %", svg, legend)


def learning_curves(runs: Runs) -> list[Figure]:
    """A figure for every loss that has runs; for sorting with the plain loss in log space beside the paper's arms."""
    sorting = runs.data == "mnist"
    arms = [("baseline", "reference", 0), ("hessian", "reference", 1), ("fisher", "reference", 2)]
    arms += [("baseline", "stable", 3)] if sorting else []
    figures = []
    for column in columns("table1") if sorting else columns("table2", "table3"):
        lines = []
        for method, numerics, tone in arms:
            group = runs.runs(column, method, numerics)
            label = METHODS[method] + (" in log space" if numerics == "stable" else "")
            metric = "exact_match" if sorting else "perfect_match"
            line = _curve(label, tone, group.records, metric) if group else None
            lines += [line] if line else []
        if lines:
            figures.append(chart(f"curves-{runs.data}-{runs.length}-{column}", column_title(column), lines))
    return figures


def _curve(name: str, tone: int, records: Sequence[RunRecord], metric: str) -> Line | None:
    """The mean over some runs and its 95 % interval, at the steps at which all of them were evaluated."""
    from scipy.special import stdtrit  # the quantile of Student's distribution

    curves = [curve for record in records if (curve := _points(record, metric))]
    steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if not steps:
        return None
    values = np.array([[curve[step] for step in steps] for curve in curves])
    means = values.mean(0)
    # Without a second seed there is no interval. An accuracy is between 0 and 100, whatever a t interval says.
    width = np.zeros_like(means)
    if len(curves) > 1:
        width = stdtrit(len(curves) - 1, 0.975) * values.std(0, ddof=1) / math.sqrt(len(curves))
    label = name if len(curves) > 1 else f"{name} (1 seed)"
    low, high = (means - width).clip(0, 100), (means + width).clip(0, 100)
    return Line(label, tone, np.array(steps), means, low, high, dashed=tone > 1)


def _points(record: RunRecord, metric: str) -> dict[float, float]:
    """The accuracy by step, without values that are not accuracies and steps that the run does not have."""
    found = {}
    for evaluation in record.curve:
        test = evaluation.get("test")
        step, value = finite(evaluation.get("step")), percentage(test.get(metric) if isinstance(test, dict) else None)
        if step is not None and 1 <= step <= record.steps and value is not None:
            found[step] = value
    return found


def standalone(figure: Figure) -> str:
    """A figure without a legend as a file of its own, in the reader's colours."""
    style = (
        f"<style>svg {{ color-scheme: light dark; {variables()} font-family: sans-serif; fill: var(--ink); }}</style>"
    )
    start, end = figure.svg.split(">", 1)
    return f'{start} xmlns="http://www.w3.org/2000/svg" width="480">{style}{end}\n'
