"""The finished runs as the tables and claims ask for them: by column, method, numerics, length and data.

Which run belongs to which cell is the business of `bench.presets`; here its groups are only looked up. What
no table has asked for stays known as such.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ..cells import Cell, cells
from ..groups import Group, Protocol, group
from ..paper import paper_grid
from ..statistics import Summary
from ..store import RunRecord

FULL, SHORT = 100_000, 10_000
EPOCHS = 50
SEEDS = 10  # of every figure in the paper's tables
TABLES = ("table1", "table2", "table3")
# What can take the place of a cell's λ, and is then the end of a method's name: "auto", and what the paper chose from.
AUTO = "auto"
GRID = paper_grid()
_DAMPED = "damped"  # the table of those cells
# How a run's test figure is chosen, for every page that shows some. `reported` of the tasks does it.
SELECTION = (
    "Test figures are those at the best validation for sorting, and those after the last epoch for shortest paths: the "
    "paper does not say which it takes, and the work that it builds on does so."
)
# What runs of one cell may differ in from the paper's, as long as they do not differ among themselves.
_OPEN = ("precision", "eval_every")
# The name of a cell's control by the method that it is shown as.
_CONTROLS = {"clipped": "clip", "energy": "energy"}


@dataclass
class Measured:
    """All runs of a report. `used` fills with the identities of those that it has shown."""

    records: Sequence[RunRecord]
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._groups: dict[tuple[str, str], list[Group]] = defaultdict(list)
        for table in (*TABLES, "ablation", "runtimes", "cvxpy"):
            for found in group(cells(table), self.records):
                self._groups[table, found.cell.key].append(found)
        # Of the runs that belong to cells, each once: others say nothing about which protocol a table is under.
        counted = {record.identity: one for groups in self._groups.values() for one in groups for record in one.records}
        self._common = Counter(one.protocol for one in counted.values())
        dampings: list[str | float] = [AUTO, *GRID]
        others = [damped(cell, damping) for cell in curved_cells() for damping in dampings]
        for found in group(others, self.records):
            self._groups[_DAMPED, found.cell.key].append(found)

    def group(self, table: str, key: str, accepts: Callable[[Protocol], bool]) -> Group | None:
        """The runs of a cell under one protocol that is accepted.

        Where there are several, as float32 and bf16, it is the one that most runs have, so that the cells of a
        table are compared under the same.
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

    def lengths(self) -> list[int]:
        """The numbers of steps that runs of table 1 have beside those of the two protocols, longest first."""
        found = {
            one.protocol.length for (table, _), groups in self._groups.items() if table == "table1" for one in groups
        }
        return sorted(found - {FULL, SHORT}, reverse=True)


@dataclass(frozen=True)
class Runs:
    """A setting of claims and tables: the runs of one length on one kind of data."""

    measured: Measured
    label: str
    length: int
    data: str

    def accepts(self, protocol: Protocol) -> bool:
        """Whether runs were carried out as the paper's, but for their length, their data and what is left open."""
        table = "table1" if self.data == "mnist" else "table2"
        return _fixed(protocol) == _standard(table, self.length, self.data)

    def runs(self, column: str, method: str, numerics: str = "reference") -> Group | None:
        """The runs of a cell, one a seed. A method can be "hessian-auto" or "fisher-10" too."""
        key = f"{column}-{_CONTROLS.get(method, method)}" + ("-stable" if numerics == "stable" else "")
        found = (self.measured.group(table, key, self.accepts) for table in (*TABLES, _DAMPED))
        return next((one for one in found if one is not None), None)

    def figure(
        self,
        column: str,
        method: str,
        numerics: str = "reference",
        metric: str | None = None,
        *,
        averaged: bool = False,
    ) -> Summary | None:
        found = self.runs(column, method, numerics)
        return None if found is None else found.summary(metric or main_metric(found.cell), averaged=averaged)

    def seeds(self, table: str, key: str) -> int:
        """How many seeds of a cell have been run."""
        found = self.measured.group(table, key, self.accepts)
        return 0 if found is None else len(found.records)

    def protocols(self, table: str) -> list[str]:
        """How the runs of a table's cells were carried out, in words: normally one line."""
        found = (self.measured.group(table, cell.key, self.accepts) for cell in cells(table))
        return sorted({str(one.protocol) for one in found if one is not None})

    def ablation(self, column: str, method: str) -> dict[float, Summary]:
        return {
            damping: summary
            for damping, found in self.ablation_runs(column, method).items()
            if (summary := found.summary("element_wise")) is not None
        }

    def ablation_runs(self, column: str, method: str) -> dict[float, Group]:
        """The runs of the ablation by their damping."""
        found = {}
        for cell in cells("ablation", only=f"{column}-{method}-*") if method != "baseline" else ():
            if (runs := self.measured.group("ablation", cell.key, self.accepts)) is not None:
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
    """The paper's own tables as a setting of claims: what a claim's rule makes of the paper's figures."""

    label: str = "the paper"

    def figure(
        self,
        column: str,
        method: str,
        numerics: str = "reference",
        metric: str | None = None,
        *,
        averaged: bool = False,
    ) -> Summary | None:
        """As the paper has it: with its own numerics, and never of averaged weights."""
        cell = paper_cells().get(f"{column}-{method}")
        return None if cell is None or numerics != "reference" or averaged else paper_figure(cell, metric)

    def ablation(self, column: str, method: str) -> dict[float, Summary]:
        return {}  # the paper has a figure, and no numbers


def paper_cells() -> dict[str, Cell]:
    """The cells of tables 1, 2 and 3 that the paper has figures for, by key, in its order."""
    return {cell.key: cell for table in TABLES for cell in cells(table) if cell.paper}


def paper_figure(cell: Cell, metric: str | None = None) -> Summary | None:
    """The paper's mean and deviation for a cell.

    >>> paper_figure(paper_cells()["softsort-n5-fisher"])
    Summary(mean=84.03, std=0.59, count=10)
    """
    found = (cell.paper or {}).get(metric or main_metric(cell))
    return None if found is None else Summary(*found, SEEDS)


def curved_cells() -> tuple[Cell, ...]:
    """The cells of the tables that have a λ, of sorting those in log space: what `damping="auto"` is compared with."""
    found = (cell for table in TABLES for cell in cells(table))
    return tuple(cell for cell in found if cell.variant != "baseline" and cell.numerics != "reference")


def damped(cell: Cell, damping: str | float) -> Cell:
    """The same cell with another damping in the place of its λ, "auto" or one of the grid.

    >>> cell = damped(cells("table1", only="softsort-n5-hessian-stable")[0], "auto")
    >>> cell.key, cell.make(device="cpu").damping, cell.make(device="cpu").spectrum
    ('softsort-n5-hessian-auto-stable', 'auto', 'absolute')
    """
    name = damping if isinstance(damping, str) else f"{damping:g}"
    suffix = "-stable" if cell.numerics == "stable" else ""
    return replace(cell.changed({"damping": damping}), key=f"{cell.column}-{cell.variant}-{name}{suffix}")


def main_metric(cell: Cell) -> str:
    """The figure that a cell's table is about."""
    return {"sorting": "exact_match", "paths": "perfect_match"}.get(cell.task, "loss")
