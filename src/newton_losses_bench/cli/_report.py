"""`newton-losses report` and `pack`: a page about what was measured, and finished runs as one file."""

import gc
from pathlib import Path
from typing import Annotated

import typer

from ..describe import count
from ..report import write_evidence, write_report
from ..store import pack as pack_runs
from ._output import emit, errors_as_sentences


def _tell(text: str) -> None:
    typer.echo(f"{text} …", err=True)


def report(
    results: Annotated[
        Path, typer.Option("--results", "-r", help="Folder that holds the runs, at any depth.", metavar="FOLDER")
    ] = Path("results"),
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page.", metavar="FOLDER")] = Path("report"),
    evidence: Annotated[
        Path | None,
        typer.Option(
            help="Write the documentation's page of evidence, as Markdown, to this file instead.", metavar="FILE"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON instead of text.")] = False,
) -> None:
    """Does it hold up? Compare what was measured with what the paper reports, on one HTML page.

    The page needs no network and no other file. Missing runs are marked "not run". The tables hold runs of the paper's
    length, of 10,000 steps and on look-alike maps; `reproduce list` lists those of other lengths.
    """
    gc.freeze()  # looking for garbage among all of torch's objects takes a fifth of the time
    tell = (lambda _: None) if as_json else _tell
    notes: list[str] = []
    with errors_as_sentences(as_json):
        if evidence:
            paths = write_evidence(results, evidence, tell, notes.append)
        else:
            paths = [write_report(results, out, tell, notes.append)]
    if as_json:
        files = [str(path) for path in paths]
        emit({"event": "finished", "page": files[0], "files": files, "notes": notes})
        return
    for note in notes:
        typer.echo(note)
    if evidence:
        typer.echo(f"Wrote {' and '.join(map(str, paths))}.")
    else:
        typer.echo(f"Open {paths[0]} in a browser.")


def pack(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders with run folders in them, at any depth.", metavar="FOLDER")
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The file to write or to extend, as results/batch.jsonl.", metavar="FILE"),
    ],
) -> None:
    """Pack finished runs into one file, a line of JSON per run, which `report` and `reproduce` read like folders.

    A line holds the configuration, the environment, all evaluations and the result, with a checksum; weights and
    checkpoints are not packed. The folders stay: remove them once the file is where it should be. For example:

        newton-losses pack results/table1 --out results/table1.jsonl
    """
    with errors_as_sentences():
        found = pack_runs(folders, out)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    known = f", {len(found.known)} already there" if found.known else ""
    typer.echo(f"{out}: {count(len(found.added), 'run')} added{known}.")
