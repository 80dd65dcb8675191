"""What a report is made from, read once: the finished runs, by cell and method.

Which run belongs to which cell is decided in `groups`. Everything here comes from files that anybody may have
written, so a value is checked before it counts, and `Evidence.notes` names what was left out.
"""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..cells import CLIP_NORM, OURS, VARIANTS, Cell, cells
from ..groups import Group, Protocol, group
from ..statistics import Summary, is_repeat
from ..store import RunRecord, Store, UnfinishedRun

FULL, SHORT, EPOCHS = 100_000, 10_000, 50
LEAST_SEEDS = 3  # fewer decide nothing: of two, one lucky seed is half of the evidence
PAPER_SEEDS = 10  # of every figure in the paper's tables
TABLES = ("table1", "table2", "table3")
# Runs of one cell may differ in these from the paper's, as long as they do not differ among themselves.
_OPEN = ("precision", "eval_every")

NEWTON = ("hessian", "fisher")
# What the paper's tables do not have, as changes of the plain loss. λ = "normalized:1000" is so large that no curvature
# is left: the gradient, normalised by the batch.
CONTROLS: dict[str, dict[str, Any]] = {
    "clip": {"clip_norm": CLIP_NORM},
    "fisher-normalized:1000": {"curvature": "fisher", "damping": "normalized:1000"},
    "sample-normalized": {"curvature": "sample", "damping": "normalized"},
    "fisher-normalized": {"curvature": "fisher", "damping": "normalized"},
    "hessian-normalized": {"curvature": "hessian", "damping": "normalized"},
    "sample-running": {"curvature": "sample", "damping": "running"},
    "fisher-running": {"curvature": "fisher", "damping": "running"},
    "hessian-running": {"curvature": "hessian", "damping": "running"},
    "plain-library": {},
    "fisher-normalized:1000-library": {"curvature": "fisher", "damping": "normalized:1000"},
    "fisher-library": {"curvature": "fisher", "damping": "running"},
}
# What the last three change, to show what a user of the library gets. All others take the curvature of a set's items as
# they are stored, and for smoothing the paper's baseline.
LIBRARY: dict[str, dict[str, Any]] = {
    "sorting": {"exchangeable": True},
    "smoothed-loss": {"leave_one_out": True},
    "smoothed-algorithm": {"leave_one_out": True},
}
METHODS = {
    "baseline": "plain",
    "hessian": "Hessian",
    "fisher": "Fisher",
    "clip": "clipped",
    "energy": "energy",
    "fisher-normalized:1000": "normalised only",
    "sample-normalized": "sample, per batch",
    "fisher-normalized": "Fisher, per batch",
    "hessian-normalized": "Hessian, per batch",
    "sample-running": "sample, running",
    "fisher-running": "Fisher, running",
    "hessian-running": "Hessian, running",
    "plain-library": "plain, leave-one-out",
    "fisher-normalized:1000-library": "normalised only, leave-one-out",
    "fisher-library": "the default",
}
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


def column_title(column: str) -> str:
    """A column's name in words.

    >>> column_title("softsort-n5"), column_title("smoothed-loss-10"), column_title("bellman-ford-for-l1")
    ('SoftSort n=5', 'Smoothed loss, 10 samples', 'Bellman-Ford for, L₁')
    """
    # An algorithm that has no title yet goes by its own name.
    algorithm = next((name for name in TITLES if column.startswith(name)), column.partition("-")[0])
    title, detail = TITLES.get(algorithm, algorithm), column.removeprefix(algorithm + "-")
    if detail.startswith("n"):
        return f"{title} n={detail[1:]}"
    return f"{title}, {detail} samples" if detail.isdigit() else f"{title} {LOOPS[detail]}"


def main_metric(cell: Cell) -> str:
    """The figure that a cell's table is about."""
    return {"sorting": "exact_match", "paths": "perfect_match"}.get(cell.task, "loss")


@cache
def every_cell() -> dict[str, Cell]:
    """The cells that a report shows, by key: those of the tables, then their controls.

    >>> cell = every_cell()["softsort-n5-hessian-normalized-stable"]
    >>> cell.make(device="cpu").damping, cell.make(device="cpu").spectrum
    ('normalized', 'absolute')
    """
    found = {cell.key: cell for table in ("ablation", *TABLES, OURS, "cvxpy") for cell in cells(table)}
    found |= {f"{cell.key}-timed": cell for cell in cells("runtimes")}
    found |= {f"{cell.key}-exact": cell.changed({"algorithm": "relu-exact"}) for cell in cells("cvxpy")}
    for cell in [cell for table in (*TABLES, OURS) for cell in cells(table)]:
        if cell.variant != "baseline" or cell.control or cell.numerics == "reference":
            continue
        for method, settings in CONTROLS.items():
            if method.startswith("hessian") and cell.algorithm == "smoothed-algorithm":
                continue  # it has no Hessian
            if method.endswith("-library"):
                if method != "fisher-library" and cell.algorithm not in LIBRARY:
                    continue  # where there is nothing to leave out
                settings = settings | LIBRARY.get(cell.task, {}) | LIBRARY.get(cell.algorithm, {})
            found[cell_key(cell.column, method, cell.numerics)] = cell.changed(settings)
    return {key: replace(cell, key=key) for key, cell in found.items()}


def cell_key(column: str, method: str, numerics: str | None = None) -> str:
    return f"{column}-{method}" + ("-stable" if numerics == "stable" else "")


@cache
def paper_cells() -> dict[str, Cell]:
    """The cells of tables 1, 2 and 3 that the paper has figures for, by key, in its order."""
    return {cell.key: cell for table in TABLES for cell in cells(table) if cell.paper}


def columns(*tables: str) -> list[str]:
    """The columns of tables in the paper's order.

    >>> len(columns("table1"))
    9
    """
    return list(dict.fromkeys(cell.column for table in tables for cell in cells(table)))


class Index:
    """All finished runs by the key of their cell."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self.records = records
        self.groups: dict[str, list[Group]] = defaultdict(list)
        protocols: dict[str, Protocol] = {}
        for found in group(every_cell().values(), records):
            self.groups[found.cell.key].append(found)
            protocols |= {record.identity: found.protocol for record in found.records}
        self.in_a_cell = len(protocols)
        self._common = Counter(protocols.values())

    def group(self, key: str, accepts: Callable[[Protocol], bool]) -> Group | None:
        """The runs of a cell under one accepted protocol.

        Where several are accepted, such as float32 and bf16, the most common one is taken, so that a table compares
        like with like.
        """
        found = [one for one in self.groups.get(key, []) if accepts(one.protocol)]
        return max(found, key=lambda one: (self._common[one.protocol], len(one.records)), default=None)


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

    @property
    def as_in_the_paper(self) -> bool:
        """Whether length and data are the paper's."""
        return (self.length, self.data) in ((FULL, "mnist"), (EPOCHS, "warcraft"))

    def runs(self, column: str, method: str, numerics: str = "reference") -> Group | None:
        """The runs of a cell, one per seed; the methods are those of `METHODS`, and "fisher-10" of the ablation."""
        return self.index.group(cell_key(column, method, numerics), self.accepts)

    def figure(
        self, column: str, method: str, numerics: str = "reference", metric: str | None = None, averaged: bool = False
    ) -> Summary | None:
        """A test figure in per cent over the seeds; by default the metric of the paper's table, as trained."""
        found = self.runs(column, method, numerics)
        return None if found is None else found.summary(metric or main_metric(found.cell), averaged=averaged)

    def done(self, table: str) -> tuple[int, int]:
        """How many of the paper's cells have runs, and how many cells there are."""
        wanted = [cell.key for cell in paper_cells().values() if cell.table == table]
        return sum(self.index.group(key, self.accepts) is not None for key in wanted), len(wanted)

    def repeats(self, table: str) -> list[tuple[Cell, Summary, bool]]:
        """Our figure of each of the paper's cells that has runs, and whether it is a repetition of the paper's."""
        found = []
        for cell in paper_cells().values():
            papers = PaperFigures().figure(cell.column, cell.variant)
            ours = self.figure(cell.column, cell.variant) if cell.table == table else None
            if papers is not None and ours is not None:
                found.append((cell, ours, is_repeat(papers, ours)))
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


def papers_best(column: str) -> Summary | None:
    """The paper's best figure of a column.

    >>> papers_best("softsort-n5").mean
    84.03
    """
    found = [figure for name in VARIANTS if (figure := PaperFigures().figure(column, name)) is not None]
    return max(found, key=lambda figure: figure.mean, default=None)


Setting = Runs | PaperFigures  # where the figures of a claim come from
Figure = Summary | None


def measured(figure: Figure) -> bool:
    """Whether there are enough seeds to decide something."""
    return figure is not None and figure.count >= LEAST_SEEDS


@dataclass(frozen=True)
class Evidence:
    """The finished runs in the four settings of a report, the unfinished ones, and what was left out.

    `notes` names `left_out` runs and lines of packed files, and the unfinished runs.
    """

    results: Path
    index: Index
    unfinished: Sequence[UnfinishedRun]
    notes: Sequence[str]
    left_out: int
    full: Runs
    short: Runs
    warcraft: Runs
    terrain: Runs

    def shown(self, *settings: Runs) -> list[Group]:
        """The runs that tables and claims take their figures from, in these settings or in all four."""
        settings = settings or (self.full, self.short, self.warcraft, self.terrain)
        found = [self.index.group(key, runs.accepts) for key in self.index.groups for runs in settings]
        return [one for one in found if one is not None]

    def not_shown(self) -> dict[Protocol, int]:
        """How many runs of the cells that `reproduce list` lists are in no table, by protocol, most first."""
        shown = {record.identity for one in self.shown() for record in one.records}
        listed = {cell.key for table in (*TABLES, "ablation") for cell in cells(table)}
        # A run can be in two cells, one of a table and one of the ablation.
        hidden = {
            record.identity: one.protocol
            for key in listed
            for one in self.index.groups.get(key, ())
            for record in one.records
            if record.identity not in shown
        }
        counts = Counter(hidden.values())
        return dict(sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))))


def gather(results: Path) -> Evidence:
    """Read everything under a folder of results, each run once."""
    store = Store(results)
    found, notes = store.records(), list(store.notes)
    unfinished = store.unfinished()
    notes += store.notes
    notes += [f"{run.path}: unfinished, last evaluated at step {run.step}." for run in unfinished]
    sound = {record.identity: _is_sound(record) for record in found}
    notes += [
        f"{one.path}: left out, a setting or a test figure is not valid." for one in found if not sound[one.identity]
    ]
    index = Index([record for record in found if sound[record.identity]])
    return Evidence(
        results,
        index,
        unfinished,
        [note.replace(f"{results}{os.sep}", "") for note in notes],
        len(notes) - len(unfinished),
        full=Runs(index, f"{FULL:,} steps", FULL, "mnist"),
        short=Runs(index, f"{SHORT:,} steps", SHORT, "mnist"),
        warcraft=Runs(index, "Warcraft", EPOCHS, "warcraft"),
        terrain=Runs(index, "look-alike maps", EPOCHS, "terrain"),
    )


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
