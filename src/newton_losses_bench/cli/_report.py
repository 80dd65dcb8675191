"""`newton-losses report`: a page about what was measured."""

import contextlib
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ..report import write_evidence, write_report
from ._output import spoken_errors


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A report lives for seconds, and looking for garbage among all of torch's objects takes a tenth of them."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _tell(text: str) -> None:
    typer.echo(f"{text} …", err=True)


def report(
    results: Annotated[Path, typer.Option("--results", "-r", help="Folder that holds the runs, at any depth.")] = Path(
        "results"
    ),
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page.")] = Path("report"),
    evidence: Annotated[
        Path | None, typer.Option(help="Write the documentation's page of evidence to this file instead.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON instead of text.")] = False,
) -> None:
    """Does it hold up? Compare what was measured with what the paper reports, on one HTML page and as Markdown.

    The page needs no network and no other file. Missing runs are marked "not run".
    """
    tell = (lambda _: None) if as_json else _tell
    with spoken_errors(as_json), _without_garbage_collection():
        paths = write_report(results, out, tell) if evidence is None else write_evidence(results, evidence, tell)
    if as_json:
        typer.echo(json.dumps({"event": "finished", "page": str(paths[0]), "files": [str(path) for path in paths]}))
    elif evidence is not None:
        typer.echo(f"Wrote {paths[0]} and {len(paths) - 1} pictures.")
    else:
        typer.echo(f"Open {paths[0]} in a browser; {paths[1]} has the same as Markdown.")
