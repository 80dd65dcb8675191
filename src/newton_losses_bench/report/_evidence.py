"""All that a report is made from, read once: runs, timings, losses of convex layers, and what was left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..groups import Protocol
from ..store import RunRecord, Store, UnfinishedRun
from ._convex import Losses, convex_losses
from ._found import finite, percentage
from ._measured import EPOCHS, FULL, SHORT, Measured, Runs
from ._runtimes import Timings, timings


@dataclass(frozen=True)
class Evidence:
    """All that a report is made from."""

    measured: Measured
    unfinished: Sequence[UnfinishedRun]
    notes: Sequence[str]
    timings: Sequence[Timings]
    convex: list[Losses]

    @property
    def sorting(self) -> tuple[Runs, Runs]:
        """The paper's length and the shortened one."""
        full, short = f"{FULL:,} steps", f"{SHORT:,} steps"
        return Runs(self.measured, full, FULL, "mnist"), Runs(self.measured, short, SHORT, "mnist")

    @property
    def paths(self) -> tuple[Runs, Runs]:
        """The benchmark and its look-alike."""
        benchmark = Runs(self.measured, "Warcraft", EPOCHS, "warcraft")
        return benchmark, Runs(self.measured, "terrain, a look-alike", EPOCHS, "terrain")


def gather(results: Path) -> Evidence:
    """Read everything that is under a folder of results."""
    store = Store(results)
    found, notes = store.records(), list(store.notes)
    unfinished = store.unfinished()
    notes += store.notes
    records = [record for record in found if _makes_sense(record)]
    notes += [
        f"{record.path}: left out, a setting or a test figure of it makes no sense."
        for record in found
        if not _makes_sense(record)
    ]
    measured = Measured(records)
    (times, no_times), (losses, no_losses) = timings(results, measured), convex_losses(results, measured)
    return Evidence(measured, unfinished, [*notes, *no_times, *no_losses], times, losses)


def _makes_sense(record: RunRecord) -> bool:
    """Whether a run can be put in order: anybody can write a folder, and one bad one must not spoil a report."""
    try:
        found = record.seed >= 0 and Protocol.of(record.configuration).length > 0
    except (TypeError, ValueError, KeyError, OverflowError):
        return False
    settings = all(_is_setting(value) for value in record.configuration.values())
    figures = (*record.test.items(), *record.averaged.items())
    # Everything but the loss of the convex layers is an accuracy.
    numbers = (finite(value) if name == "loss" else percentage(value) for name, value in figures)
    return found and settings and finite(record.steps) is not None and None not in numbers


def _is_setting(value: object) -> bool:
    """A word, a number or nothing; or a list of such."""
    parts = value if isinstance(value, list) else [value]
    return all(part is None or isinstance(part, str | bool) or finite(part) is not None for part in parts)
