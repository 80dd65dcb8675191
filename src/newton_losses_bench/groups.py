"""Which runs of a store belong to which cell, and the comparison of both with the paper, as text.

Runs of different length or data are never mixed: a group holds the seeds of one cell under one protocol.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .cells import MINUTES, TIMED, Cell
from .config import PROTOCOL, configuration_class, experiment
from .describe import describe_value
from .settings import paper_protocol
from .statistics import Summary, mark, summarise
from .store import RunRecord

TIME = "milliseconds_per_step"
# Always named, or, like the drops of the learning rate, a consequence of what is.
_NAMED = ("steps", "epochs", "drops", "data", "precision")


@dataclass(frozen=True)
class Protocol:
    """How long and on what data. Two runs of a cell are seeds of one experiment only if this is equal.

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
        return cls(found["task"], tuple(settings))

    def __getitem__(self, name: str) -> Any:
        return dict(self.settings)[name]

    @property
    def length(self) -> int:
        """Steps, or epochs for paths."""
        settings = dict(self.settings)
        return int(settings["epochs"] if "epochs" in settings else settings["steps"])

    @property
    def is_full(self) -> bool:
        """Whether it trains as long as the paper, with batches of the same size."""
        paper = paper_protocol(self.task)
        length = paper.get("steps", paper.get("epochs"))
        return self.length == length and self["batch_size"] == paper["batch_size"]

    @property
    def has_papers_data(self) -> bool:
        """Whether the data is the paper's; generated terrain only looks like it."""
        return bool(self["data"] == paper_protocol(self.task)["data"])

    def __str__(self) -> str:
        unit = ("epoch" if self.task == "paths" else "step") + ("" if self.length == 1 else "s")
        start = f"{self.length:,} {unit}, {self['data']}, {self['precision']}"
        return ", ".join([start, *self._changes()])

    def _changes(self) -> list[str]:
        """Every other setting that is neither at its default nor that of all timed runs."""
        usual = {one.name: one.default for one in fields(configuration_class(self.task))}
        timed = TIMED.get(self.task, {})
        if timed.items() <= dict(self.settings).items():
            usual |= timed
        others = ((name, value) for name, value in self.settings if name not in _NAMED)
        return [describe_value(name, value) for name, value in others if value != usual[name]]


@dataclass(frozen=True)
class Group:
    """The runs of one cell under one protocol, one per seed, in the order of the seeds."""

    cell: Cell
    protocol: Protocol
    records: tuple[RunRecord, ...] = field(repr=False)

    def by_seed(self, metric: str, *, averaged: bool = False) -> dict[int, float]:
        """A test figure, or `milliseconds_per_step`, of each seed that has it.

        With `averaged`, the test figure of the averaged weights, where a run evaluated them.
        """
        found = {}
        for record in self.records:
            figures = {TIME: record.milliseconds_per_step, **(record.averaged if averaged else record.test)}
            if metric in figures:
                found[record.seed] = figures[metric]
        return found

    def summary(self, metric: str, *, averaged: bool = False) -> Summary | None:
        """Mean and deviation over the seeds, or `None` where no run has the figure."""
        values = self.by_seed(metric, averaged=averaged).values()
        return summarise(values) if values else None

    def ahead_of(self, other: "Group", metric: str, *, averaged: bool = False) -> dict[int, float]:
        """By how much a figure exceeds that of another group, for each seed that both have."""
        these, those = (group.by_seed(metric, averaged=averaged) for group in (self, other))
        return {seed: these[seed] - those[seed] for seed in these if seed in those}


def group(cells: Iterable[Cell], records: Iterable[RunRecord]) -> list[Group]:
    """The runs by cell and protocol: cells in their order, the longest protocol of each first.

    A run belongs to a cell if all its settings are the cell's; seed and protocol do not matter, unless the cell
    prescribes a protocol, as for timed runs.
    """
    runs: dict[tuple[Any, ...], list[tuple[Protocol, RunRecord]]] = {}
    for record in records:
        pair = Protocol.of(record.configuration), record
        runs.setdefault(setting_of(record.configuration), []).append(pair)
    found = []
    for cell in cells:
        by_protocol: dict[Protocol, list[RunRecord]] = {}
        for protocol, record in runs.get(setting_of(cell.make(device="cpu").to_dict()), []):
            if all(protocol[name] == value for name, value in cell.protocol.items()):
                by_protocol.setdefault(protocol, []).append(record)
        for protocol in sorted(by_protocol, key=lambda one: (-one.length, str(one))):
            seeds = sorted(by_protocol[protocol], key=lambda record: record.seed)
            found.append(Group(cell, protocol, tuple(seeds)))
    return found


def setting_of(configuration: dict[str, Any]) -> tuple[Any, ...]:
    """An experiment without its seed and its protocol, to compare by."""
    found = experiment(configuration)
    return tuple((name, found[name]) for name in sorted(found) if name not in (*PROTOCOL, "seed"))


# The comparison with the paper, as text

MARKS = {"black": "**", "grey": "*", "": ""}
LEGEND = "** significantly better than the baseline (one-sided t-test, .05); * a better mean"


def comparison(groups: Iterable[Group], cells: Sequence[Cell]) -> str:
    """Our figures beside the paper's, one table per protocol, with the paper's marks on both.

    Cells without a run under a protocol are left out there; the last line counts them.
    """
    by_protocol: dict[Protocol, list[Group]] = {}
    for one in groups:
        by_protocol.setdefault(one.protocol, []).append(one)
    if not by_protocol:
        return "No run of these cells is finished yet."
    parts = []
    for protocol, members in sorted(by_protocol.items(), key=lambda item: (-item[0].length, str(item[0]))):
        lines = [f"{protocol}{_reservations(protocol)}", *_rows(members), *_pairs(members)]
        missing = len({cell.key for cell in cells} - {one.cell.key for one in members})
        if missing:
            lines.append(f"{missing} of {len(cells)} cells have no run here yet.")
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, LEGEND])


def _reservations(protocol: Protocol) -> str:
    """Why the figures cannot be compared with the paper's."""
    notes = [] if protocol.is_full else ["not the paper's length"]
    if not protocol.has_papers_data:
        notes.append("a look-alike of the paper's maps" if protocol["data"] == "terrain" else "not the paper's data")
    return f" ({', '.join(notes)})" if notes else ""


def _rows(groups: list[Group]) -> list[str]:
    metrics = _metrics(groups)
    header = ["cell", "seeds"]
    for metric in metrics:
        name = metric.replace("_", " ")
        header += [name, "paper", "difference"] if metric != TIME else [name, "ratio", "paper's ratio"]
    rows = [header]
    for one in groups:
        rows.append([one.cell.key, str(len(one.records)), *(text for m in metrics for text in _figure(one, groups, m))])
    widths = [max(len(row[k]) for row in rows) for k in range(len(header))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _pairs(groups: list[Group]) -> list[str]:
    """Where the paper compares seed by seed: on how many the loss is below the baseline's."""
    if groups[0].cell.paper_seeds is None:
        return []
    losses = {one.cell.variant: one.by_seed("loss") for one in groups}
    baseline, fisher = losses.get("baseline", {}), losses.get("fisher", {})
    both = sorted(baseline.keys() & fisher.keys())
    below = sum(fisher[seed] < baseline[seed] for seed in both)
    return [f"Fisher is below the baseline on {below} of {len(both)} seeds; in the paper on 5 of 5."] if both else []


def _metrics(groups: list[Group]) -> list[str]:
    if groups[0].cell.table == "runtimes":
        return [TIME]
    first = groups[0].records[0].test
    # Runs have figures that the paper lacks, such as the share of paths that are as cheap: not for this table.
    papers = {metric for one in groups for metric in one.cell.paper or {}}
    return [metric for metric in first if metric in papers] or list(first)


def _figure(one: Group, groups: list[Group], metric: str) -> tuple[str, str, str]:
    ours = one.summary(metric)
    if ours is None:
        return "", "", ""
    baseline = _baseline(one, groups)
    if metric == TIME:
        return _time(one, ours, baseline)
    reference = baseline.summary(metric) if baseline and baseline is not one else None
    own = f"{_digits(ours)}{MARKS[mark(reference, ours)] if reference and metric != 'loss' else ''}"
    paper = _paper(one, metric)
    if paper is None:
        return own, "", ""
    bold = (one.cell.paper_bold or {}).get(metric, "")
    return own, f"{_digits(paper)}{MARKS[bold]}", f"{ours.mean - paper.mean:+.2f}"


def _paper(one: Group, metric: str) -> Summary | None:
    if one.cell.paper_seeds and metric == "loss":
        return summarise(one.cell.paper_seeds.values())
    if not one.cell.paper or metric not in one.cell.paper:
        return None
    mean, std = one.cell.paper[metric]
    return Summary(mean, std, 10)


def _time(one: Group, ours: Summary, baseline: Group | None) -> tuple[str, str, str]:
    """Milliseconds per step, and their ratio to the baseline's: ours, and that of the paper's hours."""
    if baseline is None or baseline is one:
        return f"{ours.mean:.3f}", "", ""
    reference = baseline.summary(TIME)
    assert reference is not None
    paper = ""
    if one.cell.paper and baseline.cell.paper:
        paper = f"{one.cell.paper[MINUTES][0] / baseline.cell.paper[MINUTES][0]:.2f}"
    return f"{ours.mean:.3f}", f"{ours.mean / reference.mean:.2f}", paper


def _baseline(one: Group, groups: list[Group]) -> Group | None:
    """The plain baseline of a cell's column with the cell's numerics; that of the paper's for the controls."""
    for other in groups:
        cell = other.cell
        plain = cell.variant == "baseline" and cell.control is None
        if plain and (cell.column, cell.numerics) == (one.cell.column, one.cell.numerics):
            return other
    return None


def _digits(found: Summary) -> str:
    text = f"{found.mean:.2f}" if abs(found.mean) >= 1 else f"{found.mean:.3f}"
    if math.isnan(found.std):
        return text
    return f"{text} ± {found.std:.2f}" if abs(found.mean) >= 1 else f"{text} ± {found.std:.3f}"
