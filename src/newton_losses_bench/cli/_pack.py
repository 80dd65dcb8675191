"""`newton-losses pack`: finished runs of many folders as one file."""

from pathlib import Path
from typing import Annotated

import typer

from ..store import pack as pack_runs
from ._output import spoken_errors


def pack(
    folders: Annotated[list[Path], typer.Argument(help="Folders with run folders in them, at any depth.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write or to extend, as results/batch.jsonl.")],
) -> None:
    """Pack finished runs into one file, a line of JSON per run, which `report` and `reproduce` read like folders.

    A line holds the configuration, the environment, all evaluations and the result, with a checksum; weights and
    checkpoints are not packed. The folders stay: remove them once the file is where it should be. For example:

        newton-losses pack results/table1 --out results/table1.jsonl
    """
    with spoken_errors():
        found = pack_runs(folders, out)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    known = f", {len(found.known)} were there already" if found.known else ""
    typer.echo(f"{out}: {len(found.added)} runs added{known}.")
