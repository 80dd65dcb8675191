"""`newton-losses demo`: the task, the race, the page."""

import importlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from newton_losses.errors import NewtonLossesError

from ..config import SortingConfig
from ..demo import (
    ARMS,
    DEMO,
    Row,
    demo_jobs,
    in_blocks,
    read_evaluations,
    sample_sets,
    summarise,
    verdict,
    write_page,
)
from ..describe import duration
from ..settings import check_at_least
from ..store import Store, check_writable
from ..sweep import Bars, Lines, LocalPool, run_sweep
from ._options import Seed, Seeds, chosen_seeds, option
from ._output import emit, errors_as_sentences, typed_command


def demo(
    out: Annotated[
        Path, option("Folder for runs and the page. Default: demo.", "--out", "-o", metavar="FOLDER")
    ] = Path("demo"),
    seed: Seed = None,
    seeds: Seeds = None,
    steps: Annotated[
        int, option(f"Training steps of each network. Default: {DEMO.steps}.", metavar="INT")
    ] = DEMO.steps,
    as_json: Annotated[bool, option("Print the figures as JSON instead of a table.", "--json")] = False,
) -> None:
    """Train small networks with and without Newton losses, side by side, and write a page about it.

    Three seeds for each loss take two minutes on two cores, and need no data and no network connection. Ctrl-C saves a
    checkpoint of every run; rerun the command to resume.
    """
    with errors_as_sentences(as_json):
        for package in ("matplotlib", "jinja2"):  # better missed now than after two minutes of training
            importlib.import_module(package)
        check_at_least("steps", steps, 1)
        config = replace(DEMO, steps=steps, eval_every=max(1, steps // 20))
        store = Store(out / "runs")
        check_writable(store.path)
        jobs = demo_jobs(out, config, chosen_seeds(seed, seeds, 3))
        slots = min(os.cpu_count() or 1, len(jobs))
        if not as_json:
            _show_task(config, len(jobs), slots)
        start = time.monotonic()
        result = run_sweep(jobs.values(), store, _listener(as_json), LocalPool(slots, store.path / ".logs"))
        if result.failures:
            raise NewtonLossesError(f"{len(result.failures)} runs failed. The first: {result.failures[0].message}")
        if result.exit_code:
            typer.echo(f"stopped; everything is saved. The same command resumes:\n  {typed_command()}", err=True)
            raise typer.Exit(result.exit_code)
        evaluations = read_evaluations(jobs)
        page = write_page(out, config, jobs, evaluations)
        _report(summarise(evaluations), page, time.monotonic() - start, as_json)


def _show_task(config: SortingConfig, runs: int, slots: int) -> None:
    """One set of numbers, drawn in the terminal, before anything is trained."""
    images, values = sample_sets(config, 1)
    order = values[0].argsort()
    typer.echo(f"The task: put pictures of {config.n} numbers in order. Only the right order is known, no value.\n")
    typer.echo(in_blocks(images[0]))
    typer.echo(f"\nright: {' < '.join(str(int(value)) for value in values[0][order])}\n")
    typer.echo(f"The race: {len(ARMS)} losses train the same network, {runs} runs, {slots} at a time.")


def _listener(as_json: bool) -> Lines:
    if as_json:
        return Lines(open(os.devnull, "w", encoding="utf-8"))
    return Bars() if sys.stdout.isatty() else Lines()


def _report(rows: list[Row], page: Path, seconds: float, as_json: bool) -> None:
    if as_json:
        figures = {row.arm.name: {"exact_match": row.exact, "element_wise": row.element_wise} for row in rows}
        emit({"event": "finished", "test": figures, "seconds": round(seconds, 1), "page": str(page)})
        return
    from rich.console import Console
    from rich.table import Table

    several = len(rows[0].exact) > 1
    table = Table(title="Test accuracy" + (", mean ± standard deviation over the seeds" if several else ", one seed"))
    for name in ("loss", "sets in order", "numbers in place"):
        table.add_column(name, justify="left" if name == "loss" else "right")
    for row in rows:
        table.add_row(row.arm.title, row.figure, f"{fmean(row.element_wise):.1f} %")
    console = Console()
    console.print(table)
    console.print(verdict(rows), highlight=False)
    console.print(
        f"\nFinished in {duration(seconds)}. Open {page} for pictures and code.", markup=False, highlight=False
    )
