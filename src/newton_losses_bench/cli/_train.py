"""`newton-losses train sorting | paths`: one run for each seed, one after another."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from newton_losses.errors import ArgumentError

from ..config import PathsConfig, RunConfig, SortingConfig, run_name
from ..machine import Interrupted, stop_requests
from ..progress import JsonLines, TensorBoard, Together
from ..statistics import summarise_all
from ..train import Progress, run
from ._options import ONE, OUTPUT, Json, Seed, Seeds, add_command, chosen_seeds, option
from ._output import choose_progress, emit, errors_as_sentences, refuse_torchrun
from .app import new_group

train_app = new_group(
    "Train on one of the two benchmarks. Options that are left out have the paper's values, except --numerics and the "
    "generated maps."
)

_FIRST = ("algorithm", "curvature", "damping", "n", "steps", "epochs", "data", "seed", "seeds", "device", "out")
_RESUME = "Ctrl-C saves a checkpoint; rerun the command to resume. For example:"


@dataclass(frozen=True)
class TrainOptions:
    """The options of `train` that are not settings of a run."""

    seed: Seed = None
    seeds: Seeds = None
    out: Annotated[
        Path | None,
        option("Run folder; several seeds get one each in it. Default: in runs/.", "--out", "-o", metavar="FOLDER"),
    ] = None
    overwrite: Annotated[
        bool,
        option("Delete the run in the folder and start over; leave it out to resume.", "--overwrite", panel=OUTPUT),
    ] = False
    as_json: Json = False
    tensorboard: Annotated[
        bool, option("Write TensorBoard curves into the run folder.", "--tensorboard", panel=OUTPUT)
    ] = False


def _train(kind: type[RunConfig], options: TrainOptions, settings: dict[str, Any]) -> None:
    as_json = options.as_json
    refuse_torchrun()
    base = kind(**settings, seed=0).resolved()
    # Resolved one by one: a seed is a setting too, and may be wrong.
    configs = [replace(base, seed=one).resolved() for one in chosen_seeds(options.seed, options.seeds)]
    folders = [_folder(config, options.out, several=options.seeds is not None) for config in configs]
    results = []
    with stop_requests(answers=False) as stop:
        for config, folder in zip(configs, folders, strict=True):
            with errors_as_sentences(as_json, config.seed):
                if stop.requested:  # just after the last step of the run before, which is finished all the same
                    raise Interrupted(0, stop.requested)
                progress = _listener(config, folder, options)
                try:
                    results.append(run(config, str(folder), progress=progress, overwrite=options.overwrite))
                finally:
                    progress.close()
    if not as_json:
        for folder in folders:
            typer.echo(f"in {folder}")
    if len(results) > 1:
        _summarise(results, as_json)


def _folder(config: RunConfig, out: Path | None, several: bool) -> Path:
    if out is None:
        return Path("runs") / run_name(config.to_dict())
    return out / f"seed-{config.seed}" if several else out


def _listener(config: RunConfig, folder: Path, options: TrainOptions) -> Progress:
    progress = JsonLines(seed=config.seed) if options.as_json else choose_progress()
    if not options.tensorboard:
        return progress
    try:
        return Together(progress, TensorBoard(str(folder)))
    except ImportError:
        raise ArgumentError("--tensorboard needs the package tensorboard: pip install tensorboard") from None


def _summarise(results: list[dict[str, Any]], as_json: bool) -> None:
    """Mean and standard deviation over the seeds, for every test figure."""
    kinds = {"test": [result["test"] for result in results]}
    if all("averaged" in result for result in results):
        kinds["averaged"] = [result["averaged"]["test"] for result in results]
    summaries = {kind: summarise_all(figures) for kind, figures in kinds.items()}
    if as_json:
        shown = {
            kind: {name: {"mean": found.mean, "std": found.std} for name, found in summary.items()}
            for kind, summary in summaries.items()
        }
        emit({"event": "summary", "seeds": [r["configuration"]["seed"] for r in results], **shown})
        return
    for kind, summary in summaries.items():
        title = {"averaged": "averaged test"}.get(kind, kind)
        for name, found in summary.items():
            typer.echo(f"{title} {name.replace('_', ' ')} over {len(results)} seeds: {found} %")


add_command(
    train_app,
    "sorting",
    "Ranking supervision: learn to read numbers from the order of sets of them.\n\n"
    f"Reports the test accuracy at the evaluation with the best exact match on the validation sets. {_RESUME}\n\n"
    "    newton-losses train sorting --data digits --digits 2 --steps 500 -c fisher",
    partial(_train, SortingConfig),
    own=TrainOptions,
    kind=SortingConfig,
    mode=ONE,
    first=_FIRST,
    without=("seed",),
    defaults={"algorithm": "softsort"},
)
add_command(
    train_app,
    "paths",
    "Shortest-path supervision: learn the costs of terrain from the best paths across it.\n\n"
    f"The learning rate falls tenfold after 3/5 and 4/5 of the epochs; reports the last test accuracy. {_RESUME}\n\n"
    "    newton-losses train paths --size 6 --train-maps 200 --test-maps 50 --epochs 4",
    partial(_train, PathsConfig),
    own=TrainOptions,
    kind=PathsConfig,
    mode=ONE,
    first=_FIRST,
    without=("seed", "drops"),
    defaults={"algorithm": "fenchel-young"},
)
