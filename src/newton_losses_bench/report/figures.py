"""The figures of a report, drawn with matplotlib as SVG that fits light and dark pages.

Colours are written as CSS variables with the light page's values as a fallback, so that a figure inside the page
follows its scheme; `render` gives a file its own two schemes. Names of lines are labels beside the picture, in
`Figure.legend`, so that they wrap on a phone.
"""

import io
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..statistics import Summary
from ..store import RunRecord
from .collect import (
    METHODS,
    Evidence,
    PaperFigures,
    Runs,
    Setting,
    column_title,
    columns,
    finite,
    percentage,
    standings,
)
from .damping import Chosen

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
TONES = {"baseline": 0, "hessian": 1, "fisher": 2, "stable": 3}
NAMES = {"baseline": "plain", "hessian": "Hessian", "fisher": "Fisher", "stable": "plain in log space"}
WIDTH, HEIGHT = 3.7, 2.1  # inches of a panel


@dataclass(frozen=True)
class Line:
    """A line of a chart; `band` are the lower and upper bounds at its points. One without a label goes with another."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    tone: int
    band: Sequence[Sequence[float]] = ()
    dashed: bool = False
    marked: bool = False


@dataclass(frozen=True)
class Figure:
    """A drawing: its title, what it shows in words, its SVG, and the names of its lines with tone and dashes."""

    name: str
    title: str
    words: str
    svg: str = field(repr=False)
    legend: Sequence[tuple[str, int, bool]] = ()


@cache
def _axes(width: float = WIDTH, height: float = HEIGHT, log: bool = False, left: float = 0.11) -> Any:
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
        axes.set_xscale("log" if log else "linear")
        axes.minorticks_off()
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


def chart(name: str, title: str, words: str, lines: Sequence[Line], **options: Any) -> Figure:
    """Lines with bands over steps or, with `log`, over λ. The range covers every band."""
    from matplotlib.patches import Polygon

    axes = _axes(log=bool(options.get("log")))
    for line in lines:
        colour = COLOURS[f"tone-{line.tone}"][0]
        if line.band:
            upper = [(x, high) for x, (_, high) in zip(line.x, line.band, strict=True)]
            lower = [(x, low) for x, (low, _) in zip(line.x, line.band, strict=True)]
            band = Polygon([*upper, *reversed(lower)], facecolor=colour, alpha=0.16, linewidth=0)
            axes.add_artist(band).set_clip_path(axes.patch)
        axes.plot(
            line.x,
            line.y,
            color=colour,
            linewidth=1.4,
            linestyle=(0, (4, 3)) if line.dashed else "-",
            marker="o" if line.marked else "",
            markersize=2.8,
        )
    heights = [y for line in lines for y in (*line.y, *(bound for pair in line.band for bound in pair))]
    axes.set_ylim(*_range(heights, *options.get("limits", (-math.inf, math.inf))))
    ends = [x for line in lines for x in line.x]
    if options.get("log"):
        axes.set_xlim(min(ends) / 1.3, max(ends) * 1.3)
    else:
        axes.set_xlim(options.get("start", min(ends)), max(ends))
        axes.locator_params("x", nbins=4)
    axes.locator_params("y", nbins=4)
    legend = [(line.label, line.tone, line.dashed) for line in lines if line.label]
    return Figure(name, title, words, _svg(axes, name, f"{title}: {words}"), legend)


def _range(values: Sequence[float], least: float, most: float) -> tuple[float, float]:
    """The range of an axis that shows all values with some room, within what is possible at all."""
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.5
    return max(low - room, least - 0.5), min(high + room, most + 0.5)


# ---- The headline ---------------------------------------------------------------------------------------------------


def headline(found: Evidence) -> Figure:
    """Table 1 beside the paper's: from the plain loss to the best Newton loss, for the paper and for us."""
    names = columns("table1")
    axes = _axes(4.6, 0.5 * len(names) + 0.35, left=0.23)
    words = []
    rows: list[tuple[str, Setting, str, int]] = [
        ("the paper", PaperFigures(), "reference", 4),
        (found.short.label, found.short, "reference", 1),
        (found.full.label, found.full, "stable", 3),
    ]
    standing = {one.column: one for one in standings(found.full)}
    for place, column in enumerate(names):
        for row, (label, source, numerics, tone) in enumerate(rows):
            y, colour = -place + 0.26 - 0.26 * row, COLOURS[f"tone-{tone}"][0]
            plain = source.figure(column, "baseline", numerics)
            newton = [figure for name in ("hessian", "fisher") if (figure := source.figure(column, name, numerics))]
            if source is found.full and standing[column].best:
                newton = [figure for name, figure in standing[column].ours.items() if figure and name != "baseline"]
            best = max(newton, key=lambda figure: figure.mean, default=None)
            if plain and best:
                axes.plot([plain.mean, best.mean], [y, y], color=colour, linewidth=1.6)
            if plain:
                axes.plot([plain.mean], [y], "o", color=colour, markersize=4.6, markerfacecolor="none")
            if best:
                axes.plot([best.mean], [y], "o", color=colour, markersize=4.6)
                words.append(f"{column_title(column)}, {label}: {best.mean:.0f}")
            if source is found.short and (log := source.figure(column, "baseline", "stable")):
                axes.plot([log.mean], [y], "d", color=COLOURS["tone-2"][0], markersize=4.2)
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
    return Figure(
        "headline", "Sets ordered right, %", "; ".join(words), _svg(axes, "headline", "Table 1: " + "; ".join(words))
    )


# ---- Learning curves ------------------------------------------------------------------------------------------------


def path_curves(runs: Runs) -> list[Figure]:
    """A figure for every shortest-path loss that has runs, that of the paper's figure 3 first."""
    order = sorted(columns("table3", "table2"), key=lambda column: column != "smoothed-loss-10")
    return _learning_curves(runs, order, "perfect_match")


def sorting_curves(runs: Runs) -> list[Figure]:
    """A figure for every sorting loss that has runs, with the plain loss in log space beside the paper's arms."""
    return _learning_curves(runs, columns("table1"), "exact_match")


def _learning_curves(runs: Runs, names: Sequence[str], metric: str) -> list[Figure]:
    figures = []
    for column in names:
        arms = {method: runs.runs(column, method) for method in ("baseline", "hessian", "fisher")}
        if metric == "exact_match":
            arms["stable"] = runs.runs(column, "baseline", "stable")
        curves = [
            _curve(NAMES[arm], TONES[arm], group.records, metric, dashed=arm in ("fisher", "stable"))
            for arm, group in arms.items()
            if group is not None
        ]
        lines = [line for line in curves if line is not None]
        if lines:
            name = f"curves-{runs.data if metric == 'perfect_match' else runs.length}-{column}"
            figures.append(_learning(name, column_title(column), lines))
    return figures


def averaged_curves(runs: Runs) -> list[Figure]:
    """For each column our best setting with averaged weights: as trained, averaged, and the paper's best."""
    figures = []
    for one in standings(runs, averaged=True):
        group = runs.runs(one.column, one.best[0], "stable") if one.best else None
        if one.best is None or group is None:
            continue
        records = group.with_average("exact_match").records
        found = [
            _curve("as trained", 0, records, "exact_match"),
            _curve("averaged", 3, records, "exact_match", averaged=True),
        ]
        lines = [line for line in found if line is not None]
        if lines:
            ends = [0.0, max(line.x[-1] for line in lines)]
            lines.append(Line("the paper’s best", ends, [one.paper.mean] * 2, 1, dashed=True))
            title = f"{column_title(one.column)}, {METHODS[one.best[0]]}"
            figures.append(_learning(f"averaged-{one.column}", title, lines))
    return figures


def _learning(name: str, title: str, lines: Sequence[Line]) -> Figure:
    words = "; ".join(f"{line.label} ends at {line.y[-1]:.1f}" for line in lines)
    return chart(name, title, words, lines, limits=(0.0, 100.0), start=0.0)


def _curve(
    name: str, tone: int, records: Sequence[RunRecord], metric: str, *, averaged: bool = False, dashed: bool = False
) -> Line | None:
    """The mean over some runs and its 95 % interval, at the steps at which all of them were evaluated."""
    curves = [curve for record in records if (curve := _points(record, metric, averaged))]
    steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if not steps:
        return None
    values = np.array([[curve[step] for step in steps] for curve in curves])
    means, band = values.mean(0), []
    if len(curves) > 1:
        width = half_width(values)
        # An accuracy is between 0 and 100, whatever a t interval says.
        band = np.stack([means - width, means + width], 1).clip(0, 100).tolist()
    label = name if len(curves) > 1 else f"{name} (1 seed)"
    return Line(label, steps, means.tolist(), tone, band, dashed)


def _points(record: RunRecord, metric: str, averaged: bool) -> dict[float, float]:
    """The accuracy by step, without what is no accuracy or at no step of the run."""
    found = {}
    for evaluation in record.curve:
        figures = evaluation.get("averaged") if averaged else evaluation
        test = figures.get("test") if isinstance(figures, dict) else None
        step, value = finite(evaluation.get("step")), percentage(test.get(metric) if isinstance(test, dict) else None)
        if step is not None and 1 <= step <= record.steps and value is not None:
            found[step] = value
    return found


def half_width(values: FloatArray, level: float = 0.95) -> FloatArray:
    """Half the width of the t confidence interval of means over the first axis: t · s/√n, n−1 degrees of freedom.

    >>> half_width(np.array([[1.0], [2.0], [3.0]])).round(3)
    array([2.484])
    """
    from scipy.special import stdtrit

    count = len(values)
    quantile = float(stdtrit(count - 1, 0.5 + level / 2))
    return np.asarray(quantile * values.std(0, ddof=1) / math.sqrt(count))


# ---- λ --------------------------------------------------------------------------------------------------------------


def ablation_figures(settings: Sequence[Runs]) -> list[Figure]:
    """The paper's figure 4 for each of its two losses, in every setting that has runs for more than two λ."""
    figures = []
    for runs in settings:
        for column in ("neuralsort-n5", "softsort-n5"):
            lines = [line for method in ("hessian", "fisher") for line in _ablation_lines(runs, column, method)]
            if not any(len(line.x) > 2 for line in lines):
                continue
            base: Summary | None = runs.figure(column, "baseline", metric="element_wise")
            if base is not None:
                lines.append(Line(NAMES["baseline"], [1e-3, 1e3], [base.mean] * 2, TONES["baseline"]))
            words = "; ".join(f"{line.label} from {min(line.y):.1f} to {max(line.y):.1f}" for line in lines)
            title = f"{column_title(column)}, {runs.label}"
            name = f"ablation-{runs.length}-{column}"
            figures.append(chart(name, title, words, lines, log=True, limits=(0, 100)))
    return figures


def _ablation_lines(runs: Runs, column: str, method: str) -> list[Line]:
    """The mean over the seeds with a band of one standard deviation."""
    found = {damping: group.summary("element_wise") for damping, group in runs.ablation(column, method).items()}
    known = {damping: figure for damping, figure in sorted(found.items()) if figure is not None}
    means, band = [figure.mean for figure in known.values()], [_deviation(figure) for figure in known.values()]
    return [Line(NAMES[method], list(known), means, TONES[method], band, method == "fisher", True)] if known else []


def _deviation(figure: Summary) -> tuple[float, float]:
    """One standard deviation to either side of a mean, within what an accuracy can be."""
    spread = 0.0 if math.isnan(figure.std) else figure.std
    return max(0.0, figure.mean - spread), min(100.0, figure.mean + spread)


def grid_figures(several: Sequence[Chosen]) -> list[Figure]:
    """A figure for each loss: seed 0 with every λ of the grid, and "auto" as a level with its deviation."""
    losses: dict[str, list[Chosen]] = defaultdict(list)
    for one in several:
        losses[one.cell.column].append(one)
    figures = []
    for column, arms in losses.items():
        lines, words = [], []
        for one in arms:
            arm, (x, y) = one.cell.variant, zip(*sorted(one.of_a_seed.items()), strict=True)
            lines.append(Line(NAMES[arm], x, y, TONES[arm], marked=True, dashed=arm == "fisher"))
            words.append(f"{NAMES[arm]} from {min(y):.1f} to {max(y):.1f}")
            if one.auto is not None:
                level, band = [one.auto.mean] * 2, [_deviation(one.auto)] * 2
                lines.append(Line("", [x[0], x[-1]], level, TONES[arm], band, arm == "fisher"))
                words[-1] += f", auto {one.auto.mean:.1f}"
        title, text = column_title(column), "; ".join(words)
        figures.append(chart(f"damping-{column}", title, text, lines, log=True, limits=(0, 100)))
    return figures
