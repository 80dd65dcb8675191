"""Where the figures come from: the folders, machines and versions, and what is unfinished.

Everything here comes out of files that anybody may have written, so it is shown as text and never trusted.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from newton_losses import __version__

from ..store import RunRecord, UnfinishedRun
from ._blocks import Block, Cell, Code, Heading, Paragraph, Table
from ._found import brief, relative
from ._measured import SELECTION, Measured


def provenance(
    measured: Measured, unfinished: Sequence[UnfinishedRun], notes: Sequence[str], results: Path
) -> list[Block]:
    """The last section of a report."""
    blocks: list[Block] = [Heading(2, "Where the figures come from", "provenance")]
    if measured.records:
        blocks.append(_folders(measured.records, results))
    else:
        blocks.append(Paragraph("There is no finished run in this folder."))
    if unfinished:
        blocks.append(_unfinished(unfinished, results))
    blocks += [Paragraph(["Left out: ", brief(note)], "note") for note in notes]
    blocks.append(
        Paragraph(
            [
                f"{SELECTION} This page is made by ",
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
        by_folder[relative(record.path.parent, results)].append(record)
    rows = tuple(
        (
            Cell(brief(folder)),
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


def _unfinished(runs: Sequence[UnfinishedRun], results: Path) -> Table:
    rows = tuple(
        (
            Cell(brief(relative(run.path, results))),
            *(Cell(brief(run.configuration.get(name, "–"))) for name in ("algorithm", "curvature", "numerics", "seed")),
            Cell(str(run.step), float(run.step)),
            Cell(brief(run.configuration.get("steps", run.configuration.get("epochs", "–")))),
        )
        for run in runs
    )
    heads = ("run", "loss", "curvature", "numerics", "seed", "last evaluation", "steps or epochs wanted")
    return Table("unfinished", "Runs that were begun and have no result. They count nowhere above.", heads, rows)


def _several(values: Iterable[Any]) -> Cell:
    return Cell(brief(", ".join(sorted({str(value) for value in values if value is not None})) or "–"))
