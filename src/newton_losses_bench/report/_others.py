"""Runs beyond the tables: finished, and in none of them, as those with another λ than the paper's.

Everything here comes out of files that anybody may have written, so it is shown as text and never trusted.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from newton_losses.errors import NewtonLossesError

from ..config import configuration_class, identity
from ..describe import changes
from ..statistics import summarise_all
from ..store import RunRecord
from ._blocks import Block, Cell, Heading, Table
from ._found import brief, relative
from ._measured import Measured

_HEADS = ("runs", "task", "loss", "data", "curvature", "λ", "numerics", "other settings", "steps", "seeds", "test")


def other_runs(measured: Measured, results: Path) -> list[Block]:
    """A section on the runs that none of the sections before it has shown; nothing where there are none."""
    groups: dict[str, list[RunRecord]] = {}
    for record in measured.others:
        groups.setdefault(identity({**record.configuration, "seed": 0}), []).append(record)
    if not groups:
        return []
    caption = (
        "Finished runs with other settings than the cells of the tables have: another λ or spectrum, another length, "
        "other data. They count in no table, figure or claim. Mean ± standard deviation over the seeds; a λ of auto "
        "is taken from the curvature, and a setting that is not named has its default."
    )
    rows = [_row(records, results) for records in groups.values()]
    heads: tuple[str, ...] = _HEADS
    if any(record.averaged for records in groups.values() for record in records):
        heads = (*heads, "test, averaged weights")
        averages = ((record.averaged for record in records if record.averaged) for records in groups.values())
        rows = [(*row, _figures(found)) for row, found in zip(rows, averages, strict=True)]
    return [Heading(2, "Other runs", "other-runs"), Table("others", caption, heads, tuple(rows))]


def _row(records: Sequence[RunRecord], results: Path) -> tuple[Cell, ...]:
    """The seeds of one experiment."""
    first = records[0]
    settings = first.configuration
    place = first.path if len(records) == 1 else Path(os.path.commonpath([record.path for record in records]))
    return (
        Cell(brief(relative(place, results))),
        *(Cell(brief(settings.get(name, "–"))) for name in ("task", "algorithm", "data", "curvature")),
        Cell(brief(_damping(first))),
        Cell(brief(settings.get("numerics", "–"))),
        Cell(brief(_others(first))),
        Cell(str(first.steps), float(first.steps)),
        Cell(str(len(records)), float(len(records))),
        _figures(record.test for record in records),
    )


def _figures(several: Iterable[dict[str, float]]) -> Cell:
    found = summarise_all(several)
    mean = next((figure.mean for figure in found.values()), None)
    return Cell(brief(", ".join(f"{name} {figure}" for name, figure in found.items()) or "–"), mean)


def _damping(record: RunRecord) -> str:
    damping, relative_damping = (record.configuration.get(name) for name in ("damping", "relative_damping"))
    if relative_damping is not None:
        return f"{relative_damping} · scale"
    return "–" if damping is None else f"{damping:g}" if isinstance(damping, float) else str(damping)


def _others(record: RunRecord) -> str:
    """What else is not as usual, where the settings are those of a run that could be done."""
    size = [f"n {record.configuration['n']}"] if "n" in record.configuration else []
    try:
        config = configuration_class(record.task).from_dict(record.configuration)
        found = changes(config, without=("data",))
    except (NewtonLossesError, TypeError, ValueError, KeyError):
        found = []
    return ", ".join([*size, *found]) or "–"
