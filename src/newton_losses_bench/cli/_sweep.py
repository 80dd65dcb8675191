"""`newton-losses sweep sorting | paths`: every combination of one's own settings, with several seeds."""

from pathlib import Path
from typing import Annotated, Any

import typer

from newton_losses.errors import ArgumentError

from ..config import NOT_THE_EXPERIMENT, PathsConfig, RunConfig, SortingConfig, identity
from ..describe import describe_setting, describe_value
from ..settings import settings as settings_of
from ..statistics import Summary, summarise_all
from ..store import Store
from ._output import spoken_errors
from ._settings import applicable, parse_grid, product
from ._sweeping import Computing, Device, Dry, Jobs, Keep, Ray, Results, Root, list_all, option, run_all, seeds_from

sweep_app = typer.Typer(
    help="Train every combination of settings: each option of `train` takes several values, separated by commas.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_FREE = {"allow_extra_args": True, "ignore_unknown_options": True}
_SEEDS = option("What to run", "How many seeds, as in 3; or which, as in 4-7 or 0,5, or 3, for the seed 3 alone.")
Count = Annotated[str, _SEEDS]


@sweep_app.command(context_settings=_FREE)
def sorting(
    context: typer.Context,
    seeds: Count = "1",
    data_root: Root = None,
    device: Device = "auto",
    jobs: Jobs = 1,
    ray: Ray = None,
    results: Results = Path("results"),
    keep_weights: Keep = False,
    dry_run: Dry = False,
) -> None:
    """Every combination on the sorting benchmark, and a table of them, best first.

    Settings are the options of `newton-losses train sorting`, each with one value or several; a switch has its value
    too, as in --compile true. --algorithm has to be given. Runs that the store has are not done again; Ctrl-C saves,
    and the same command goes on. For example:

        newton-losses sweep sorting --algorithm softsort --curvature fisher --damping 0.1,1,10 --seeds 3
    """
    computing = Computing(results, device, jobs, ray, keep_weights)
    _sweep(SortingConfig, context.args, {"data_root": data_root}, seeds, computing, dry_run)


@sweep_app.command(context_settings=_FREE)
def paths(
    context: typer.Context,
    seeds: Count = "1",
    data_root: Root = None,
    device: Device = "auto",
    jobs: Jobs = 1,
    ray: Ray = None,
    results: Results = Path("results"),
    keep_weights: Keep = False,
    dry_run: Dry = False,
) -> None:
    """Every combination on the shortest-path benchmark, and a table of them, best first.

    Settings are the options of `newton-losses train paths`, each with one value or several; a switch has its value too,
    as in --compile true. --algorithm has to be given. Runs that the store has are not done again; Ctrl-C saves, and the
    same command goes on. For example:

        newton-losses sweep paths --algorithm smoothed-loss --samples 3,10 --curvature none,fisher --epochs 5 --jobs 2
    """
    computing = Computing(results, device, jobs, ray, keep_weights)
    _sweep(PathsConfig, context.args, {"data_root": data_root}, seeds, computing, dry_run)


def _sweep(
    kind: type[RunConfig], words: list[str], settings: dict[str, Any], seeds: str, computing: Computing, dry: bool
) -> None:
    with spoken_errors():
        grid = parse_grid(kind, words)
        if "algorithm" not in grid:
            (choices,) = (one.choices for one in settings_of(kind) if one.name == "algorithm")
            raise ArgumentError(f"Give --algorithm: one of {', '.join(choices)}, or several with commas.")
        _refuse_one_run_twice(grid)
        points, notes = applicable(list(product(grid)))
        for note in notes:
            typer.echo(note, err=True)
        runs = []
        for seed in seeds_from(seeds, 1):
            for point in points:
                config = kind(**{**settings, **point, "seed": seed, "device": "cpu"}).resolved()
                runs.append((f"{_name(config, grid)}, seed {seed}", config))
        if dry:
            list_all(runs, computing)
            return
        result = run_all(runs, computing)
        typer.echo("\n" + _summary(computing.results, [config for _, config in runs], grid))
    raise typer.Exit(result.exit_code)


def _refuse_one_run_twice(grid: dict[str, list[Any]]) -> None:
    for name in NOT_THE_EXPERIMENT:
        if len(grid.get(name, [])) > 1:
            raise ArgumentError(
                f"--{name} {','.join(map(str, grid[name])).lower()}: runs that differ in nothing else are one run to a "
                "store. Give one value."
            )


def _name(config: RunConfig, grid: dict[str, list[Any]]) -> str:
    """What tells one combination from the others; where there is one alone, what it is."""
    stored = config.to_dict()
    told = [name for name, values in grid.items() if len(values) > 1 and stored[name] is not None]
    return ", ".join(describe_value(name, stored[name]) for name in told) or describe_setting(config)


def _summary(results: Path, configs: list[RunConfig], grid: dict[str, list[Any]]) -> str:
    """Mean and deviation over the seeds for every combination, best first."""
    records = {record.identity: record for record in Store(results).records()}
    points: dict[str, list[Any]] = {}
    names: dict[str, str] = {}
    for config in configs:
        record = records.get(identity(config.to_dict()))
        if record is None:
            continue
        key = identity({**config.to_dict(), "seed": 0})
        points.setdefault(key, []).append(record)
        names[key] = _name(config, grid)
    if not points:
        return "No run is finished yet."
    means = {key: summarise_all(record.test for record in found) for key, found in points.items()}
    lines = []
    for key in sorted(points, key=lambda key: -next(iter(means[key].values())).mean):
        line = f"{names[key]}: {_figures(means[key])} ({_seeds(len(points[key]))})"
        averaged = [record.averaged for record in points[key] if record.averaged]
        if averaged:
            line += f", averaged: {_figures(summarise_all(averaged))} ({_seeds(len(averaged))})"
        lines.append(line)
    return "\n".join(lines)


def _figures(means: dict[str, Summary]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {found} %" for name, found in means.items())


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
