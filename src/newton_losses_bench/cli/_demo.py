"""`newton-losses demo`: train, watch, look."""

import importlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..demo import ARMS, DemoConfig, summarise, train_arms, write_page
from ..demo._runs import Watch, evaluations_of
from ..demo._summary import Row, verdict
from ..settings import check_at_least
from ..store import write_error
from ._output import spoken_errors

Evaluations = dict[str, list[list[dict[str, Any]]]]


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the runs, the pictures and the page.")] = Path(
        "demo"
    ),
    seeds: Annotated[int, typer.Option(help="Networks for each loss, each with a seed of its own.")] = 3,
    steps: Annotated[int, typer.Option(help="Training steps of each network.")] = DemoConfig.steps,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")] = False,
) -> None:
    """Train small networks with and without Newton losses, side by side, and write a page about it.

    Takes about two minutes on two cores and needs no data and no network. Ctrl-C saves; the same command goes on.
    """
    with spoken_errors(as_json):
        importlib.import_module("matplotlib")  # better missed now than after two minutes of training
        check_at_least("seeds", seeds, 1)
        check_at_least("steps", steps, 1)
        config = DemoConfig(steps=steps, eval_every=max(1, steps // 20))
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(out, error) from error
        start = time.monotonic()
        with _watching(steps * seeds, quiet=as_json) as watch:
            finished = train_arms(out, config, seeds, watch)
        if not finished:
            typer.echo("stopped; everything is saved. The same command goes on from there.", err=True)
            raise typer.Exit(130)
        evaluations = evaluations_of(out, seeds)
        page = write_page(out, config, evaluations, time.monotonic() - start)
        _report(summarise(evaluations), page, time.monotonic() - start, as_json)


@contextmanager
def _watching(total: int, quiet: bool) -> Iterator[Watch]:
    """A bar a loss where a person watches, else a line whenever one more run has ended."""
    if quiet or not sys.stdout.isatty():
        yield _Lines(quiet)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"), TimeElapsedColumn())
    with Progress(*columns) as bars:
        tasks = {arm.name: bars.add_task(arm.title, total=total, figures="") for arm in ARMS}

        def watch(evaluations: Evaluations) -> None:
            for name, runs in evaluations.items():
                done = sum(records[-1]["step"] for records in runs if records)
                latest = [f"{records[-1]['test']['exact_match']:.0f} %" for records in runs if records]
                bars.update(tasks[name], completed=done, figures="  ".join(latest))

        yield watch


class _Lines:
    """Says which evaluations are new, at most one line a loss and look."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._seen: dict[str, int] = {}

    def __call__(self, evaluations: Evaluations) -> None:
        for arm in ARMS:
            runs = [records for records in evaluations[arm.name] if records]
            done = sum(records[-1]["step"] for records in runs)
            # A line for every thousand steps or so, and not one for every look.
            if runs and done // 1000 > self._seen.get(arm.name, -1) // 1000:
                self._seen[arm.name] = done
                latest = "  ".join(f"{records[-1]['test']['exact_match']:.1f} %" for records in runs)
                if not self._quiet:
                    typer.echo(f"{arm.title}: {done} steps, sets in the right order {latest}")


def _report(rows: list[Row], page: Path, seconds: float, as_json: bool) -> None:
    if as_json:
        figures = {row.arm.name: {"exact_match": row.exact, "element_wise": row.element_wise} for row in rows}
        typer.echo(json.dumps({"event": "finished", "test": figures, "seconds": round(seconds, 1), "page": str(page)}))
        return
    table = Table(title=f"Test accuracy over {len(rows[0].exact)} seeds")
    for name in ("loss", "sets in the right order", "numbers in place"):
        table.add_column(name, justify="left" if name == "loss" else "right")
    for row in rows:
        table.add_row(row.arm.title, f"{row.mean:.1f} ± {row.std:.1f} %", f"{row.mean_element_wise:.1f} %")
    console = Console()
    console.print(table)
    console.print(verdict(rows), highlight=False)
    console.print(f"in {seconds:.0f} s; look at {page}", highlight=False)
