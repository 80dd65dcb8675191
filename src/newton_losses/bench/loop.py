"""The training loop of both tasks, from an empty or half-done folder to a result."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .config import RunConfig
from .interrupts import Interrupted, stop_requests
from .progress import Progress, Silent
from .ranks import Ranks, sharing_ranks
from .run_folder import Record, RunFolder
from .tasks import Figures, Task, make_task
from .trainer import Trainer

# Between evaluations: how long a crash may throw a run back, and how often a watching person gets news.
CHECKPOINT_SECONDS = 60.0
NEWS_SECONDS = 0.5


def run(
    config: RunConfig,
    out: str,
    *,
    progress: Progress | None = None,
    make: Callable[[Any], Task] = make_task,
    overwrite: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Record:
    """Train as `config` says, in the folder `out`, and return the result.

    A folder that holds the same run goes on where its last checkpoint is; on a CPU the end is the same to
    the last bit as without the interruption. A finished one just returns its result. `make(config)` makes
    the task; by itself, one of the two benchmarks.

    Where `torch.distributed` is initialised its ranks train together, each on its rows of every batch: all
    have to make this call. The folder is rank 0's, and their number may be another when the run goes on.
    """
    config = config.resolved()
    with sharing_ranks() as ranks, contextlib.closing(RunFolder(out, config, overwrite=overwrite)) as folder:
        progress = (progress if ranks.is_first else None) or Silent()
        _check_same_run(ranks, config)
        ranks.on_first(folder.open)
        if (result := ranks.on_first(lambda: folder.result)) is not None:
            _tell_notes(folder, progress)
            progress.finished(result, again=True)
            return result
        with stop_requests() as stop, precision_flags(config.precision):
            # First: a folder that cannot be used should not cost a wait for the data.
            saved = ranks.on_first(folder.load)
            progress.preparing(config)
            task = ranks.in_turn(lambda: make(config))
            trainer = Trainer(task, config)
            clock = _Clock(checkpoint_seconds)
            if saved is not None:
                trainer.restore(saved)
                clock.earlier = saved["seconds"]
            _tell_notes(folder, progress)
            progress.started(config, trainer.step, task.total_steps, folder.evaluations)
            while trainer.step < task.total_steps:
                trainer.train_step()
                if task.is_evaluation(trainer.step):
                    progress.evaluated(_evaluate(ranks, trainer, folder, clock))
                asked_to_stop, is_time_to_save = ranks.largest(stop.requested or 0, clock.is_time_to_save())
                if is_time_to_save or asked_to_stop:
                    _save(ranks, trainer, folder, clock)
                if asked_to_stop:
                    raise Interrupted(trainer.step, asked_to_stop)
                if clock.is_time_for_news():
                    progress.advanced(trainer.step, trainer.last_loss())
            result = ranks.on_first(lambda: folder.finish(_result(config, ranks, trainer, folder, clock)))
        progress.finished(result)
        return result


def _check_same_run(ranks: Ranks, config: RunConfig) -> None:
    """Ranks with different runs would mix their gradients."""
    settings = {name: value for name, value in config.to_dict().items() if name != "data_root"}
    ranks.check_same(
        [json.dumps(settings).encode()],
        "The ranks of torch.distributed were given different configurations. They train one run together: give all of "
        "them the same, or run each without torch.distributed.",
    )


def _tell_notes(folder: RunFolder, progress: Progress) -> None:
    for note in folder.notes:
        progress.note(note)


def _evaluate(ranks: Ranks, trainer: Trainer, folder: RunFolder, clock: "_Clock") -> Record:
    """Evaluate on rank 0 and save there, together with the network if it is the one to report."""
    ranks.check_same(
        trainer.replicated(),
        "The ranks of this run have come apart: after the same steps their weights are not the same. Train on machines "
        "of one kind with the same versions. The same command goes on from the last checkpoint, where they agreed.",
    )
    loss = trainer.take_mean_loss()

    def evaluate() -> Record:
        record = {**_record(trainer, loss), **_figures(trainer.task)}
        if trainer.task.reported([*folder.evaluations, record]) is record:
            folder.save_weights(trainer.task.model.state_dict())
        folder.save(_state(trainer, clock), record)
        return record

    record = ranks.on_first(evaluate)
    clock.saved()
    return record


def _save(ranks: Ranks, trainer: Trainer, folder: RunFolder, clock: "_Clock") -> None:
    ranks.on_first(lambda: folder.save(_state(trainer, clock)))
    clock.saved()


def _record(trainer: Trainer, loss: float | None) -> Record:
    return {
        "step": trainer.step,
        "learning_rate": trainer.task.learning_rate(trainer.step - 1),
        "loss": loss,
        "skipped_samples": trainer.skipped_samples(),
    }


def _figures(task: Task) -> Figures:
    task.model.eval()
    with torch.no_grad():
        figures = task.evaluate()
    task.model.train()
    return figures


def _state(trainer: Trainer, clock: "_Clock") -> dict[str, Any]:
    return {**trainer.state(), "seconds": clock.seconds()}


def _result(config: RunConfig, ranks: Ranks, trainer: Trainer, folder: RunFolder, clock: "_Clock") -> Record:
    reported = trainer.task.reported(folder.evaluations)
    seconds = clock.seconds()
    return {
        "configuration": config.to_dict(),
        "test": reported["test"],
        "reported": reported,
        "final": folder.evaluations[-1],
        "steps": trainer.step,
        "seconds": round(seconds, 2),
        "milliseconds_per_step": round(1000 * seconds / trainer.step, 4),
        "ranks": ranks.count,
    }


class _Clock:
    """The time that a run has taken, over all its processes, and what it is time for."""

    def __init__(self, checkpoint_seconds: float) -> None:
        self.earlier = 0.0
        self._checkpoint_seconds = checkpoint_seconds
        self._start = self._saved = self._told = time.monotonic()

    def seconds(self) -> float:
        return self.earlier + time.monotonic() - self._start

    def saved(self) -> None:
        self._saved = time.monotonic()

    def is_time_to_save(self) -> bool:
        return time.monotonic() - self._saved >= self._checkpoint_seconds

    def is_time_for_news(self) -> bool:
        now = time.monotonic()
        if now - self._told < NEWS_SECONDS:
            return False
        self._told = now
        return True


@contextlib.contextmanager
def precision_flags(precision: str) -> Iterator[None]:
    """float32 means float32: torch would use TF32 in convolutions by itself. Put back afterwards."""
    allow = precision != "float32"
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    # The head of a bf16 network stays in full float32; only "tf32" changes matrix products.
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = allow, precision == "tf32"
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before[:2]
        torch.backends.cudnn.benchmark = before[2]
