"""Where the figures come from: the folders, machines and versions, what is unfinished, and what fits no table.

Everything here comes out of files that anybody may have written, so it is shown as text and never trusted.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ... import __version__
from ..results import RunRecord, UnfinishedRun
from ._blocks import Block, Cell, Code, Heading, Paragraph, Table
from ._measured import Measured

_LONGEST = 60  # letters of a value that a table shows


def provenance(
    measured: Measured, unfinished: Sequence[UnfinishedRun], notes: Sequence[str], results: Path
) -> list[Block]:
    """The last section of a report."""
    blocks: list[Block] = [Heading(2, "Where the figures come from", "provenance")]
    if measured.records:
        blocks.append(_folders(measured.records, results))
    else:
        blocks.append(Paragraph("There is no finished run in this folder."))
    if others := measured.others:
        blocks.append(_others(others, results))
    if unfinished:
        blocks.append(_unfinished(unfinished, results))
    blocks += [Paragraph(["Left out: ", _brief(note)], "note") for note in notes]
    blocks.append(
        Paragraph(
            [
                "Test figures are those at the best validation for sorting, and those after the last epoch for "
                "shortest paths. This page is made by ",
                Code("newton-losses report"),
                f" of version {__version__} from run folders alone; no number in it is typed by hand, except the "
                "paper’s.",
            ],
            "note",
        )
    )
    return blocks


def _folders(records: Sequence[RunRecord], results: Path) -> Table:
    by_folder: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        by_folder[_relative(record.path.parent, results)].append(record)
    rows = tuple(
        (
            Cell(_brief(folder)),
            Cell(str(len(found)), float(len(found))),
            _several(record.environment.get("gpu") or record.environment.get("cpu") for record in found),
            _several(record.configuration.get("precision") for record in found),
            _several(record.environment.get("torch") for record in found),
            _several(str(record.environment.get("commit") or "unknown")[:12] for record in found),
        )
        for folder, found in by_folder.items()
    )
    caption = "The folders of finished runs."
    return Table("folders", caption, ("folder", "runs", "device", "precision", "torch", "commit"), rows)


def _others(records: Sequence[RunRecord], results: Path) -> Table:
    rows = tuple(
        (
            Cell(_brief(_relative(record.path, results))),
            *(
                Cell(_brief(record.configuration.get(name, "–")))
                for name in ("task", "algorithm", "data", "curvature", "damping", "numerics", "seed")
            ),
            Cell(str(record.steps), float(record.steps)),
            Cell(_brief(", ".join(f"{name} {value:.2f}" for name, value in record.test.items()))),
        )
        for record in records
    )
    heads = ("task", "loss", "data", "curvature", "λ", "numerics", "seed", "steps", "test")
    return Table("others", "Finished runs that belong to no cell above.", ("run", *heads), rows)


def _unfinished(runs: Sequence[UnfinishedRun], results: Path) -> Table:
    rows = tuple(
        (
            Cell(_brief(_relative(run.path, results))),
            *(
                Cell(_brief(run.configuration.get(name, "–")))
                for name in ("algorithm", "curvature", "numerics", "seed")
            ),
            Cell(str(run.step), float(run.step)),
            Cell(_brief(run.configuration.get("steps", run.configuration.get("epochs", "–")))),
        )
        for run in runs
    )
    heads = ("run", "loss", "curvature", "numerics", "seed", "last evaluation", "steps or epochs wanted")
    return Table("unfinished", "Runs that were begun and have no result. They count nowhere above.", heads, rows)


def _several(values: Iterable[Any]) -> Cell:
    return Cell(_brief(", ".join(sorted({str(value) for value in values if value is not None})) or "–"))


def _relative(path: Path, results: Path) -> str:
    return str(path.relative_to(results)) if path.is_relative_to(results) else path.name


def _brief(value: Any) -> str:
    """A value as text on one line, shortened where it is very long."""
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
