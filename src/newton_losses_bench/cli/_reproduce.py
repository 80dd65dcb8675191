"""`newton-losses reproduce TABLE`: the cells of a table of the paper, and our figures next to the paper's."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from newton_losses.errors import ArgumentError

from ..cells import TABLES, Cell, cells
from ..config import ConvexConfig, PathsConfig, RunConfig, SortingConfig
from ..describe import describe_value
from ..groups import Protocol, comparison, group
from ..settings import check_choice, paper_protocol
from ..store import RunRecord, Store
from ._options import CHANGES, Results, RunningOptions, add_command, chosen_seeds, option
from ._output import errors_as_sentences
from ._sweep import NOT_SWEPT, list_all, run_all
from .app import Command, new_group

reproduce_app = new_group("Run, or resume, a table of the paper, and print our results next to the paper's.")

# What each table is, and the settings of its runs.
_TABLES: dict[str, tuple[str, type[RunConfig]]] = {
    "table1": (
        "Sorting: four relaxations, n = 5 and 10, and Cauchy with n = 15, with three arms and two controls.",
        SortingConfig,
    ),
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
_FIRST = (
    "only",
    "numerics",
    "controls",
    "steps",
    "epochs",
    "data",
    "seed",
    "seeds",
    "device",
    "jobs",
    "precision",
    "results",
    "dry_run",
)

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
Table = Annotated[
    str | None,
    typer.Argument(
        help=f"One of {', '.join(TABLES)}. Default: all.", metavar="TABLE", autocompletion=lambda: list(TABLES)
    ),
]


@dataclass(frozen=True)
class TableOptions(RunningOptions):
    """The options of a table, and of one with sorting cells."""

    only: Only = None


@dataclass(frozen=True)
class SortingTableOptions(TableOptions):
    numerics: Numerics = "both"
    controls: Controls = True


def _reproduce(table: str, options: TableOptions, settings: dict[str, Any]) -> None:
    if table == "runtimes" and options.jobs > 1:
        raise ArgumentError("--jobs: runs that share a machine slow each other down; leave it out.")
    found = _cells(table, options)
    runs = list(_runs(found, chosen_seeds(options.seed, options.seeds, _seeds(table)), settings))
    if options.dry_run:
        list_all(runs, options)
        return
    result = run_all(runs, options)
    changed = tuple(cell.changed(settings) for cell in found)
    typer.echo("\n" + comparison(group(changed, _records_like(options.results, runs)), changed))
    raise typer.Exit(result.exit_code)


def _cells(table: str, options: TableOptions) -> tuple[Cell, ...]:
    if not isinstance(options, SortingTableOptions):
        return cells(table, only=options.only)
    return _sorting_cells(table, options.only, options.numerics, options.controls)


def _sorting_cells(table: str, only: str | None, numerics: str, controls: bool) -> tuple[Cell, ...]:
    check_choice("numerics", numerics, ("reference", "stable", "both"))
    return cells(table, only=only, numerics=None if numerics == "both" else numerics, controls=controls)


def _seeds(table: str) -> int:
    """How many there are by default."""
    return 1 if table == "runtimes" else int(paper_protocol(cells(table)[0].task)["seeds"])


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


for _table, (_text, _kind) in _TABLES.items():
    _count = _seeds(_table)
    add_command(
        reproduce_app,
        _table,
        f"{_text}\n\nFinished runs are skipped; the first seed of all cells comes first. Ctrl-C saves a checkpoint of "
        "every run; rerun the command to resume. Runs shorter than the paper's are kept apart. Without --seed or "
        f"--seeds: {'one seed' if _count == 1 else f'{_count} seeds, as in the paper'}.",
        partial(_reproduce, _table),
        own=SortingTableOptions if _kind is SortingConfig else TableOptions,
        kind=_kind,
        mode=CHANGES,
        first=_FIRST,
        without=[*NOT_SWEPT, *_OF_A_CELL, *_NOT_FOR.get(_table, ("algorithm",))],
    )


@reproduce_app.command("list", cls=Command)
def list_cells(
    table: Table = None,
    only: Only = None,
    numerics: Numerics = "both",
    controls: Controls = True,
    results: Results = Path("results"),
) -> None:
    """List the cells of the tables, the paper's figures, and the runs that are finished."""
    with errors_as_sentences():
        if table is not None:
            check_choice("table", table, TABLES, "reproduce list")
        store = Store(results)
        records = store.records()
        for name in TABLES if table is None else (table,):
            try:
                found = _sorting_cells(name, only, numerics, controls)
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
