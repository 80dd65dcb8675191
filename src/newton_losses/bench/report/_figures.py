"""The figures of a report: learning curves with 95 % bands (the paper's figure 3) and the ablation of λ (figure 4)."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from ..results import RunRecord
from ._blocks import Panel
from ._chart import Line, chart
from ._rules import Setting
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


def learning_curves(
    name: str, title: str, arms: dict[str, list[RunRecord]], metric: str, label: str
) -> Panel | None:
    """Test accuracy over the steps, a line an arm: the mean over its seeds and the 95 % interval of that mean."""
    lines = [line for arm, records in arms.items() if records and (line := _curve(arm, records, metric))]
    if not lines:
        return None
    last = max(line.points[-1][0] for line in lines)
    heights = [y for line in lines for _, y in line.points]
    words = "; ".join(f"{line.label} ends at {line.points[-1][1]:.1f}" for line in lines)
    svg = chart(lines, Axis("training step", 0.0, last), around(label, heights, floor=0.0, ceiling=100.0), title, words)
    return Panel(name, title, svg, words)


def ablation(name: str, title: str, key: str, setting: Setting, seeds: dict[str, Any]) -> Panel | None:
    """Element-wise accuracy over λ on a logarithmic axis, both variants; each seed faintly behind its mean."""
    lines = []
    for method in ("hessian", "fisher"):
        found = setting.ablation(key, method)
        if not found:
            continue
        for points in seeds.get(method, {}).values():
            if len(points) > 1:
                lines.append(Line("", sorted(points.items()), TONES[method], faint=True))
        means = [(damping, summary.mean) for damping, summary in sorted(found.items())]
        lines.append(Line(NAMES[method], means, TONES[method], marked=True, dashed=method == "fisher"))
    if not lines:
        return None
    base = setting.figure(key, "baseline", metric="element_wise")
    if base is not None:
        lines.append(Line("baseline", [(1e-3, base.mean), (1e3, base.mean)], TONES["baseline"]))
    heights = [y for line in lines for _, y in line.points]
    words = "; ".join(
        f"{line.label} from {min(y for _, y in line.points):.1f} to {max(y for _, y in line.points):.1f}"
        for line in lines
        if line.label
    )
    x, y = Axis("damping λ", 1e-3, 1e3, log=True), around("ranks right, %", heights, floor=0.0, ceiling=100.0)
    return Panel(name, title, chart(lines, x, y, title, words), words)


def _curve(arm: str, records: Sequence[RunRecord], metric: str) -> Line | None:
    """A line over the steps that all runs of an arm were evaluated at."""
    curves = [_points(record, metric) for record in records]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
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
    label = NAMES[arm] if len(records) > 1 else f"{NAMES[arm]} (1 seed)"
    return Line(label, points, TONES[arm], band=band, dashed=arm in ("fisher", "stable"))


def _points(record: RunRecord, metric: str) -> dict[float, float]:
    found = {}
    for evaluation in record.curve:
        step, value = evaluation.get("step"), (evaluation.get("test") or {}).get(metric)
        if isinstance(step, int | float) and isinstance(value, int | float) and math.isfinite(value):
            found[float(step)] = float(value)
    return found


def half_width(values: Sequence[float], level: float = 0.95) -> float:
    """Half the width of the t confidence interval of a mean: t · s/√n with n−1 degrees of freedom.

    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.484
    """
    from scipy.stats import t

    quantile = float(t.ppf(0.5 + level / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))
