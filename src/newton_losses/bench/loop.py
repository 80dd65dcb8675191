"""The training loop of both tasks, from an empty or half-done folder to a result."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .config import RunConfig
from .interrupts import Interrupted, stop_requests
from .progress import Progress, Silent
from .run_folder import Record, RunFolder
from .tasks import Task, make_task
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
    """
    config = config.resolved()
    progress = progress or Silent()
    with RunFolder(out, config, overwrite=overwrite) as folder:
        if (result := folder.result) is not None:
            progress.finished(result, again=True)
            return result
        with stop_requests() as stop, precision_flags(config.precision):
            saved = folder.load()  # first: a folder that cannot be used should not cost a wait for the data
            progress.preparing(config)
            task = make(config)
            trainer = Trainer(task, config)
            clock = _Clock(checkpoint_seconds)
            if saved is not None:
                trainer.restore(saved)
                clock.earlier = saved["seconds"]
            for note in folder.notes:
                progress.note(note)
            progress.started(config, trainer.step, task.total_steps, folder.evaluations)
            while trainer.step < task.total_steps:
                trainer.train_step()
                _after_step(trainer, folder, progress, clock)
                if stop.requested is not None:
                    folder.save(_state(trainer, clock))
                    raise Interrupted(trainer.step, stop.requested)
            result = _result(config, task, trainer, folder, clock)
            folder.finish(result)
        progress.finished(result)
        return result


def _after_step(trainer: Trainer, folder: RunFolder, progress: Progress, clock: "_Clock") -> None:
    """Evaluate, save and tell, where it is time to."""
    if trainer.task.is_evaluation(trainer.step):
        record = _evaluate(trainer)
        if trainer.task.reported([*folder.evaluations, record]) is record:
            folder.save_weights(trainer.task.model.state_dict())
        folder.save(_state(trainer, clock), record)
        clock.saved()
        progress.evaluated(record)
    elif clock.is_time_to_save():
        folder.save(_state(trainer, clock))
        clock.saved()
    if clock.is_time_for_news():
        progress.advanced(trainer.step, trainer.last_loss())


def _evaluate(trainer: Trainer) -> Record:
    task = trainer.task
    task.model.eval()
    with torch.no_grad():
        figures = task.evaluate()
    task.model.train()
    return {
        "step": trainer.step,
        "learning_rate": task.learning_rate(trainer.step - 1),
        "loss": trainer.take_mean_loss(),
        "skipped_samples": trainer.skipped_samples(),
        **figures,
    }


def _state(trainer: Trainer, clock: "_Clock") -> dict[str, Any]:
    return {**trainer.state(), "seconds": clock.seconds()}


def _result(config: RunConfig, task: Task, trainer: Trainer, folder: RunFolder, clock: "_Clock") -> Record:
    reported = task.reported(folder.evaluations)
    seconds = clock.seconds()
    return {
        "configuration": config.to_dict(),
        "test": reported["test"],
        "reported": reported,
        "final": folder.evaluations[-1],
        "steps": trainer.step,
        "seconds": round(seconds, 2),
        "milliseconds_per_step": round(1000 * seconds / trainer.step, 4),
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
