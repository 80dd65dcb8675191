"""What `reproduce` and `sweep` have in common: options, seeds, the doing, and what is said at the end."""

import importlib.util
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from newton_losses.errors import ArgumentError

from ..config import RunConfig, identity
from ..data import MNIST, Warcraft
from ..device import resolve_device
from ..ranks import started_by_torchrun
from ..store import Store, check_writable
from ..sweep import Bars, Job, Lines, LocalPool, Pool, SweepResult, run_sweep, split, train_command
from ._train import parse_seeds

_WHAT, _COMPUTING, _OUTPUT = "What to run", "Computing", "Output"


def option(panel: str, text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=True)


Seeds = Annotated[
    str | None,
    option(
        _WHAT, "How many seeds, as in 3; or which, as in 4-7 or 0,5, or 3, for the seed 3 alone. Default: the paper's."
    ),
]
Root = Annotated[str | None, option(_WHAT, "Folder of the data; see `newton-losses data list`.", "--data-root")]
Device = Annotated[str, option(_COMPUTING, "auto, cpu, cuda (all GPUs, by turns), or one of them as in cuda:1.")]
Compile = Annotated[bool, option(_COMPUTING, "Compile with torch.compile.", "--compile/--no-compile")]
Jobs = Annotated[int, option(_COMPUTING, "Runs at once; with --ray, runs at once on each GPU.", "--jobs", "-j")]
Ray = Annotated[str | None, option(_COMPUTING, "Address of a Ray cluster, or auto. Needs the extra 'ray'.", "--ray")]
Results = Annotated[Path, option(_OUTPUT, "The store: one folder a run.", "--results", "-r")]
Keep = Annotated[bool, option(_OUTPUT, "Keep the weights and the last checkpoint of each run.", "--keep-weights")]
Dry = Annotated[bool, option(_OUTPUT, "Only say what would be run.", "--dry-run")]


@dataclass(frozen=True)
class Computing:
    """How and where the runs of a sweep are done."""

    results: Path
    device: str = "auto"
    jobs: int = 1
    ray: str | None = None
    keep_weights: bool = False


def seeds_from(text: str | None, default: int) -> list[int]:
    """A number is how many, from 0; with a comma or a dash they are named.

    >>> seeds_from("3", 10), seeds_from("4-6,9", 10), seeds_from(None, 2)
    ([0, 1, 2], [4, 5, 6, 9], [0, 1])
    """
    if text is None:
        return list(range(default))
    if text.strip().isdecimal():
        count = int(text)
        if count < 1:
            raise ArgumentError(f"--seeds {text}: it is how many, at least one; the seed 0 alone is 0, with a comma.")
        return list(range(count))
    return parse_seeds(text.strip(","))


def run_all(labelled: Iterable[tuple[str, RunConfig]], computing: Computing) -> SweepResult:
    """Do all the runs, telling as fits the reader, and say what failed and how to go on."""
    if started_by_torchrun():
        raise ArgumentError(
            "torchrun starts the ranks of one run, and this is many runs: leave torchrun out, and give --jobs for "
            "several at once. `newton-losses train` is for several ranks."
        )
    if computing.jobs < 1:
        raise ArgumentError(f"--jobs {computing.jobs}: it has to be at least 1.")
    runs = list(labelled)
    pool: Pool
    if computing.ray is None:
        resolve_device(computing.device)
        _check_needs([config for _, config in runs])
        pool = LocalPool(computing.jobs, computing.results / ".logs")
    else:
        from ..sweep.ray import RayPool

        pool = RayPool(computing.ray, computing.results, computing.jobs, computing.device)
    store = Store(computing.results)
    check_writable(store.path)
    jobs = [Job.of(label, config, store.path, computing.device, computing.keep_weights) for label, config in runs]
    listener = Bars() if sys.stdout.isatty() else Lines()
    result = run_sweep(jobs, store, listener, pool)
    _say_how_it_ended(result)
    _say_what_has_no_averages([config for _, config in runs], store)
    return result


def list_all(labelled: Iterable[tuple[str, RunConfig]], computing: Computing) -> None:
    """Only say what would be run, as commands that do it one by one."""
    store = Store(computing.results)
    wanted, to_do = split((Job.of(label, config, store.path, computing.device) for label, config in labelled), store)
    if len(to_do) < len(wanted):
        typer.echo(f"{len(wanted) - len(to_do)} of {len(wanted)} runs are in {store.path} already.", err=True)
    for job in to_do:
        typer.echo(f"{job.label}: newton-losses {shlex.join(train_command(job.configuration))}")


def _check_needs(configs: list[RunConfig]) -> None:
    """Missing data or a missing package is found before the first run, not in each of them."""
    solver = any(config.task == "convex" and config.algorithm == "relu" for config in configs)
    if solver and importlib.util.find_spec("cvxpylayers") is None:
        raise ArgumentError(
            "Convex layers need the package cvxpylayers: pip install 'newton-losses[cvxpy]'. Without it, "
            "--set algorithm=relu-exact takes the known solution in the place of the solver."
        )
    for data, root in sorted({(config.data, config.data_root or "") for config in configs}):
        if data == "mnist":
            MNIST.splits(root or None)
        elif data == "warcraft":
            Warcraft(root or None, "test")


def _say_what_has_no_averages(configs: list[RunConfig], store: Store) -> None:
    """A run that was done or begun without averaged weights stays so, whatever is asked for now."""
    wanted = {identity(config.to_dict()) for config in configs if config.average}
    if not wanted:
        return
    without = sum(record.identity in wanted and not record.averaged for record in store.records())
    if without:
        typer.echo(
            f"\n{without} of {len(wanted)} runs were done, or begun, without averaged weights, and have none. Another "
            "folder with --results does them anew.",
            err=True,
        )


def _say_how_it_ended(result: SweepResult) -> None:
    for failure in result.failures:
        typer.echo(f"\nfailed: {failure.job.label}\n{failure.message}", err=True)
        if failure.log:
            typer.echo(f"all that it said: {failure.log}", err=True)
    if result.failures:
        others = "; the others are done" if result.stopped_by is None else "; others are not done yet"
        others = "" if len(result.failures) == result.total else others
        typer.echo(f"\n{len(result.failures)} of {result.total} runs failed{others}.", err=True)
    done = result.finished_before + result.finished
    if not result.failures and result.exit_code == 1:
        typer.echo(f"only {done} of {result.total} runs are done; the same command does the others.", err=True)
    if result.stopped_by is not None:
        command = shlex.join(["newton-losses", *sys.argv[1:]])
        typer.echo(
            f"stopped with {done} of {result.total} runs done; the others have saved how far they are. "
            f"The same command goes on from there:\n  {command}",
            err=True,
        )
