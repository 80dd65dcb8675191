"""`newton-losses reproduce TABLE`: the cells of a table of the paper, and our figures next to the paper's."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from newton_losses.errors import ArgumentError

from ..cells import TABLES, Cell, cells
from ..config import ConvexConfig, PathsConfig, RunConfig, SortingConfig
from ..describe import describe_value
from ..groups import Protocol, comparison, group
from ..paper import paper_protocol
from ..settings import check_choice
from ..store import RunRecord, Store
from ._options import (
    CHANGES,
    Device,
    DryRun,
    Jobs,
    Keep,
    Ray,
    Results,
    Seed,
    Seeds,
    chosen_seeds,
    option,
    with_settings,
)
from ._output import spoken_errors
from ._sweep import NOT_SWEPT, Computing, list_all, run_all
from .app import Command, new_group

reproduce_app = new_group("Run, or resume, a table of the paper, and print our results next to the paper's.")

# What each table is, and the settings of its runs.
_TABLES: dict[str, tuple[str, type[RunConfig]]] = {
    "table1": ("Sorting: four relaxations, n = 5 and 10, with three arms and two controls.", SortingConfig),
    "table2": ("Shortest paths: relaxed Bellman-Ford.", PathsConfig),
    "table3": ("Shortest paths: smoothing by noise, with 3, 10 and 30 samples.", PathsConfig),
    "ablation": ("Sorting: how the result depends on the damping λ.", SortingConfig),
    "runtimes": ("Time per step, relative to the baseline.", RunConfig),
    "cvxpy": ("Convex layers, the paper's last experiment. Needs the extra 'cvxpy'.", ConvexConfig),
}
# A cell is made of these; other settings can be changed for all cells of a table.
_OF_A_CELL = ("curvature", "relative_damping", "n", "numerics", "loop", "norm", "num_samples", "clip_norm")
# Timed runs have a fixed number of steps. Convex layers have no data, no convolutions and nothing to compile.
_NOT_FOR: dict[str, tuple[str, ...]] = {
    "runtimes": ("algorithm", "batch_size", "eval_every", "damping", "spectrum", "learning_rate", "average", "data"),
    "cvxpy": ("data", "data_root", "spectrum", "average", "precision", "compile"),
}
_FIRST = ("only", "numerics", "controls", "steps", "epochs", "data", "seed", "seeds", "device", "jobs", "precision")
_OUTPUT = ("results", "dry_run")

Only = Annotated[
    str | None,
    option(
        "Cells with this in their name, as n5 or softsort-n5, or a pattern for the whole name, as 'soft*-n5-*'; "
        "several with commas. `reproduce list` has the names.",
        "--only",
        metavar="CELLS",
    ),
]
Numerics = Annotated[
    str,
    option("Cells with these numerics: reference (as in the paper), stable, or both.", "--numerics", metavar="NAME"),
]
Controls = Annotated[
    bool,
    option(
        "Also run the controls: gradient clipping, and division by the gradients' energy.", "--controls/--no-controls"
    ),
]
Table = Annotated[str | None, typer.Argument(help=f"One of {', '.join(TABLES)}. Default: all.", metavar="[TABLE]")]


def _add_table(table: str) -> None:
    """The subcommand of a table, with the options that it has."""
    text, kind = _TABLES[table]
    without = [*NOT_SWEPT, *_OF_A_CELL, *_NOT_FOR.get(table, ("algorithm",))]
    decorate = with_settings(kind, CHANGES, first=(*_FIRST, *_OUTPUT), without=without)
    seeds = 1 if table == "runtimes" else paper_protocol(cells(table)[0].task)["seeds"]
    help = (
        f"{text}\n\nFinished runs are skipped; the first seed of all cells comes first. Ctrl-C saves a checkpoint of "
        "every run; rerun the command to resume. Runs shorter than the paper's are kept apart. Without --seed or "
        f"--seeds: {'one seed' if seeds == 1 else f'{seeds} seeds, as in the paper'}."
    )
    reproduce_app.command(table, help=help, cls=Command)(decorate(_command(table)))


def _command(table: str) -> Callable[..., None]:
    def sorting_cells(
        only: Only = None,
        numerics: Numerics = "both",
        controls: Controls = True,
        seed: Seed = None,
        seeds: Seeds = None,
        device: Device = "auto",
        jobs: Jobs = 1,
        ray: Ray = None,
        results: Results = Path("results"),
        keep_weights: Keep = False,
        dry_run: DryRun = False,
        **settings: Any,
    ) -> None:
        with spoken_errors():
            check_choice("numerics", numerics, ("reference", "stable", "both"))
            found = cells(table, only=only, numerics=None if numerics == "both" else numerics, controls=controls)
            computing = Computing(results, device, jobs, ray, keep_weights)
            _reproduce(found, settings, seed, seeds, computing, dry_run)

    def other_cells(
        only: Only = None,
        seed: Seed = None,
        seeds: Seeds = None,
        device: Device = "auto",
        jobs: Jobs = 1,
        ray: Ray = None,
        results: Results = Path("results"),
        keep_weights: Keep = False,
        dry_run: DryRun = False,
        **settings: Any,
    ) -> None:
        with spoken_errors():
            if table == "runtimes" and jobs > 1:
                raise ArgumentError("--jobs: runs that share a machine slow each other down; leave it out.")
            computing = Computing(results, device, jobs, ray, keep_weights)
            _reproduce(cells(table, only=only), settings, seed, seeds, computing, dry_run)

    return sorting_cells if _TABLES[table][1] is SortingConfig else other_cells


def _reproduce(
    found: tuple[Cell, ...],
    given: dict[str, Any],
    seed: int | None,
    seeds: str | None,
    computing: Computing,
    dry_run: bool,
) -> None:
    settings = {name: value for name, value in given.items() if value is not None}
    count = 1 if found[0].table == "runtimes" else paper_protocol(found[0].task)["seeds"]
    runs = list(_runs(found, chosen_seeds(seed, seeds, count), settings))
    if dry_run:
        list_all(runs, computing)
        return
    result = run_all(runs, computing)
    changed = tuple(cell.changed(settings) for cell in found)
    typer.echo("\n" + comparison(group(changed, _records_like(computing.results, runs)), changed))
    raise typer.Exit(result.exit_code)


def _runs(found: tuple[Cell, ...], seeds: list[int], settings: dict[str, Any]) -> Iterator[tuple[str, RunConfig]]:
    """All cells of a seed before the next seed, so that a table stopped early has something in every cell."""
    for seed in seeds:
        for cell in found:
            changed = cell.changed(settings).config.items()
            other = [describe_value(name, value) for name, value in changed if cell.config.get(name) != value]
            # The device is resolved where the run is computed.
            config = cell.make(**{**settings, "seed": seed, "device": "cpu"})
            yield ", ".join([cell.key, *other, f"seed {seed}"]), config


def _records_like(results: Path, runs: list[tuple[str, RunConfig]]) -> list[RunRecord]:
    """The records under the protocol of these runs, whatever their seeds: those of earlier calls count too."""
    protocols = {Protocol.of(config.to_dict()) for _, config in runs}
    return [record for record in Store(results).records() if Protocol.of(record.configuration) in protocols]


for _table in TABLES:
    _add_table(_table)


@reproduce_app.command(cls=Command)
def gradients(results: Results = Path("results")) -> None:
    """Draw the gradients of the losses, as in the paper's appendix. Trains nothing."""
    with spoken_errors():
        from ..report import gradients as pictures  # drawing takes a while to import

        out = results / "gradients"
        out.mkdir(parents=True, exist_ok=True)
        pictures.write(out)
        typer.echo(f"in {out}")


@reproduce_app.command("list", cls=Command)
def list_cells(
    table: Table = None,
    only: Only = None,
    numerics: Numerics = "both",
    controls: Controls = True,
    results: Results = Path("results"),
) -> None:
    """List the cells of the tables, the paper's figures, and the runs that are finished."""
    with spoken_errors():
        check_choice("numerics", numerics, ("reference", "stable", "both"))
        if table is not None:
            check_choice("table", table, TABLES, "reproduce list")
        store = Store(results)
        records = store.records()
        for name in TABLES if table is None else (table,):
            try:
                found = cells(name, only=only, numerics=None if numerics == "both" else numerics, controls=controls)
            except ArgumentError:
                if table is not None:
                    raise
                continue
            _list(name, found, records, store)
        for note in store.notes:
            typer.echo(f"note: {note}")


def _list(name: str, found: tuple[Cell, ...], records: list[RunRecord], store: Store) -> None:
    done: dict[str, list[str]] = {}
    for one in group(found, records):
        done.setdefault(one.cell.key, []).append(f"{len(one.records)} × {one.protocol}")
    typer.echo(f"{name}: {len(found)} cells, {len(done)} of them with runs in {store.path}")
    for cell in found:
        paper = ", ".join(f"{mean:g} ± {std:g}" for mean, std in (cell.paper or {}).values()).replace(" ± nan", "")
        typer.echo(f"  {cell.key:34} {paper:30} {'; '.join(done.get(cell.key, ['–']))}".rstrip())


reproduce_app.command("ls", hidden=True, cls=Command)(list_cells)
