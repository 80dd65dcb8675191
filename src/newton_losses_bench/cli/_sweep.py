"""`newton-losses sweep sorting | paths`: every combination of several settings, with several seeds.

The running itself, `run_all`, is shared with `reproduce`: it checks what the runs need, runs those that are missing,
and says how it ended.
"""

import importlib.util
import itertools
import shlex
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import typer

from newton_losses.errors import ArgumentError

from ..config import PathsConfig, RunConfig, SortingConfig, identity
from ..data import MNIST, Warcraft
from ..describe import count, describe_setting, describe_value
from ..machine import resolve_device
from ..settings import option as option_of
from ..statistics import Summary, summarise_all
from ..store import RunRecord, Store, check_writable
from ..sweep import Bars, Job, Lines, LocalPool, Pool, SweepResult, out_option, run_sweep, split, train_command
from ._options import SEVERAL, RunningOptions, add_command, chosen_seeds
from ._output import refuse_torchrun, typed_command
from .app import new_group

sweep_app = new_group("Train every combination of settings: options of `train` take several values, with commas.")
_FIRST = (
    *("algorithm", "curvature", "damping", "n", "steps", "epochs", "data", "seed", "seeds"),
    *("device", "jobs", "results", "dry_run"),
)
# Set by other options, by the epochs, or by each run for its device.
NOT_SWEPT = ("seed", "device", "drops", "graph", "kernels")
# Settings that only some curvatures have.
_WITH_CURVATURE = ("fisher", "hessian", "sample", "energy")
_OF_CURVATURES = {"damping": _WITH_CURVATURE, "relative_damping": _WITH_CURVATURE, "spectrum": ("hessian",)}


def _sweep(kind: type[RunConfig], options: RunningOptions, given: dict[str, Any]) -> None:
    grid = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    points, notes = applicable([dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())])
    for note in notes:
        typer.echo(note, err=True)
    runs = []
    for chosen in chosen_seeds(options.seed, options.seeds):
        for point in points:
            config = kind(**{**point, "seed": chosen, "device": "cpu"}).resolved()
            runs.append((f"{_label(config, grid)}, seed {chosen}", config))
    if options.dry_run:
        list_all(runs, options)
        return
    result = run_all(runs, options)
    typer.echo("\n" + _table(options.results, [config for _, config in runs], grid))
    raise typer.Exit(result.exit_code)


def applicable(points: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The points of a grid, with settings of a curvature only where the point has it, and a note on each left out.

    Points that become equal are merged. A setting that no point takes stays, and is refused later.

    >>> points, _ = applicable([{"curvature": c, "damping": d} for c in ("none", "fisher") for d in (1.0, 2.0)])
    >>> points
    [{'curvature': 'none'}, {'curvature': 'fisher', 'damping': 1.0}, {'curvature': 'fisher', 'damping': 2.0}]
    """
    notes = []
    for name, curvatures in _OF_CURVATURES.items():
        takes = [point.get("curvature", "none") in curvatures for point in points]
        if any(name in point for point in points) and any(takes) and not all(takes):
            *others, last = (one for one in curvatures if one != "energy")
            known = f"{', '.join(others)} and {last}" if others else last
            notes.append(f"{option_of(name)} applies to {known} only.")
            points = [
                point if taken else {other: value for other, value in point.items() if other != name}
                for point, taken in zip(points, takes, strict=True)
            ]
    return [point for place, point in enumerate(points) if point not in points[:place]], notes


def _label(config: RunConfig, grid: dict[str, list[Any]]) -> str:
    """What distinguishes one combination from the others; if there is only one, what it is."""
    stored = config.to_dict()
    varied = [name for name, values in grid.items() if len(values) > 1 and stored[name] is not None]
    return ", ".join(describe_value(name, stored[name]) for name in varied) or describe_setting(config)


def _table(results: Path, configs: list[RunConfig], grid: dict[str, list[Any]]) -> str:
    """Mean and deviation over the seeds for every combination, best first."""
    records = {record.identity: record for record in Store(results).records()}
    points: dict[str, list[RunRecord]] = {}
    for config in configs:
        record = records.get(identity(config.to_dict()))
        if record is not None:
            points.setdefault(_label(config, grid), []).append(record)
    if not points:
        return "No run is finished yet."
    means = {label: summarise_all(record.test for record in found) for label, found in points.items()}
    lines = []
    for label in sorted(points, key=lambda label: -next(iter(means[label].values())).mean):
        line = f"{label}: {_figures(means[label])} ({count(len(points[label]), 'seed')})"
        averaged = [record.averaged for record in points[label] if record.averaged]
        if averaged:
            line += f", averaged: {_figures(summarise_all(averaged))} ({count(len(averaged), 'seed')})"
        lines.append(line)
    return "\n".join(lines)


def _figures(means: dict[str, Summary]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {found} %" for name, found in means.items())


def run_all(labelled: Iterable[tuple[str, RunConfig]], options: RunningOptions) -> SweepResult:
    """Run everything that has no result yet, report as fits the reader, and say what failed and how to resume."""
    refuse_torchrun()
    if options.jobs < 1:
        raise ArgumentError(f"--jobs {options.jobs}: expected at least 1.")
    runs = list(labelled)
    configs = [config for _, config in runs]
    store = Store(options.results)
    pool: Pool
    if options.ray is None:
        resolve_device(options.device)
        _check_needs(configs)
        pool = LocalPool(options.jobs, store.path / ".logs")
    else:
        from ..sweep.ray import RayPool

        pool = RayPool(options.ray, options.results, options.jobs, options.device)
    check_writable(store.path)
    jobs = [Job.of(label, config, store.path, options.device, options.keep_weights) for label, config in runs]
    result = run_sweep(jobs, store, Bars() if sys.stdout.isatty() else Lines(), pool)
    _say_how_it_ended(result)
    _say_what_has_no_averages(configs, store)
    return result


def list_all(labelled: Iterable[tuple[str, RunConfig]], options: RunningOptions) -> None:
    """Only print what would be run, as commands that do it one by one."""
    store = Store(options.results)
    wanted, to_do = split((Job.of(label, config, store.path, options.device) for label, config in labelled), store)
    if len(to_do) < len(wanted):
        typer.echo(f"{len(wanted) - len(to_do)} of {len(wanted)} runs are already in {store.path}.", err=True)
    for job in to_do:
        words = ["newton-losses", *train_command(job.configuration), *out_option(job)]
        typer.echo(f"{job.label}: {shlex.join(words)}")


def _check_needs(configs: list[RunConfig]) -> None:
    """Find missing data or packages before the first run, not in each of them."""
    solver = any(config.task == "convex" and config.algorithm == "relu" for config in configs)
    if solver and importlib.util.find_spec("cvxpylayers") is None:
        raise ArgumentError(
            "Convex layers need the package cvxpylayers: pip install 'newton-losses[cvxpy]'. Without it, "
            "--algorithm relu-exact uses the known solution instead of the solver."
        )
    for data, root in sorted({(config.data, config.data_root or "") for config in configs}):
        if data == "mnist":
            MNIST.splits(root or None)
        elif data == "warcraft":
            Warcraft(root or None, "test")


def _say_what_has_no_averages(configs: list[RunConfig], store: Store) -> None:
    """A run that was finished or begun without averaged weights stays so, whatever is asked for now."""
    wanted = {identity(config.to_dict()) for config in configs if config.average}
    without = sum(record.identity in wanted and not record.averaged for record in store.records()) if wanted else 0
    if without:
        typer.echo(
            f"\n{without} of {len(wanted)} runs were trained without averaged weights and have none. Use another "
            "--results folder to train them again.",
            err=True,
        )


def _say_how_it_ended(result: SweepResult) -> None:
    for failure in result.failures:
        typer.echo(f"\nfailed: {failure.job.label}\n  {failure.message}", err=True)
        if failure.log:
            typer.echo(f"  its full output: {failure.log}", err=True)
    done = result.finished_before + result.finished
    if result.failures:
        typer.echo(f"\n{len(result.failures)} of {result.total} runs failed, {done} are finished.", err=True)
    elif result.exit_code == 1:
        typer.echo(f"only {done} of {result.total} runs are finished; rerun the command for the others.", err=True)
    if result.stopped_by is not None:
        typer.echo(
            f"stopped with {done} of {result.total} runs finished; the others have saved their progress. "
            f"The same command resumes:\n  {typed_command()}",
            err=True,
        )


for _kind, _where, _example in (
    (SortingConfig, "sorting", "newton-losses sweep sorting -a softsort -c fisher --damping 0.1,1,10 --seeds 3"),
    (PathsConfig, "shortest-path", "newton-losses sweep paths -a smoothed-loss --samples 3,10 -c none,fisher --jobs 2"),
):
    add_command(
        sweep_app,
        _kind.task,
        f"Every combination on the {_where} benchmark, and a table of them, best first.\n\nFinished runs are skipped. "
        f"Ctrl-C saves a checkpoint of every run; rerun the command to resume. For example:\n\n    {_example}",
        partial(_sweep, _kind),
        own=RunningOptions,
        kind=_kind,
        mode=SEVERAL,
        first=_FIRST,
        without=NOT_SWEPT,
    )
