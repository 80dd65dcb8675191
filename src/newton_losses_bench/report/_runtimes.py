"""How long a step takes, always as a ratio to the baseline that was timed beside it, never across machines.

There are two sources: the timed runs of `newton-losses reproduce runtimes`, and what `benchmarks/training_step.py`
printed into files `step_*.txt`.
"""

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cells import cells
from ..config import PATHS_ALGORITHMS, SORTING_ALGORITHMS
from ..store import RunRecord
from ._blocks import NOT_RUN, NOTHING, Cell, Judgement, Table, Text, Verdict
from ._found import relative
from ._measured import Measured
from ._names import column_title
from ._rules import Part, judge

_LINE = re.compile(
    r"^(?:sorting n=(?P<n>\d+)|paths) +(?P<algorithm>[\w-]+) +(?P<curvature>none|fisher|hessian) +"
    r"(?P<time>[\d.]+) ms/step",
    re.MULTILINE,
)
_METHODS = {"none": "baseline", "fisher": "fisher", "hessian": "hessian"}
SAME = 1.05  # ratios up to this count as "indistinguishable"
STOCHASTIC = ("smoothed-loss", "fenchel-young")


@dataclass(frozen=True)
class Timings:
    """Milliseconds a step from one source on one device: by column, then by method."""

    source: str
    steps: dict[str, dict[str, float]]

    def ratio(self, column: str, method: str) -> float | None:
        """How many times the baseline's time a step takes."""
        times = self.steps.get(column, {})
        return times[method] / times["baseline"] if method in times and "baseline" in times else None


def timings(results: Path, measured: Measured) -> tuple[list[Timings], list[str]]:
    """All timings under a folder of results, those of the benchmark first; and what was left out of its files."""
    found, notes = [], []
    for path in sorted(results.rglob("step_*.txt")):
        name = relative(path, results)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            notes.append(f"{name}: {error.strerror or error}.")
            continue
        steps, nonsense = _printed(text)
        if nonsense:
            notes.append(f"{name}: {nonsense} of its lines, no step’s time.")
        if steps:
            found.append(Timings(f"{path.stem}, {_device(text)}", steps))
    return [*found, *_timed_runs(measured)], notes


def _printed(text: str) -> tuple[dict[str, dict[str, float]], int]:
    """Milliseconds a step by column and method, and the number of lines that look like it and make no sense."""
    steps: dict[str, dict[str, float]] = defaultdict(dict)
    nonsense = 0
    for line in _LINE.finditer(text):
        algorithm, time = line["algorithm"], _milliseconds(line["time"])
        if time is None or algorithm not in (SORTING_ALGORITHMS if line["n"] else PATHS_ALGORITHMS):
            nonsense += 1
            continue
        # The benchmark times the defaults: for loop and L₁, ten samples.
        detail = f"n{line['n']}" if line["n"] else ("for-l1" if algorithm == "bellman-ford" else "10")
        steps[f"{algorithm}-{detail}"][_METHODS[line["curvature"]]] = time
    return dict(steps), nonsense


def _milliseconds(found: str | float) -> float | None:
    """A time that others can be compared with, or `None`."""
    try:
        time = float(found)
    except ValueError:
        return None
    return time if 0 < time < math.inf else None


def _device(text: str) -> str:
    """The device out of a line such as `torch 2.11.0, NVIDIA H200, {...}`."""
    parts = text.splitlines()[0].split(", ") if text else []
    return parts[1] if len(parts) > 1 else "unknown device"


def _timed_runs(measured: Measured) -> list[Timings]:
    """Runs of the runtime table; only runs of one folder on one device are compared."""
    by_source: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for cell in cells("runtimes"):
        length = cell.protocol.get("steps", cell.protocol.get("epochs"))
        found = measured.group("runtimes", cell.key, lambda protocol, length=length: protocol.length == length)  # type: ignore[misc]
        for record in found.records if found else ():
            if (time := _milliseconds(record.milliseconds_per_step)) is not None:
                by_source[_source(record)][cell.column][cell.variant].append(time)
    return [
        Timings(
            source,
            {
                column: {method: statistics.median(times) for method, times in methods.items()}
                for column, methods in columns.items()
            },
        )
        for source, columns in by_source.items()
    ]


def _source(record: RunRecord) -> str:
    device = record.environment.get("gpu") or record.environment.get("cpu") or "unknown device"
    settings = record.configuration
    how = [str(settings.get("precision")), *(name for name in ("compile", "graph") if settings.get(name))]
    if record.at_once > 1:
        how.append(f"{record.at_once} at once")
    return f"{record.path.parent.name}, {device}, {', '.join(how)}"


def runtime_table(found: Sequence[Timings], name: str, caption: Text) -> Table:
    """A row a loss and source: the baseline's time, the two ratios to it, and the paper's ratios."""
    rows = []
    for column, ratios in paper_ratios().items():
        papers = [_times(ratios.get(method)) for method in ("hessian", "fisher")]
        sources = [one for one in found if "baseline" in one.steps.get(column, {})]
        for one in sources:
            base = one.steps[column]["baseline"]
            ours = [_times(one.ratio(column, method)) for method in ("hessian", "fisher")]
            rows.append((Cell(column_title(column)), Cell(one.source), Cell(f"{base:.2f}", base), *ours, *papers))
        if not sources:
            rows.append((Cell(column_title(column)), NOTHING, NOT_RUN, NOT_RUN, NOT_RUN, *papers))
    return Table(
        name,
        caption,
        ("loss", "timed in", "baseline, ms", "Hessian", "Fisher", "Hessian", "Fisher"),
        tuple(rows),
        labels=2,
        groups=(("", 2), ("ours", 3), ("the paper", 2)),
    )


def paper_ratios() -> dict[str, dict[str, float]]:
    """The paper's runtimes as ratios to its baseline.

    >>> round(paper_ratios()["logistic-n10"]["hessian"], 2)
    3.66
    """
    minutes: dict[str, dict[str, float]] = defaultdict(dict)
    for cell in cells("runtimes"):
        if cell.paper:
            minutes[cell.column][cell.variant] = cell.paper["minutes"][0]
    return {
        column: {method: time / times["baseline"] for method, time in times.items() if method != "baseline"}
        for column, times in minutes.items()
    }


def runtime_verdicts(found: Sequence[Timings]) -> list[Verdict]:
    """The paper's claims about time, decided for every source."""
    return [
        Verdict(
            "The Fisher variant takes as long as the baseline, in all cases.",
            "section 4.4",
            f"Every measured step takes at most {SAME} times the baseline's.",
            _judgements(found, "fisher", lambda column: True),
        ),
        Verdict(
            "For stochastic losses the Hessian variant takes as long as the baseline too.",
            "section 4.4",
            f"Every measured step of smoothing the loss and of the Fenchel-Young loss takes at most {SAME} times the "
            "baseline's.",
            _judgements(found, "hessian", lambda column: column.startswith(STOCHASTIC)),
        ),
    ]


def _judgements(found: Sequence[Timings], method: str, wanted: Callable[[str], bool]) -> tuple[Judgement, ...]:
    judgements = []
    for one in found:
        parts = [_part(one, column, method) for column in one.steps if wanted(column)]
        if any(part.holds is not None for part in parts):
            judgements.append(judge(one.source, parts))
    return tuple(judgements) or (judge("ours", []),)


def _part(one: Timings, column: str, method: str) -> Part:
    ratio = one.ratio(column, method)
    if ratio is None:
        return Part(None, column_title(column))
    more = one.steps[column][method] - one.steps[column]["baseline"]
    return Part(ratio <= SAME, f"{column_title(column)} × {ratio:.2f} ({more:+.2f} ms)".replace("(-", "(−"))


def _times(ratio: float | None) -> Cell:
    return NOTHING if ratio is None else Cell(f"× {ratio:.2f}", ratio)
