"""`newton-losses reproduce`: the paper's tables, cell by cell, and ours beside them."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from newton_losses.errors import ArgumentError

from ..cells import TABLES, Cell, cells
from ..config import RunConfig
from ..describe import describe_value
from ..groups import Protocol, comparison, group
from ..paper import paper_protocol
from ..settings import check_choice
from ..store import RunRecord, Store
from ._output import spoken_errors
from ._settings import parse_settings
from ._sweeping import (
    Compile,
    Computing,
    Device,
    Dry,
    Jobs,
    Keep,
    Ray,
    Results,
    Root,
    Seeds,
    list_all,
    option,
    run_all,
    seeds_from,
)

_WHAT, _COMPUTING = "What to run", "Computing"
_TARGETS = (*TABLES, "gradients", "ls")


def reproduce(
    target: Annotated[str, typer.Argument(help="table1, table2, table3, ablation, runtimes, cvxpy, gradients; or ls.")],
    of: Annotated[str | None, typer.Argument(help="For ls: one of the tables.")] = None,
    seeds: Seeds = None,
    steps: Annotated[int | None, option(_WHAT, "Another number of steps than the paper's, for sorting.")] = None,
    epochs: Annotated[int | None, option(_WHAT, "Another number of epochs than the paper's, for paths.")] = None,
    numerics: Annotated[str, option(_WHAT, "Of sorting: reference (as the paper), stable, or both.")] = "both",
    controls: Annotated[
        bool,
        option(
            _WHAT,
            "The two controls of sorting too: a clipped gradient norm, and a division by the energy of the gradients.",
            "--controls/--no-controls",
        ),
    ] = True,
    only: Annotated[
        str | None,
        option(
            _WHAT,
            "Cells with this in their name, as n5; or whose whole name fits a pattern with * and ?, as "
            "'soft*-n5-*'. Several with commas; `reproduce ls` has the names.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        option(
            _WHAT,
            "Other data than mnist for sorting, which can be digits, and terrain for paths, which can be warcraft.",
        ),
    ] = None,
    data_root: Root = None,
    settings: Annotated[
        list[str] | None, option(_WHAT, "Any other setting for all cells, as in batch_size=50.", "--set")
    ] = None,
    device: Device = "auto",
    precision: Annotated[str, option(_COMPUTING, "Of the convolutions: float32, tf32 or bf16.")] = "float32",
    compile: Compile = False,
    jobs: Jobs = 1,
    ray: Ray = None,
    results: Results = Path("results"),
    keep_weights: Keep = False,
    dry_run: Dry = False,
) -> None:
    """Run, or go on with, a table of the paper, and print ours beside it.

    Runs that the store has are not done again; Ctrl-C saves, and the same command goes on. All cells of the first seed
    come first. Shorter runs than the paper's are kept apart in every table. gradients draws pictures, and trains
    nothing; cvxpy needs the extra 'cvxpy'; ls lists the cells and what the store has of them. For example:

        newton-losses reproduce table1 --steps 10000 --seeds 3 --jobs 4 --precision bf16

        newton-losses reproduce table1 --only softsort-n5 --numerics reference --no-controls

        newton-losses reproduce table1 --only 'neuralsort*n5*,softsort*n5*'

        newton-losses reproduce ls table1
    """
    with spoken_errors():
        check_choice("target", target, _TARGETS, "reproduce")
        if of is not None and target != "ls":
            raise ArgumentError(f"reproduce {target} {of}: a second name goes with ls alone. --only chooses cells.")
        if target == "gradients":
            typer.echo(f"in {write_gradients(results / 'gradients')}")
            return
        check_choice("numerics", numerics, ("reference", "stable", "both"))
        selection: dict[str, Any] = {
            "only": only,
            "numerics": None if numerics == "both" else numerics,
            "controls": controls,
        }
        if target == "ls":
            _list(of, Store(results), selection)
            return
        found = cells(target, **selection)
        _check_length(target, steps, epochs, jobs)
        overrides = {"steps": steps, "epochs": epochs, "data": data, "data_root": data_root, "precision": precision}
        given = {name: value for name, value in overrides.items() if value is not None}
        wanted = {**given, "compile": compile, **parse_settings(settings or [])}
        count = 1 if target == "runtimes" else paper_protocol(found[0].task)["seeds"]
        runs = list(_runs(found, seeds_from(seeds, count), wanted))
        computing = Computing(results, device, jobs, ray, keep_weights)
        if dry_run:
            list_all(runs, computing)
            return
        result = run_all(runs, computing)
        changed = tuple(cell.changed(wanted) for cell in found)
        typer.echo("\n" + comparison(group(changed, _records_like(results, runs)), changed))
    raise typer.Exit(result.exit_code)


def write_gradients(out: Path) -> Path:
    """The pictures of the paper's last appendix."""
    # By name, and only here: it draws, and drawing takes a while to import.
    gradients = importlib.import_module("newton_losses_bench.report.gradients")
    out.mkdir(parents=True, exist_ok=True)
    gradients.write(out)
    return out


def _check_length(target: str, steps: int | None, epochs: int | None, jobs: int) -> None:
    """A length that the table's task does not have is an error, and so is a measurement that would mislead."""
    if target == "runtimes" and (steps or epochs):
        raise ArgumentError("reproduce runtimes times a fixed number of steps; leave --steps and --epochs out.")
    if target == "runtimes" and jobs > 1:
        raise ArgumentError("reproduce runtimes: runs that share a machine slow each other down; leave --jobs out.")
    in_epochs = target in ("table2", "table3")
    if in_epochs and steps is not None:
        raise ArgumentError(f"--steps {steps}: {target} counts in epochs. Give --epochs.")
    if not in_epochs and epochs is not None:
        raise ArgumentError(f"--epochs {epochs}: {target} counts in steps. Give --steps.")


def _runs(found: tuple[Cell, ...], seeds: list[int], settings: dict[str, Any]) -> Iterator[tuple[str, RunConfig]]:
    """All cells of a seed before the next seed, so that a table stopped early has something of every cell."""
    for seed in seeds:
        for cell in found:
            changed = cell.changed(settings).config.items()
            other = [describe_value(name, value) for name, value in changed if cell.config.get(name) != value]
            # The device is found where the run is done.
            config = cell.make(**{**settings, "seed": seed, "device": "cpu"})
            yield ", ".join([cell.key, *other, f"seed {seed}"]), config


def _records_like(results: Path, runs: list[tuple[str, RunConfig]]) -> list[RunRecord]:
    """The records under the protocol of these runs, whatever their seeds: those of earlier calls count too."""
    protocols = {Protocol.of(config.to_dict()) for _, config in runs}
    return [record for record in Store(results).records() if Protocol.of(record.configuration) in protocols]


def _list(table: str | None, store: Store, selection: dict[str, Any]) -> None:
    """Every cell with the paper's figures and the runs that are there."""
    if table is not None:
        check_choice("table", table, TABLES, "reproduce ls")
    records = store.records()
    for name in TABLES if table is None else (table,):
        try:
            found = cells(name, **selection)
        except ArgumentError:
            if table is not None:
                raise
            continue
        done: dict[str, list[str]] = {}
        for one in group(found, records):
            done.setdefault(one.cell.key, []).append(f"{len(one.records)} × {one.protocol}")
        typer.echo(f"{name}: {len(found)} cells, {len(done)} of them with runs in {store.path}")
        for cell in found:
            paper = ", ".join(f"{mean:g} ± {std:g}" for mean, std in (cell.paper or {}).values()).replace(" ± nan", "")
            typer.echo(f"  {cell.key:34} {paper:30} {'; '.join(done.get(cell.key, ['–']))}".rstrip())
    for note in store.notes:
        typer.echo(f"note: {note}")
