"""What a report is made from, read once: the finished runs, by cell and method.

Which run belongs to which cell is decided in `groups`. Everything here comes from files that anybody may have
written, so a value is checked before it counts, and `Evidence.notes` names what was left out.
"""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..cells import VARIANTS, Cell, cells
from ..groups import Group, Protocol, group
from ..settings import paper_grid
from ..statistics import Summary, p_value
from ..store import RunRecord, Store, UnfinishedRun

FULL, SHORT, EPOCHS = 100_000, 10_000, 50
LEAST_SEEDS = 3  # fewer decide nothing: of two, one lucky seed is half of the evidence
PAPER_SEEDS = 10  # of every figure in the paper's tables
TABLES = ("table1", "table2", "table3")
GRID = paper_grid()
AUTO = "auto"
NORMALISED = "auto:1000"  # λ so large that no curvature is left: the gradient, normalised by the batch
_BESIDE = "beside"  # the table of cells that no table of the paper has: other dampings, and clipped gradients
# Runs of one cell may differ in these from the paper's, as long as they do not differ among themselves.
_OPEN = ("precision", "eval_every")
_CONTROLS = {"clipped": "clip", "energy": "energy"}

NEWTON = ("hessian", "fisher")
TITLES = {
    "neuralsort": "NeuralSort",
    "softsort": "SoftSort",
    "logistic": "Logistic network",
    "cauchy": "Cauchy network",
    "bellman-ford": "Bellman-Ford",
    "smoothed-loss": "Smoothed loss",
    "smoothed-algorithm": "Smoothed algorithm",
    "fenchel-young": "Fenchel-Young",
}
LOOPS = {"for-l1": "for, L₁", "for-l2": "for, L₂²", "while-l1": "while, L₁", "while-l2": "while, L₂²"}
SETTINGS_OF_GOAL = (*VARIANTS, *(f"{variant}-{AUTO}" for variant in NEWTON))  # in log space
METHODS = {
    "baseline": "plain",
    "hessian": "Hessian",
    "fisher": "Fisher",
    "clipped": "clipped",
    "energy": "energy",
    "sample-auto": "sample, auto",
    "hessian-auto": "Hessian, auto",
    "fisher-auto": "Fisher, auto",
}


def column_title(column: str) -> str:
    """A column's name in words.

    >>> column_title("softsort-n5"), column_title("smoothed-loss-10"), column_title("bellman-ford-for-l1")
    ('SoftSort n=5', 'Smoothed loss, 10 samples', 'Bellman-Ford for, L₁')
    """
    algorithm = next(name for name in TITLES if column.startswith(name))
    title, detail = TITLES[algorithm], column.removeprefix(algorithm + "-")
    if detail.startswith("n"):
        return f"{title} n={detail[1:]}"
    return f"{title}, {detail} samples" if detail.isdigit() else f"{title} {LOOPS[detail]}"


class Index:
    """All finished runs by cell. `used` fills with the identities of the runs that were shown."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self.records = records
        self.used: set[str] = set()
        # What `Runs.figure` found: claims and tables ask for the same figures again and again.
        self.figures: dict[tuple[object, ...], Summary | None] = {}
        self._groups: dict[tuple[str, str], list[Group]] = defaultdict(list)
        every = [cell for table in (*TABLES, "ablation", "runtimes", "cvxpy") for cell in cells(table)]
        dampings: list[str | float] = [AUTO, NORMALISED, *GRID]
        every += [damped(cell, damping) for cell in curved_cells() for damping in dampings]
        every += [by_sample(cell) for cell in curved_cells() if cell.variant == "fisher"]
        every += [clipped(cell) for table in TABLES for cell in cells(table) if cell.variant == "baseline"]
        for found in group(every, records):
            self._groups[found.cell.table, found.cell.key].append(found)
        # Each run of a table counts once: a run with another damping says nothing about a table's protocol.
        counted = {
            record.identity: one.protocol
            for (table, _), groups in self._groups.items()
            if table != _BESIDE
            for one in groups
            for record in one.records
        }
        self._common = Counter(counted.values())

    def group(self, table: str, key: str, accepts: Callable[[Protocol], bool]) -> Group | None:
        """The runs of a cell under one accepted protocol.

        Where several are accepted, such as float32 and bf16, the most common one is taken, so that a table compares
        like with like.
        """
        found = [one for one in self._groups.get((table, key), []) if accepts(one.protocol)]
        if not found:
            return None
        chosen = max(found, key=lambda one: (self._common[one.protocol], len(one.records)))
        self.used.update(record.identity for record in chosen.records)
        return chosen

    @property
    def others(self) -> list[RunRecord]:
        """The runs that have not been shown so far."""
        return [record for record in self.records if record.identity not in self.used]


@dataclass(frozen=True)
class Runs:
    """A setting of claims and tables: the runs of one length on one data set."""

    index: Index
    label: str
    length: int
    data: str

    def accepts(self, protocol: Protocol) -> bool:
        """Whether runs follow the paper's protocol, except for length, data and what `_OPEN` names."""
        table = "table1" if self.data == "mnist" else "table2"
        return _fixed(protocol) == _standard(table, self.length, self.data)

    def runs(self, column: str, method: str, numerics: str = "reference") -> Group | None:
        """The runs of a cell, one per seed. A method can also be "hessian-auto", "fisher-10" or "fisher-auto:1000"."""
        key = f"{column}-{_CONTROLS.get(method, method)}" + ("-stable" if numerics == "stable" else "")
        found = (self.index.group(table, key, self.accepts) for table in (*TABLES, _BESIDE))
        return next((one for one in found if one is not None), None)

    def figure(
        self, column: str, method: str, numerics: str = "reference", metric: str | None = None, averaged: bool = False
    ) -> Summary | None:
        """A test figure in per cent over the seeds; by default the metric of the paper's table, as trained."""
        key = (self.length, self.data, column, method, numerics, metric, averaged)
        if key not in self.index.figures:
            found = self.runs(column, method, numerics)
            figure = None if found is None else found.summary(metric or main_metric(found.cell), averaged=averaged)
            self.index.figures[key] = figure
        return self.index.figures[key]

    def done(self, table: str) -> tuple[int, int, int]:
        """How many of the paper's cells have runs, how many have ten seeds, and how many cells there are."""
        wanted = [cell for cell in cells(table) if cell.paper]
        found = [self.index.group(table, cell.key, self.accepts) for cell in wanted]
        seeds = [0 if one is None else len(one.records) for one in found]
        return sum(count > 0 for count in seeds), sum(count >= PAPER_SEEDS for count in seeds), len(wanted)

    def ablation(self, column: str, method: str) -> dict[float, Group]:
        """The runs of the paper's ablation by λ."""
        found = {}
        for cell in cells("ablation", only=f"{column}-{method}-*") if method != "baseline" else ():
            if (runs := self.index.group("ablation", cell.key, self.accepts)) is not None:
                found[float(cell.config["damping"])] = runs
        return found


def _fixed(protocol: Protocol) -> dict[str, Any]:
    return {name: value for name, value in protocol.settings if name not in _OPEN}


@cache
def _standard(table: str, length: int, data: str) -> dict[str, Any]:
    """The fixed part of the protocol that the paper's cells have at this length on this data."""
    settings = {"steps" if table == "table1" else "epochs": length, "data": data, "device": "cpu"}
    return _fixed(Protocol.of(cells(table)[0].make(**settings).to_dict()))


@dataclass(frozen=True)
class PaperFigures:
    """The paper's own tables as a setting of claims. The paper's ablation is a picture without numbers."""

    label: str = "the paper"

    def figure(
        self, column: str, method: str, numerics: str = "reference", metric: str | None = None, averaged: bool = False
    ) -> Summary | None:
        """A figure as the paper prints it: its own numerics, weights as trained.

        >>> PaperFigures().figure("softsort-n5", "fisher")
        Summary(mean=84.03, std=0.59, count=10)
        """
        cell = paper_cells().get(f"{column}-{method}")
        if cell is None or numerics != "reference" or averaged:
            return None
        found = (cell.paper or {}).get(metric or main_metric(cell))
        return None if found is None else Summary(*found, PAPER_SEEDS)

    def ablation(self, column: str, method: str) -> dict[float, Group]:
        return {}


Setting = Runs | PaperFigures  # where the figures of a claim come from
Figure = Summary | None


def measured(figure: Figure) -> bool:
    """Whether there are enough seeds to decide something."""
    return figure is not None and figure.count >= LEAST_SEEDS


@dataclass(frozen=True)
class Standing:
    """How a column of table 1 stands to the paper's best: our figures in log space by setting."""

    column: str
    paper_method: str
    paper: Summary
    ours: Mapping[str, Figure]

    @property
    def best(self) -> tuple[str, Summary] | None:
        """Our setting with the highest mean among those with enough seeds, or among all where none has."""
        run = [(name, figure) for name, figure in self.ours.items() if figure is not None]
        counting = [(name, figure) for name, figure in run if measured(figure)]
        return max(counting or run, key=lambda one: one[1].mean, default=None)

    @property
    def p(self) -> float:
        """The probability of so large a lead of whichever is ahead if there were none (Welch, one-sided)."""
        if self.best is None:
            return math.nan
        own = self.best[1]
        return p_value(self.paper, own) if own.mean >= self.paper.mean else p_value(own, self.paper)

    @property
    def state(self) -> str:
        """One setting is enough to reach it, and all have to miss it."""
        counting = [figure for figure in self.ours.values() if measured(figure)]
        # The mean of figures with two digits can miss such a figure by its last bit.
        if any(figure.mean >= self.paper.mean - 1e-9 for figure in counting if figure):
            return "reached"
        if self.best is None:
            return "not run"
        return "not reached" if len(counting) == len(self.ours) else "open"


def standings(at: Setting, *, averaged: bool = False) -> list[Standing]:
    """Every column of table 1 with our figures of one length, as trained or with averaged weights.

    >>> [(one.column, one.paper_method, one.paper.mean) for one in standings(PaperFigures())][:2]
    [('neuralsort-n5', 'fisher', 83.93), ('softsort-n5', 'fisher', 84.03)]
    """
    found = []
    for column in columns("table1"):
        paper = {name: figure for name in VARIANTS if (figure := PaperFigures().figure(column, name)) is not None}
        best = max(paper, key=lambda name: paper[name].mean)
        ours = {name: at.figure(column, name, "stable", averaged=averaged) for name in SETTINGS_OF_GOAL}
        found.append(Standing(column, best, paper[best], ours))
    return found


@cache
def paper_cells() -> dict[str, Cell]:
    """The cells of tables 1, 2 and 3 that the paper has figures for, by key, in its order."""
    return {cell.key: cell for table in TABLES for cell in cells(table) if cell.paper}


@cache
def curved_cells() -> tuple[Cell, ...]:
    """The cells of the tables that have a λ; for sorting those in log space."""
    found = (cell for table in TABLES for cell in cells(table))
    return tuple(cell for cell in found if cell.variant != "baseline" and cell.numerics != "reference")


def columns(*tables: str) -> list[str]:
    """The columns of tables in the paper's order.

    >>> len(columns("table1"))
    9
    """
    return list(dict.fromkeys(cell.column for table in tables for cell in cells(table)))


def damped(cell: Cell, damping: str | float) -> Cell:
    """The same cell with another damping in place of its λ.

    >>> cell = damped(cells("table1", only="softsort-n5-hessian-stable")[0], "auto")
    >>> cell.key, cell.make(device="cpu").damping, cell.make(device="cpu").spectrum
    ('softsort-n5-hessian-auto-stable', 'auto', 'absolute')
    """
    name = damping if isinstance(damping, str) else f"{damping:g}"
    suffix = "-stable" if cell.numerics == "stable" else ""
    changed = cell.changed({"damping": damping})
    return replace(changed, table=_BESIDE, key=f"{cell.column}-{cell.variant}-{name}{suffix}")


def by_sample(cell: Cell) -> Cell:
    """The same cell with each sample's own part of the empirical Fisher and the default damping.

    >>> by_sample(cells("table1", only="softsort-n5-fisher-stable")[0]).key
    'softsort-n5-sample-auto-stable'
    """
    changed = damped(cell, AUTO).changed({"curvature": "sample"})
    return replace(changed, key=changed.key.replace(f"-{cell.variant}-", "-sample-"))


def clipped(cell: Cell) -> Cell:
    """The same cell with the norm of its gradient clipped at 1; in the paper's numerics the tables have it."""
    suffix = "-stable" if cell.numerics == "stable" else ""
    return replace(cell.changed({"clip_norm": 1.0}), table=_BESIDE, key=f"{cell.column}-clip{suffix}")


def main_metric(cell: Cell) -> str:
    """The figure that a cell's table is about."""
    return {"sorting": "exact_match", "paths": "perfect_match"}.get(cell.task, "loss")


@dataclass(frozen=True)
class Evidence:
    """The finished runs in the four settings of a report, the unfinished ones, and what was left out."""

    results: Path
    index: Index
    unfinished: Sequence[UnfinishedRun]
    notes: list[str]
    full: Runs = field(init=False)
    short: Runs = field(init=False)
    warcraft: Runs = field(init=False)
    terrain: Runs = field(init=False)

    def __post_init__(self) -> None:
        for name, label, length, data in (
            ("full", f"{FULL:,} steps", FULL, "mnist"),
            ("short", f"{SHORT:,} steps", SHORT, "mnist"),
            ("warcraft", "Warcraft", EPOCHS, "warcraft"),
            ("terrain", "look-alike maps", EPOCHS, "terrain"),
        ):
            object.__setattr__(self, name, Runs(self.index, label, length, data))


def gather(results: Path) -> Evidence:
    """Read everything under a folder of results, each run once."""
    store = Store(results)
    found, notes = store.records(), list(store.notes)
    unfinished = store.unfinished()
    notes += store.notes
    notes += [f"{run.path}: unfinished, last evaluated at step {run.step}." for run in unfinished]
    sound = {record.identity: _is_sound(record) for record in found}
    notes += [f"{one.path}: a setting or a test figure makes no sense." for one in found if not sound[one.identity]]
    index = Index([record for record in found if sound[record.identity]])
    return Evidence(results, index, unfinished, [note.replace(f"{results}{os.sep}", "") for note in notes])


def _is_sound(record: RunRecord) -> bool:
    """Whether every setting is a word or a number, and every test figure an accuracy or a loss."""
    try:
        found = record.seed >= 0 and Protocol.of(record.configuration).length > 0
    except (TypeError, ValueError, KeyError, OverflowError):
        return False
    settings = [
        part for value in record.configuration.values() for part in (value if isinstance(value, list) else [value])
    ]
    if not all(part is None or isinstance(part, str | bool) or finite(part) is not None for part in settings):
        return False
    figures = (*record.test.items(), *record.averaged.items())
    numbers = [finite(value) if name == "loss" else percentage(value) for name, value in figures]
    return found and finite(record.steps) is not None and None not in numbers


def finite(value: Any) -> float | None:
    """A number to calculate with, or `None`: JSON also has true, infinities and integers of any length.

    >>> finite(2), finite(True), finite(10**400), finite(float("nan")), finite("2")
    (2.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def percentage(value: Any) -> float | None:
    """An accuracy, or `None` for anything but a number from 0 to 100."""
    found = finite(value)
    return found if found is not None and 0 <= found <= 100 else None


def relative(path: Path, results: Path) -> str:
    """A path as seen from the folder of results."""
    return str(path.relative_to(results)) if path.is_relative_to(results) else path.name
