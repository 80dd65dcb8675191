"""`newton-losses train sorting | paths`: options in, configurations out, one run a seed, some of them at once."""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from newton_losses.errors import ArgumentError

from ..at_once import choose_at_once
from ..config import PathsConfig, RunConfig, SortingConfig
from ..loop import PlannedRun, run_together
from ..progress import JsonLines, PlainLines, Progress, Together
from ..ranks import is_first_process, joined_ranks, noted_signals
from ..statistics import summarise_all
from ..tasks import KeptData, make_task
from ._output import choose_progress, emit, spoken_errors

train_app = typer.Typer(
    help="Train on one of the two benchmarks. An option that is left out has the paper's value, but for --numerics and "
    "the generated maps.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_LOSS, _TRAINING, _DATA = "Loss", "Training", "Data"
_COMPUTING, _OUTPUT = "Computing", "Output"


def _option(panel: str, text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=True)


Curvature = Annotated[
    str, _option(_LOSS, "none (the baseline), hessian, fisher, or the control energy.", "--curvature", "-c")
]
Damping = Annotated[
    str | None, _option(_LOSS, "λ; or auto, or auto:FACTOR, to take it from the curvature. Default: the paper's.")
]
RelativeDamping = Annotated[float | None, _option(_LOSS, "λ as a multiple of the curvature's own scale, instead.")]
Spectrum = Annotated[
    str | None,
    _option(_LOSS, "Negative eigenvalues of the Hessian: raw, absolute or clip. Default: raw; with auto, absolute."),
]
ClipNorm = Annotated[float | None, _option(_TRAINING, "Clip the norm of the weights' gradient at this value.")]
Average = Annotated[
    bool, _option(_TRAINING, "Evaluate a mean of the last weights, too; the training stays as it is.", "--average")
]
Rate = Annotated[float | None, _option(_TRAINING, "Learning rate of Adam. Default: the paper's.", "--learning-rate")]
Seed = Annotated[int, _option(_TRAINING, "Seed of weights, batches, noise and evaluation sets.")]
Seeds = Annotated[str | None, _option(_TRAINING, "Several seeds, one run each, as in 0,1,2 or 0-9.")]
AtOnce = Annotated[
    int | None,
    _option(_COMPUTING, "How many of the seeds train at the same time, on CUDA. Default: 4 for sorting, 2 for paths."),
]
Root = Annotated[str | None, _option(_DATA, "Folder of the data; see `newton-losses data list`.", "--data-root")]
Device = Annotated[str, _option(_COMPUTING, "auto, cpu, cuda, or one of several GPUs as in cuda:1.")]
Precision = Annotated[
    str, _option(_COMPUTING, "Of the convolutions: float32, tf32 or bf16. Scores and losses are float32.")
]
Compile = Annotated[bool, _option(_COMPUTING, "Compile network and loss with torch.compile.", "--compile/--no-compile")]
Graph = Annotated[bool, _option(_COMPUTING, "On CUDA, capture the whole step as one graph.", "--graph/--no-graph")]
Out = Annotated[Path | None, _option(_OUTPUT, "Run folder. Default: in runs/, named by the settings.", "--out", "-o")]
Overwrite = Annotated[bool, _option(_OUTPUT, "Delete the run that is in the folder and start anew.", "--overwrite")]
Json = Annotated[bool, _option(_OUTPUT, "Print one JSON object a line instead of text.", "--json")]
Board = Annotated[bool, _option(_OUTPUT, "Write TensorBoard curves into the run folder.", "--tensorboard")]


@train_app.command()
def sorting(
    algorithm: Annotated[
        str, _option(_LOSS, "neuralsort, softsort, logistic or cauchy (sorting networks).", "--algorithm", "-a")
    ] = "softsort",
    curvature: Curvature = "none",
    damping: Damping = None,
    relative_damping: RelativeDamping = None,
    spectrum: Spectrum = None,
    temperature: Annotated[float | None, _option(_LOSS, "Of neuralsort and softsort.")] = None,
    steepness: Annotated[float | None, _option(_LOSS, "Of the sorting networks.")] = None,
    numerics: Annotated[
        str, _option(_LOSS, "stable (log space) or reference (cross-entropy on probabilities, as in the paper).")
    ] = "stable",
    n: Annotated[int, _option(_TRAINING, "Numbers in a set.", "--n", "-n")] = 5,
    steps: Annotated[int, _option(_TRAINING, "Training steps.")] = 100_000,
    batch_size: Annotated[int, _option(_TRAINING, "Sets in a batch.")] = 100,
    learning_rate: Rate = None,
    clip_norm: ClipNorm = None,
    eval_every: Annotated[int, _option(_TRAINING, "Steps between evaluations.")] = 1_000,
    average: Average = False,
    seed: Seed = 0,
    seeds: Seeds = None,
    data: Annotated[str, _option(_DATA, "mnist, or digits (8×8, needs no download).")] = "mnist",
    data_root: Root = None,
    digits: Annotated[int, _option(_DATA, "Digits of a number.")] = 4,
    augment: Annotated[bool, _option(_DATA, "Turn and shift every training digit at random.", "--augment")] = False,
    validation_sets: Annotated[int, _option(_DATA, "Fresh validation sets an evaluation.")] = 5_000,
    test_sets: Annotated[int, _option(_DATA, "Fresh test sets an evaluation.")] = 10_000,
    device: Device = "auto",
    precision: Precision = "float32",
    compile: Compile = False,
    graph: Graph = True,
    at_once: AtOnce = None,
    kernels: Annotated[
        bool, _option(_COMPUTING, "With bf16 on CUDA, use this project's kernels.", "--kernels/--no-kernels")
    ] = True,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    tensorboard: Board = False,
) -> None:
    """Ranking supervision: learn to read numbers from the order of sets of them.

    The test figure is that of the evaluation with the best exact match on the validation sets. Ctrl-C saves, and the
    same command goes on. For example:

        newton-losses train sorting --data digits --digits 2 --steps 500 --eval-every 100 -c fisher
    """
    options = _pick(SortingConfig, locals())
    _train(lambda: SortingConfig(**options), seeds, at_once, out, overwrite, as_json, tensorboard)


@train_app.command()
def paths(
    algorithm: Annotated[
        str,
        _option(_LOSS, "bellman-ford, smoothed-loss, smoothed-algorithm or fenchel-young.", "--algorithm", "-a"),
    ] = "fenchel-young",
    curvature: Curvature = "none",
    damping: Damping = None,
    relative_damping: RelativeDamping = None,
    spectrum: Spectrum = None,
    num_samples: Annotated[int | None, _option(_LOSS, "Draws of noise; 10 by default.", "--samples")] = None,
    scale: Annotated[float | None, _option(_LOSS, "Width of the noise; 0.1 by default.")] = None,
    loop: Annotated[str | None, _option(_LOSS, "Of bellman-ford: for (default) or while.")] = None,
    norm: Annotated[str | None, _option(_LOSS, "Of bellman-ford's loss: l1 (default) or l2 (squared).")] = None,
    beta: Annotated[float | None, _option(_LOSS, "Inverse temperature of bellman-ford; 10 by default.")] = None,
    iterations: Annotated[int | None, _option(_LOSS, "Of bellman-ford; 18 by default.")] = None,
    epochs: Annotated[int, _option(_TRAINING, "Passes over the training maps.")] = 50,
    batch_size: Annotated[int, _option(_TRAINING, "Maps in a batch.")] = 70,
    learning_rate: Rate = None,
    clip_norm: ClipNorm = None,
    eval_every: Annotated[int, _option(_TRAINING, "Epochs between evaluations.")] = 1,
    average: Average = False,
    seed: Seed = 0,
    seeds: Seeds = None,
    data: Annotated[str, _option(_DATA, "terrain (generated) or warcraft (its real files).")] = "terrain",
    data_root: Root = None,
    size: Annotated[int, _option(_DATA, "Cells along the side of a generated map.")] = 12,
    train_maps: Annotated[int, _option(_DATA, "Generated training maps.")] = 10_000,
    test_maps: Annotated[int, _option(_DATA, "Generated validation maps, and as many test maps.")] = 1_000,
    data_seed: Annotated[int, _option(_DATA, "Seed of the generated maps.")] = 0,
    device: Device = "auto",
    precision: Precision = "float32",
    compile: Compile = False,
    graph: Graph = True,
    at_once: AtOnce = None,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    tensorboard: Board = False,
) -> None:
    """Shortest-path supervision: learn the costs of terrain from the best paths over it.

    The learning rate falls tenfold after 3/5 and 4/5 of the epochs; the test figure is the last. Ctrl-C saves, and the
    same command goes on. For example:

        newton-losses train paths --size 6 --train-maps 200 --test-maps 50 --batch-size 20 --epochs 4
    """
    options = _pick(PathsConfig, locals())
    _train(lambda: PathsConfig(**options), seeds, at_once, out, overwrite, as_json, tensorboard)


def _pick(config: type[RunConfig], options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in config.__dataclass_fields__ if name in options}


def _train(
    make: Any, seeds: str | None, at_once: int | None, out: Path | None, overwrite: bool, as_json: bool, board: bool
) -> None:
    with noted_signals(), spoken_errors(as_json):
        base: RunConfig = make().resolved()
        if base.seed and seeds is not None:
            raise ArgumentError(
                f"--seed {base.seed} and --seeds {seeds}: give one of them; --seeds may hold any number of them."
            )
        if seeds is not None and seeds.strip().isdecimal():
            raise ArgumentError(
                f"--seeds {seeds}: that would be one run, with the seed {seeds}. Give --seed {seeds} for it, or "
                f"several seeds, as in --seeds 0-{max(1, int(seeds) - 1)}."
            )
        configs = [base] if seeds is None else [replace(base, seed=seed) for seed in parse_seeds(seeds)]
        folders = [run_folder(config, out, several=seeds is not None) for config in configs]
        number, reason = choose_at_once(at_once, base, len(configs))
        listeners = _listeners(configs, number, as_json)
        if board:
            listeners = _with_tensorboard(listeners, folders)
        if reason and is_first_process():
            listeners[0].note(reason)
        plans = [
            PlannedRun(config, str(folder), listener)
            for config, folder, listener in zip(configs, folders, listeners, strict=True)
        ]
        with joined_ranks(base.device):
            try:
                # A run alone gives its data back as soon as it is on the device.
                make = KeptData().make_task if len(plans) > 1 else make_task
                results = run_together(
                    plans, at_once=number, fewer_if_full=at_once is None, make=make, overwrite=overwrite
                )
            finally:
                for listener in listeners:
                    listener.close()
        if is_first_process():
            if not as_json:
                for folder in folders:
                    typer.echo(f"in {folder}")
            if len(results) > 1:
                _summarise(results, as_json)


def _listeners(configs: list[RunConfig], at_once: int, as_json: bool) -> list[Progress]:
    """Who is told how each of the runs goes: JSON, one live bar for all, or lines that say whose they are."""
    if as_json:
        return [JsonLines(seed=config.seed) for config in configs]
    if at_once == 1:
        return [choose_progress() for _ in configs]
    if not sys.stdout.isatty():
        return [PlainLines(seed=config.seed) for config in configs]
    from ..live import LiveBarOfSeveral

    bar = LiveBarOfSeveral([config.seed for config in configs])
    return [bar.of(config.seed) for config in configs]


def _with_tensorboard(chosen: list[Progress], folders: list[Path]) -> list[Progress]:
    try:
        from ..tensorboard import TensorBoard
    except ImportError:
        raise ArgumentError("--tensorboard needs the package tensorboard: pip install tensorboard") from None
    return [Together(one, TensorBoard(str(folder))) for one, folder in zip(chosen, folders, strict=True)]


def run_folder(config: RunConfig, out: Path | None, several: bool = False) -> Path:
    """Where a run goes: as told, a folder a seed where there are several, else a name made of the settings."""
    if out is not None:
        return out / f"seed-{config.seed}" if several else out
    # Without averages the name is what it was before there were any.
    settings = {
        name: value
        for name, value in config.to_dict().items()
        if name != "data_root" and (name, value) != ("average", False)
    }
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    size = f"-n{config.n}" if isinstance(config, SortingConfig) else ""
    arm = "baseline" if config.curvature == "none" else config.curvature
    return Path("runs") / f"{config.task}{size}-{config.algorithm}-{arm}-{digest}-seed{config.seed}"


def parse_seeds(text: str) -> list[int]:
    """Numbers and ranges, both ends included, separated by commas.

    >>> parse_seeds("0,2,5-7")
    [0, 2, 5, 6, 7]
    """
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found = range(int(first), int(last or first) + 1)
            if not found:
                raise ArgumentError(
                    f"--seeds {text}: a range goes from the smaller to the larger, as in {int(last)}-{int(first)}."
                )
            seeds.extend(found)
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"--seeds {text}: these are numbers and ranges with commas, as in 0,1,2 or 0-9.") from None
    if len(set(seeds)) < len(seeds):
        raise ArgumentError(f"--seeds {text}: name each only once.")
    return seeds


def _summarise(results: list[dict[str, Any]], as_json: bool) -> None:
    """Mean and standard deviation over the seeds, of every test figure."""
    kinds = {"test": [result["test"] for result in results]}
    if all("averaged" in result for result in results):
        kinds["averaged"] = [result["averaged"]["test"] for result in results]
    summaries = {kind: summarise_all(figures) for kind, figures in kinds.items()}
    if as_json:
        told = {
            kind: {name: {"mean": found.mean, "std": found.std} for name, found in summary.items()}
            for kind, summary in summaries.items()
        }
        emit({"event": "summary", "seeds": [r["configuration"]["seed"] for r in results], **told})
        return
    for kind, summary in summaries.items():
        title = {"averaged": "averaged test"}.get(kind, kind)
        for name, found in summary.items():
            typer.echo(f"{title} {name.replace('_', ' ')} over {len(results)} seeds: {found} %")
