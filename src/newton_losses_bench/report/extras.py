"""What lies beside the tables: times, gradients and convex layers, and the runs that belong to no table.

Times come from the runs of `newton-losses reproduce runtimes` and from what `benchmarks/training_step.py` printed into
files `step_*.txt`; losses of convex layers from the runs of `newton-losses reproduce cvxpy`.
"""

import math
import os
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from newton_losses.errors import NewtonLossesError

from ..cells import cells
from ..config import PATHS_ALGORITHMS, SORTING_ALGORITHMS, configuration_class, identity
from ..describe import describe_setting
from ..groups import Protocol, group
from ..settings import paper_protocol
from ..statistics import summarise_all
from ..store import RunRecord
from .claims import Judgement, Part, Verdict, judge
from .collect import NEWTON, Evidence, Index, column_title, relative
from .gradients import LARGEST, Gradients, gradient_verdicts, read_gradients
from .tables import NOT_RUN, NOTHING, Cell, Table, brief, count_cell

SAME_TIME = 1.05  # ratios of times up to this count as "the same time"


@dataclass(frozen=True)
class Timings:
    """Milliseconds per step from one source on one device: by column, then by method."""

    source: str
    steps: dict[str, dict[str, float]]

    def ratio(self, column: str, method: str) -> float | None:
        """How many times as long as the baseline's a step takes."""
        times = self.steps.get(column, {})
        return times[method] / times["baseline"] if method in times and "baseline" in times else None


@dataclass(frozen=True)
class Losses:
    """Final training losses of convex layers by seed, without and with the empirical Fisher."""

    source: str
    baseline: dict[int, float]
    fisher: dict[int, float]
    command: str = ""

    @property
    def pairs(self) -> dict[int, tuple[float, float]]:
        """The seeds that both have: losses of different seeds cannot be compared."""
        return {seed: (self.baseline[seed], self.fisher[seed]) for seed in sorted(self.baseline) if seed in self.fisher}


@dataclass(frozen=True)
class Extras:
    """All timings, losses and gradients under a folder of results, and what was left out."""

    timings: Sequence[Timings]
    convex: Sequence[Losses]
    gradients: Gradients
    notes: Sequence[str]


def read_extras(found: Evidence) -> Extras:
    """Read what lies beside the runs; a file that makes no sense is named and left out."""
    timings, notes = _timed_runs(found.index), []
    gradients: Gradients = {}
    for path in _files(found.results):
        name = relative(path, found.results)
        try:
            if path.name == LARGEST:
                gradients = read_gradients(path)
                continue
            content = path.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
            notes.append(f"{name}: not readable ({type(error).__name__}).")
            continue
        # A file may hold several outputs, each below a line with its name.
        before, *parts = re.split(r"^==> (\S+)\.txt <==\n", content, flags=re.MULTILINE)
        for source, text in zip(parts[::2], parts[1::2], strict=True) if parts else [(path.stem, before)]:
            steps, nonsense = _printed_times(text)
            notes += [f"{name}: {nonsense} of its lines are no step's time."] if nonsense else []
            timings.append(Timings(f"{source}, {_device(text)}", steps))
    return Extras([one for one in timings if one.steps], _convex_runs(found.index), gradients, notes)


def _files(results: Path) -> Iterable[Path]:
    """What `benchmarks/training_step.py` printed, and the largest gradients, wherever they lie under the results."""
    for parent, folders, files in os.walk(results):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted([*files, *folders]):
            if name == LARGEST or (name.startswith("step_") and name.endswith(".txt")):
                yield Path(parent, name)


_LINE = re.compile(
    r"^(?:sorting n=(?P<n>\d+)|paths) +(?P<loss>[\w-]+) +(?P<method>none|fisher|hessian) +(?P<time>[\d.]+) ms/step",
    re.MULTILINE,
)


def _printed_times(text: str) -> tuple[dict[str, dict[str, float]], int]:
    """Times that `benchmarks/training_step.py` printed, and the number of lines that make no sense."""
    steps: dict[str, dict[str, float]] = defaultdict(dict)
    nonsense = 0
    for line in _LINE.finditer(text):
        algorithm, time = line["loss"], _milliseconds(line["time"])
        if time is None or algorithm not in (SORTING_ALGORITHMS if line["n"] else PATHS_ALGORITHMS):
            nonsense += 1
            continue
        # The benchmark times the defaults: for loop and L₁, ten samples.
        detail = f"n{line['n']}" if line["n"] else ("for-l1" if algorithm == "bellman-ford" else "10")
        steps[f"{algorithm}-{detail}"]["baseline" if line["method"] == "none" else line["method"]] = time
    return dict(steps), nonsense


def _timed_runs(index: Index) -> list[Timings]:
    """Runs of the runtime table; only runs of one folder on one device are compared."""
    times: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for cell in cells("runtimes"):
        length = cell.protocol.get("steps", cell.protocol.get("epochs"))
        found = index.group("runtimes", cell.key, lambda protocol, length=length: protocol.length == length)  # type: ignore[misc]
        for record in found.records if found else ():
            if (time := _milliseconds(record.milliseconds_per_step)) is not None:
                times[timing_source(record)][cell.column][cell.variant].append(time)
    return [
        Timings(
            source,
            {column: {name: statistics.median(each) for name, each in found.items()} for column, found in by.items()},
        )
        for source, by in times.items()
    ]


def timing_source(record: RunRecord) -> str:
    """Where and how a run was timed: times of different sources are never compared."""
    device = record.environment.get("gpu") or record.environment.get("cpu") or "unknown device"
    settings = record.configuration
    how = [str(settings.get("precision")), *(name for name in ("compile", "graph") if settings.get(name))]
    how += [f"{record.at_once} at once"] if record.at_once > 1 else []
    return f"{record.path.parent.name}, {device}, {', '.join(how)}"


def _convex_runs(index: Index) -> list[Losses]:
    """The runs of `reproduce cvxpy`, those with the solver first; other batches or lengths are other sources."""
    found = []
    for algorithm, title in (("relu", "cvxpylayers"), ("relu-exact", "known solution")):
        losses: dict[Protocol, dict[str, dict[int, float]]] = defaultdict(lambda: {"baseline": {}, "fisher": {}})
        for one in group([cell.changed({"algorithm": algorithm}) for cell in cells("cvxpy")], index.records):
            index.used.update(record.identity for record in one.records)
            losses[one.protocol][one.cell.variant] = {
                record.seed: record.test["loss"] for record in one.records if "loss" in record.test
            }
        for protocol, by_variant in sorted(losses.items(), key=lambda pair: -pair[0]["batch_size"]):
            samples, steps = int(protocol["batch_size"]), protocol.length
            changes = [f"--algorithm {algorithm}"] * (algorithm != "relu")
            changes += [f"--batch-size {samples}"] * (samples != paper_protocol("convex")["batch_size"])
            changes += [f"--steps {steps}"] * (steps != paper_protocol("convex")["steps"])
            seeds = len(by_variant["baseline"].keys() | by_variant["fisher"].keys())
            command = " ".join(["newton-losses reproduce cvxpy", *changes, f"--seeds {seeds}"])
            source = f"{title}, {samples} samples" + (f", {steps} steps" if f"--steps {steps}" in changes else "")
            found.append(Losses(source, by_variant["baseline"], by_variant["fisher"], command))
    return found


def _milliseconds(found: str | float) -> float | None:
    try:
        time = float(found)
    except ValueError:
        return None
    return time if 0 < time < math.inf else None


def _device(text: str) -> str:
    """The device from a line such as `torch 2.11.0, NVIDIA H200, {...}`."""
    parts = text.splitlines()[0].split(", ") if text else []
    return parts[1] if len(parts) > 1 else "unknown device"


def _judged_times(found: Sequence[Timings], method: str, only: tuple[str, ...] = ("",)) -> list[Judgement]:
    judgements, every = [], []
    for one in found:
        ratios = {column: one.ratio(column, method) for column in one.steps if column.startswith(only)}
        parts = [Part(r <= SAME_TIME, f"{column_title(c)} × {r:.2f}") for c, r in ratios.items() if r is not None]
        judgements += [judge(one.source, parts)] if parts else []
        every += parts
    return [judge(f"all {len(judgements)} timings", every), *judgements] if every else [judge("ours", [])]


def _judged_losses(found: Sequence[Losses], least: int = 5) -> list[Judgement]:
    judgements = []
    for one in found:
        parts = [
            Part(fisher < base, f"seed {seed} {fisher:.3f} against {base:.3f}")
            for seed, (base, fisher) in one.pairs.items()
        ]
        parts += [Part(None, "a further seed (not run)")] * (least - len(parts))
        judgements.append(judge(one.source, parts))
    return judgements or [judge("ours", [])]


def extra_verdicts(found: Extras) -> list[Verdict]:
    """The claims about time, gradients and convex layers, which rest on other measurements than the tables."""
    return [
        Verdict(
            "A step with the Fisher takes as long as the baseline’s.",
            "section 4.4",
            f"Every measured step takes at most {SAME_TIME} times as long as the baseline’s.",
            _judged_times(found.timings, "fisher"),
        ),
        Verdict(
            "For stochastic losses a step with the Hessian does too.",
            "section 4.4",
            f"Every measured step of the smoothed loss and of Fenchel-Young takes at most {SAME_TIME} times as long.",
            _judged_times(found.timings, "hessian", ("smoothed-loss", "fenchel-young")),
        ),
        *gradient_verdicts(found.gradients),
        Verdict(
            "With convex layers the Fisher lowers the loss on every seed.",
            "appendix, table on cvxpylayers",
            "On each of at least 5 seeds the loss after the last step is lower with the Fisher.",
            _judged_losses(found.convex),
        ),
    ]


def runtime_table(found: Sequence[Timings]) -> Table:
    """One row per loss and source: the baseline's time and the ratios to it, ours and the paper's."""
    rows = []
    for column, ratios in paper_ratios().items():
        papers = [_times(ratios.get(method)) for method in NEWTON]
        sources = [one for one in found if "baseline" in one.steps.get(column, {})]
        for one in sources:
            base = one.steps[column]["baseline"]
            ours = [_times(one.ratio(column, method)) for method in NEWTON]
            rows.append(
                (Cell(column_title(column)), Cell(brief(one.source)), Cell(f"{base:.2f}", base), *ours, *papers)
            )
        if not sources:
            rows.append((Cell(column_title(column)), NOTHING, NOT_RUN, NOT_RUN, NOT_RUN, *papers))
    caption = (
        "A step’s time as a multiple of the plain loss’s, timed beside it on the same device. The paper’s ratios are "
        "of whole trainings on an A6000. Times are never compared across devices."
    )
    heads = ("loss", "timed in", "plain, ms", "Hessian", "Fisher", "paper, Hessian", "paper, Fisher")
    return Table("runtimes", caption, heads, rows, 2)


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


def _times(ratio: float | None) -> Cell:
    return NOTHING if ratio is None else Cell(f"× {ratio:.2f}", ratio)


def convex_table(found: Sequence[Losses]) -> Table:
    """One row per source: on how many seeds the Fisher ends lower, and the median losses."""
    papers = {cell.variant: cell.paper_seeds or {} for cell in cells("cvxpy")}
    rows = []
    for one in (Losses("the paper", papers["baseline"], papers["fisher"]), *found):
        lower = sum(fisher < base for base, fisher in one.pairs.values())
        medians = [statistics.median(losses) for losses in zip(*one.pairs.values(), strict=True)] or [None, None]
        rows.append(
            (
                Cell(brief(one.source)),
                Cell(f"{lower} of {len(one.pairs)}", lower / max(1, len(one.pairs))),
                *(NOTHING if value is None else Cell(f"{value:.3f}", value) for value in medians),
            )
        )
    caption = (
        "Training loss after the last step. Only the two losses of one seed can be compared, and our seeds are not the "
        "paper’s. “Known solution” has max(Wx + b, 0) in place of the solver, and so none of its errors."
    )
    return Table("convex-layers", caption, ("source", "Fisher lower", "median, plain", "median, Fisher"), rows)


def other_runs_table(found: Evidence) -> Table | None:
    """Finished runs that no table before has shown."""
    groups: dict[str, list[RunRecord]] = {}
    for record in found.index.others:
        groups.setdefault(identity({**record.configuration, "seed": 0}), []).append(record)
    rows = []
    for records in groups.values():
        first = records[0]
        place = first.path if len(records) == 1 else Path(os.path.commonpath([record.path for record in records]))
        figures = summarise_all(record.test for record in records)
        averaged = summarise_all(record.averaged for record in records if record.averaged)
        texts = [f"{name} {figure}" for name, figure in figures.items()]
        texts += [f"averaged {name} {figure}" for name, figure in averaged.items()]
        rows.append(
            (
                Cell(brief(relative(place, found.results))),
                Cell(brief(_setting(first), 120)),
                Cell(brief(first.configuration.get("data", "–"))),
                Cell(str(first.steps), float(first.steps)),
                count_cell(len(records)),
                Cell(brief(", ".join(texts) or "–", 120), next((one.mean for one in figures.values()), None)),
            )
        )
    caption = (
        "Finished runs with other settings than the tables’ cells: another λ, length or data. They count in no table, "
        "figure or claim above."
    )
    return Table("others", caption, ("runs", "setting", "data", "steps", "seeds", "test"), rows) if rows else None


def _setting(record: RunRecord) -> str:
    try:
        return describe_setting(configuration_class(record.task).from_dict(record.configuration))
    except (NewtonLossesError, TypeError, ValueError, KeyError, AttributeError, OverflowError):
        names = ("task", "algorithm", "curvature", "damping", "numerics")
        return ", ".join(str(record.configuration.get(name, "–")) for name in names)


def folders_table(found: Evidence) -> Table | None:
    """Where the figures come from: folders, machines, versions."""
    by_folder: dict[str, list[RunRecord]] = defaultdict(list)
    for record in found.index.records:
        by_folder[relative(record.path.parent, found.results)].append(record)
    rows = [
        (
            Cell(brief(folder)),
            count_cell(len(records)),
            _several(record.environment.get("gpu") or record.environment.get("cpu") for record in records),
            _several(record.configuration.get("precision") for record in records),
            _several(record.environment.get("torch") for record in records),
            _several(str(record.environment.get("commit") or "unknown")[:12] for record in records),
        )
        for folder, records in by_folder.items()
    ]
    heads = ("folder", "runs", "device", "precision", "torch", "commit")
    return Table("folders", "The folders of finished runs.", heads, rows) if rows else None


def _several(values: Iterable[Any]) -> Cell:
    return Cell(brief(", ".join(sorted({str(value) for value in values if value is not None})) or "–"))
