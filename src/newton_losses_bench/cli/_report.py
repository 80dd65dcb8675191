"""`newton-losses report`: a page about what was measured."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..report import write_report
from ._output import spoken_errors


def _tell(text: str) -> None:
    typer.echo(f"{text} …", err=True)


def report(
    results: Annotated[
        Path, typer.Option("--results", "-r", help="Folder that holds run folders, at any depth.")
    ] = Path("results"),
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the page.")] = Path("site"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON instead of text.")] = False,
) -> None:
    """Set what was measured beside what the paper reports: one HTML page, and the same as Markdown.

    The page needs no network and nothing else. Cells that were not run say so.
    """
    with spoken_errors(as_json):
        paths = write_report(results, out, *([] if as_json else [_tell]))
    if as_json:
        typer.echo(json.dumps({"event": "finished", "page": str(paths[0]), "files": [str(path) for path in paths]}))
        return
    typer.echo(f"{paths[0]} is the page, {paths[1]} the same as Markdown.")
