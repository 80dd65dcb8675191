"""The figures of a report: learning curves with 95 % bands (the paper's figure 3), also of averaged weights, the
ablation of λ (figure 4), and the grid of λ beside "auto"."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from ..cells import cells
from ..groups import Group
from ..statistics import Summary
from ..store import RunRecord
from ._blocks import Panel
from ._chart import Line, Point, chart
from ._damping import Chosen
from ._found import finite, percentage
from ._measured import Runs, main_metric
from ._names import column_title
from ._scale import Axis, around

# One colour an arm, everywhere; dashes as well, for whoever does not see the colours.
TONES = {"baseline": 0, "hessian": 1, "fisher": 2, "clipped": 4, "energy": 5, "stable": 3}
NAMES = {
    "baseline": "baseline",
    "hessian": "Newton, Hessian",
    "fisher": "Newton, Fisher",
    "clipped": "clipped",
    "energy": "energy",
    "stable": "baseline in log space",
}
# Two more, of the figures that set averaged weights beside those as trained.
_TRAINED, _AVERAGED = 0, 3


def path_panels(runs: Runs) -> list[Panel]:
    """A panel for every shortest-path loss that has runs: the one of the paper's figure 3 first."""
    panels = []
    for column in _order("table3", "table2"):
        arms = {method: runs.runs(column, method) for method in ("baseline", "hessian", "fisher")}
        name = f"curves-{runs.data}-{column}"
        panels.append(_learning(name, column_title(column), _arms(arms, "perfect_match"), "perfect paths, %"))
    return [panel for panel in panels if panel is not None]


def sorting_panels(runs: Runs) -> list[Panel]:
    """A panel for every sorting loss that has runs, with the baseline in log space beside the paper's arms."""
    panels = []
    for column in _order("table1"):
        arms = {method: runs.runs(column, method) for method in ("baseline", "hessian", "fisher")}
        arms["stable"] = runs.runs(column, "baseline", "stable")
        name = f"curves-{runs.length}-{column}"
        panels.append(_learning(name, column_title(column), _arms(arms, "exact_match"), "sets right, %"))
    return [panel for panel in panels if panel is not None]


def averaged_panel(group: Group, setting: str, paper: Summary) -> Panel | None:
    """The curves of a cell's runs, as trained and of averaged weights, and the paper's best as a level."""
    metric = main_metric(group.cell)
    found = [
        _curve("as trained", _TRAINED, group.records, metric),
        _curve("averaged", _AVERAGED, group.records, metric, averaged=True),
    ]
    lines = [line for line in found if line is not None]
    if lines:
        last = max(line.points[-1][0] for line in lines)
        level = [(0.0, paper.mean), (last, paper.mean)]
        lines.append(Line("the paper’s best", level, TONES["hessian"], dashed=True))
    title = f"{column_title(group.cell.column)}, {setting}"
    return _learning(f"averaged-{group.protocol.length}-{group.cell.column}", title, lines, "sets right, %")


def ablation_panels(settings: Sequence[Runs]) -> list[Panel]:
    """A panel for each of the two losses in every setting that has runs."""
    panels = [_ablation(runs, column) for runs in settings for column in ("neuralsort-n5", "softsort-n5")]
    return [panel for panel in panels if panel is not None]


def grid_panels(several: Sequence[Chosen]) -> list[Panel]:
    """A panel for each loss of these cells: one seed with every λ of the grid, and the level of "auto"."""
    losses: dict[str, list[Chosen]] = defaultdict(list)
    for one in several:
        losses[one.cell.column].append(one)
    return [_grid(column, found) for column, found in losses.items()]


def _order(*tables: str) -> list[str]:
    """The columns of tables, the one of the paper's figure 3 before all others."""
    columns = list(dict.fromkeys(cell.column for table in tables for cell in cells(table)))
    return sorted(columns, key=lambda column: column != "smoothed-loss-10")


def _arms(arms: dict[str, Group | None], metric: str) -> list[Line]:
    """A line an arm that has runs."""
    found = [
        _curve(NAMES[arm], TONES[arm], group.records, metric, dashed=arm in ("fisher", "stable"))
        for arm, group in arms.items()
        if group is not None
    ]
    return [line for line in found if line is not None]


def _learning(name: str, title: str, lines: list[Line], label: str) -> Panel | None:
    """Test accuracy over the steps."""
    if not lines:
        return None
    last = max(line.points[-1][0] for line in lines)
    heights = [y for line in lines for _, y in line.points]
    words = "; ".join(f"{line.label} ends at {line.points[-1][1]:.1f}" for line in lines)
    svg = chart(lines, Axis("training step", 0.0, last), around(label, heights, floor=0.0, ceiling=100.0), title, words)
    return Panel(name, title, svg, words)


def _ablation(runs: Runs, column: str) -> Panel | None:
    """Element-wise accuracy over λ on a logarithmic axis, both variants; each seed faintly behind its mean.

    `None` where only the λ of table 1 were run: two points are no ablation.
    """
    lines: list[Line] = []
    for method in ("hessian", "fisher"):
        lines += _damping_lines(runs.ablation_runs(column, method), method)
    if not any(len(line.points) > 2 for line in lines):
        return None
    base = runs.figure(column, "baseline", metric="element_wise")
    if base is not None:
        lines.append(Line("baseline", [(1e-3, base.mean), (1e3, base.mean)], TONES["baseline"]))
    heights = [y for line in lines for _, y in line.points]
    words = "; ".join(
        f"{line.label} from {min(y for _, y in line.points):.1f} to {max(y for _, y in line.points):.1f}"
        for line in lines
        if line.label
    )
    title = f"{column_title(column)}, {runs.label}"
    x, y = Axis("damping λ", 1e-3, 1e3, log=True), around("ranks right, %", heights, floor=0.0, ceiling=100.0)
    return Panel(f"ablation-{runs.length}-{column}", title, chart(lines, x, y, title, words), words)


def _grid(column: str, arms: Sequence[Chosen]) -> Panel:
    """Test accuracy over λ on a logarithmic axis; "auto" as a level with its standard deviation over the seeds."""
    first, last = min(arms[0].of_a_seed), max(arms[0].of_a_seed)
    lines, words = [], []
    for one in arms:
        arm, points = one.cell.variant, sorted(one.of_a_seed.items())
        dashed = arm == "fisher"
        lines.append(Line(NAMES[arm], points, TONES[arm], marked=True, dashed=dashed))
        words.append(f"{NAMES[arm]} from {min(y for _, y in points):.1f} to {max(y for _, y in points):.1f}")
        if one.auto is not None:
            level, spread = one.auto.mean, one.auto.std
            band = [] if math.isnan(spread) else [(x, level - spread, level + spread) for x in (first, last)]
            ends = [(first, level), (last, level)]
            lines.append(Line("", ends, TONES[arm], band=band, faint=True, dashed=dashed))
            words[-1] += f", with “auto” {level:.1f}"
    title, description = column_title(column), "; ".join(words)
    heights = [y for line in lines for _, *bounds in (*line.points, *line.band) for y in bounds]
    x, y = Axis("damping λ", first, last, log=True), around("test accuracy, %", heights, floor=0.0, ceiling=100.0)
    return Panel(f"damping-{column}", title, chart(lines, x, y, title, description), description)


def _damping_lines(found: dict[float, Group], method: str) -> list[Line]:
    seeds: dict[int, list[Point]] = defaultdict(list)
    means: list[Point] = []
    for damping, group in sorted(found.items()):
        for record in group.records:
            if math.isfinite(record.test.get("element_wise", math.nan)):
                seeds[record.seed].append((damping, record.test["element_wise"]))
        if (summary := group.summary("element_wise")) is not None and math.isfinite(summary.mean):
            means.append((damping, summary.mean))
    if not means:
        return []
    faint = [Line("", points, TONES[method], faint=True) for points in seeds.values() if len(points) > 1]
    return [*faint, Line(NAMES[method], means, TONES[method], marked=True, dashed=method == "fisher")]


def _curve(
    name: str, tone: int, records: Sequence[RunRecord], metric: str, *, averaged: bool = False, dashed: bool = False
) -> Line | None:
    """The mean over some runs and its 95 % interval, at the steps that all of them were evaluated at.

    Runs without a curve count for nothing.
    """
    curves = [curve for record in records if (curve := _points(record, metric, averaged))]
    steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if not steps:
        return None
    points, band = [], []
    for step in steps:
        values = [curve[step] for curve in curves]
        mean = statistics.fmean(values)
        points.append((step, mean))
        if len(values) > 1:
            width = half_width(values)
            band.append((step, mean - width, mean + width))
    label = name if len(curves) > 1 else f"{name} (1 seed)"
    return Line(label, points, tone, band=band, dashed=dashed)


def _points(record: RunRecord, metric: str, averaged: bool) -> dict[float, float]:
    """The accuracy by the step; what is no accuracy, or at no step of the run, is left out."""
    found = {}
    for evaluation in record.curve:
        figures = evaluation.get("averaged") if averaged else evaluation
        test = figures.get("test") if isinstance(figures, dict) else None
        step, value = finite(evaluation.get("step")), percentage(test.get(metric) if isinstance(test, dict) else None)
        if step is not None and 1 <= step <= record.steps and value is not None:
            found[step] = value
    return found


def half_width(values: Sequence[float], level: float = 0.95) -> float:
    """Half the width of the t confidence interval of a mean: t · s/√n with n−1 degrees of freedom.

    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.484
    """
    from scipy.stats import t

    quantile = float(t.ppf(0.5 + level / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))
