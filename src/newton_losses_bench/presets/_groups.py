"""Which runs of a store belong to which cell, runs of different length or data kept apart."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..config import PROTOCOL, configuration_class, experiment
from ..describe import describe_value
from ..paper import paper_protocol
from ..results import RunRecord, Summary, summarise
from ._cells import TIMED, Cell

TIME = "milliseconds_per_step"
# Told by itself, or, as the drops of the learning rate, a consequence of what is told.
_TOLD = ("steps", "epochs", "drops", "data", "precision")


@dataclass(frozen=True)
class Protocol:
    """How long and on what: two runs of a cell are seeds of one experiment only if this is equal.

    >>> from newton_losses_bench.config import SortingConfig
    >>> str(Protocol.of(SortingConfig(algorithm="softsort", steps=10_000, device="cpu").resolved().to_dict()))
    '10,000 steps, mnist, float32'
    """

    task: str
    settings: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, configuration: dict[str, Any]) -> "Protocol":
        found = experiment(configuration)
        settings = ((name, found[name]) for name in PROTOCOL if name in found)
        return cls(found["task"], tuple((name, _hashable(value)) for name, value in settings))

    def __getitem__(self, name: str) -> Any:
        return dict(self.settings)[name]

    @property
    def length(self) -> int:
        """Steps, or epochs for paths."""
        settings = dict(self.settings)
        return int(settings["epochs"] if "epochs" in settings else settings["steps"])

    @property
    def is_full(self) -> bool:
        """Whether it trains as long as the paper does, on batches as large."""
        paper = paper_protocol(self.task)
        length = paper.get("steps", paper.get("epochs"))
        return self.length == length and self["batch_size"] == paper["batch_size"]

    @property
    def has_papers_data(self) -> bool:
        """Whether it is the data of the paper; generated terrain only looks like it."""
        return bool(self["data"] == paper_protocol(self.task)["data"])

    def __str__(self) -> str:
        unit = ("epoch" if self.task == "paths" else "step") + ("" if self.length == 1 else "s")
        start = f"{self.length:,} {unit}, {self['data']}, {self['precision']}"
        return ", ".join([start, *self._changes()])

    def _changes(self) -> list[str]:
        """What else is not as it is by itself, or as it is in every timed run."""
        usual = {one.name: one.default for one in fields(configuration_class(self.task))}
        timed = TIMED.get(self.task, {})
        if timed.items() <= dict(self.settings).items():
            usual |= timed
        others = ((name, value) for name, value in self.settings if name not in _TOLD)
        return [describe_value(name, value) for name, value in others if value != usual[name]]


@dataclass(frozen=True)
class Group:
    """The runs of one cell under one protocol, one a seed, in the order of the seeds."""

    cell: Cell
    protocol: Protocol
    records: tuple[RunRecord, ...] = field(repr=False)

    def values(self, metric: str, *, averaged: bool = False) -> list[float]:
        """A figure of every seed that has it: one of the test figures, or `milliseconds_per_step`.

        With `averaged` it is the test figure of the averaged weights, where a run had them evaluated.
        """
        if metric == TIME:
            return [record.milliseconds_per_step for record in self.records]
        found = [record.averaged if averaged else record.test for record in self.records]
        return [figures[metric] for figures in found if metric in figures]

    def summary(self, metric: str, *, averaged: bool = False) -> Summary | None:
        """Mean and deviation over the seeds, or `None` where no run has the figure."""
        values = self.values(metric, averaged=averaged)
        return summarise(values) if values else None

    def ahead_of(self, other: "Group", metric: str) -> dict[int, float]:
        """By how much a figure is above that of another group, for each seed that both have it of."""
        these, those = ({one.seed: one.test for one in group.records if metric in one.test} for group in (self, other))
        return {seed: these[seed][metric] - those[seed][metric] for seed in these if seed in those}

    def with_average(self, metric: str) -> "Group":
        """The same with those seeds alone that have a figure both as trained and of the averaged weights."""
        both = (record for record in self.records if metric in record.test and metric in record.averaged)
        return replace(self, records=tuple(both))


def group(cells: Iterable[Cell], records: Iterable[RunRecord]) -> list[Group]:
    """The runs by cell and protocol: the cells in their order, each with its longest protocol first.

    A run belongs to a cell if all settings are the cell's, whatever its seed and protocol; to a cell with a
    protocol of its own, as a timed run has, only if it kept to that.
    """
    runs: dict[tuple[Any, ...], list[RunRecord]] = {}
    for record in records:
        runs.setdefault(setting_of(record.configuration), []).append(record)
    found = []
    for cell in cells:
        by_protocol: dict[Protocol, list[RunRecord]] = {}
        for record in runs.get(setting_of(cell.make(device="cpu").to_dict()), []):
            protocol = Protocol.of(record.configuration)
            if all(protocol[name] == value for name, value in cell.protocol.items()):
                by_protocol.setdefault(protocol, []).append(record)
        for protocol in sorted(by_protocol, key=lambda one: (-one.length, str(one))):
            seeds = sorted(by_protocol[protocol], key=lambda record: record.seed)
            found.append(Group(cell, protocol, tuple(seeds)))
    return found


def setting_of(configuration: dict[str, Any]) -> tuple[Any, ...]:
    """What is left of an experiment without its seed and its protocol, to compare by."""
    found = experiment(configuration)
    return tuple((name, _hashable(found[name])) for name in sorted(found) if name not in (*PROTOCOL, "seed"))


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
