"""Train one run: configuration → data and network → step → evaluate → save. Read `run` from top to bottom.

What a step is stands in `train_step.py`, what a benchmark is in `tasks/`, what a run writes in `store/`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from newton_losses.errors import NewtonLossesError

from .config import RunConfig
from .machine import Interrupted, is_out_of_memory, on_device, precision_flags, stop_requests
from .settings import option
from .store import AVERAGE, Record, RunError, RunFolder
from .tasks import TASKS, Figures, Task, Tell
from .train_step import Trainer

# A crash throws a run back by at most this much, evaluations being further apart.
CHECKPOINT_SECONDS = 60.0
# How often somebody who watches gets news; each costs a wait for the device.
NEWS_SECONDS = 0.5


class Progress:
    """The events of a run. This listener ignores them all; the others override what they report.

    Nothing is computed for an event: what costs a wait for the device comes rarely.
    """

    def preparing(self, config: RunConfig) -> None:
        """The data and the network are about to be made."""

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        """Training begins after `step` of `total` steps, with these evaluations behind it."""

    def advanced(self, step: int, loss: float | None) -> None:
        """So many steps are done; the last one had this loss, `None` if that was not finite."""

    def evaluating(self, step: int, fraction: float = 0.0) -> None:
        """An evaluation begins, which can take minutes, or this fraction of it is done."""

    def evaluated(self, record: Record) -> None:
        """An evaluation is done and saved."""

    def note(self, text: str) -> None:
        """Something to know, as that a damaged file was replaced."""

    def finished(self, result: Record, *, again: bool = False) -> None:
        """The run has its result; `again` if it had it before."""

    def close(self) -> None:
        """No event follows."""


def make_task(config: RunConfig) -> Task:
    """The task that a resolved configuration describes: its data, its network and its loss."""
    return TASKS[config.task](config)


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

    If the folder holds the same run, it resumes from the last checkpoint; on a CPU the result is the same to the last
    bit as without the interruption. A finished run only returns its result. Ctrl-C saves a checkpoint and raises
    `Interrupted`; any other error leaves the last checkpoint as it is. `make(config)` makes the task, by default that
    of the configuration.
    """
    config = config.resolved()
    progress = progress or Progress()
    with (
        stop_requests() as stop,
        RunFolder(out, config, overwrite=overwrite) as folder,
        _explained_errors(config, folder),
        on_device(config.device),
        precision_flags(config.precision),
    ):
        if (result := folder.result) is not None:
            _pass_on_notes(folder, progress)
            progress.finished(result, again=True)
            return result

        # The checkpoint is read before the data: a folder that cannot be used should not cost a wait for a download.
        checkpoint = folder.load()
        progress.preparing(config)
        task = make(config)
        trainer = Trainer(task, config)
        if checkpoint is not None:
            trainer.restore(checkpoint)
        _pass_on_notes(folder, progress)

        clock = _Clock(checkpoint["seconds"] if checkpoint else 0.0)
        progress.started(config, trainer.step, task.total_steps, folder.evaluations)
        while trainer.step < task.total_steps:
            trainer.train_step()

            if trainer.step % task.eval_every == 0 or trainer.step == task.total_steps:
                record = _evaluate(trainer, folder.evaluations, progress)
                _save_weights(trainer, folder, [*folder.evaluations, record])
                folder.save({**trainer.state(), "seconds": clock.seconds()}, record)
                clock.last_save = time.monotonic()
                progress.evaluated(record)

            if stop.requested or time.monotonic() - clock.last_save >= checkpoint_seconds:
                folder.save({**trainer.state(), "seconds": clock.seconds()})
                clock.last_save = time.monotonic()

            if stop.requested:
                raise Interrupted(trainer.step, stop.requested)

            if time.monotonic() - clock.last_news >= NEWS_SECONDS:
                progress.advanced(trainer.step, trainer.last_loss())
                clock.last_news = time.monotonic()

        result = folder.finish(_result(config, task, folder, trainer.step, clock.seconds()))
        progress.finished(result)
        return result


class _Clock:
    """The seconds that a run has taken over all its processes, and when it last saved and reported."""

    def __init__(self, earlier: float) -> None:
        self._start = time.monotonic() - earlier
        self.last_save = self.last_news = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._start


def _pass_on_notes(folder: RunFolder, progress: Progress) -> None:
    for note in folder.notes:
        progress.note(note)


# Evaluating


def _evaluate(trainer: Trainer, earlier: list[Record], progress: Progress) -> Record:
    """The record of an evaluation; the figures of averaged weights, on the same sets, are under `averaged`."""
    loss, finite_steps = trainer.take_mean_loss()
    progress.evaluating(trainer.step)  # now the device has done all steps, and none of their time counts as evaluating
    tell = _seldom(partial(progress.evaluating, trainer.step))
    steps = trainer.step - (earlier[-1]["step"] if earlier else 0)
    record: Record = {
        "step": trainer.step,
        "learning_rate": trainer.learning_rate(trainer.step - 1),
        "loss": loss,
        "not_finite_steps": steps - finite_steps,
        "skipped_samples": trainer.skipped_samples(),
    }
    if trainer.average is None:
        return {**record, **_figures(trainer.task, tell)}
    with trainer.average.in_place(), _drawn_again(trainer.task):
        averaged = _figures(trainer.task, lambda fraction: tell(fraction / 2))
    return {**record, **_figures(trainer.task, lambda fraction: tell((1 + fraction) / 2)), "averaged": averaged}


def _figures(task: Task, tell: Tell) -> Figures:
    task.model.eval()
    with torch.no_grad():
        figures = task.evaluate(tell)
    task.model.train()
    return figures


def _seldom(tell: Tell) -> Tell:
    """`tell`, at most once in `NEWS_SECONDS`."""
    last = time.monotonic()

    def told(fraction: float) -> None:
        nonlocal last
        if time.monotonic() - last >= NEWS_SECONDS:
            tell(fraction)
            last = time.monotonic()

    return told


@contextlib.contextmanager
def _drawn_again(task: Task) -> Iterator[None]:
    """Whatever is drawn in here is drawn once more afterwards."""
    states = {name: generator.get_state() for name, generator in task.generators.items()}
    yield
    for name, generator in task.generators.items():
        generator.set_state(states[name])


def _averaged(evaluations: list[Record]) -> list[Record]:
    """The evaluations of the averaged weights, as if they were those of a run of their own."""
    return [{"step": record["step"], **record["averaged"]} for record in evaluations]


def _save_weights(trainer: Trainer, folder: RunFolder, evaluations: list[Record]) -> None:
    """Keep the network, and the averaged one, if the last evaluation is so far the one to report."""
    task = trainer.task
    if task.reported(evaluations) is evaluations[-1]:
        folder.save_weights(task.model.state_dict())
    if trainer.average is not None:
        averaged = _averaged(evaluations)
        if task.reported(averaged) is averaged[-1]:
            with trainer.average.in_place():
                folder.save_weights(task.model.state_dict(), AVERAGE)


def _result(config: RunConfig, task: Task, folder: RunFolder, steps: int, seconds: float) -> Record:
    reported = task.reported(folder.evaluations)
    return {
        "configuration": config.to_dict(),
        "test": reported["test"],
        "reported": reported,
        **({"averaged": task.reported(_averaged(folder.evaluations))} if config.average else {}),
        "final": folder.evaluations[-1],
        "not_finite_steps": _steps_without_loss(folder.evaluations),
        "steps": steps,
        "seconds": round(seconds, 2),
        "milliseconds_per_step": round(1000 * seconds / steps, 4),
    }


def _steps_without_loss(evaluations: list[Record]) -> int:
    """How many steps had no finite loss since the last evaluation before which all of them had one."""
    found = 0
    for record in evaluations:
        here = record.get("not_finite_steps", 0)
        found = found + here if here else 0
    return found


# Errors


@contextlib.contextmanager
def _explained_errors(config: RunConfig, folder: RunFolder) -> Iterator[None]:
    """Say in a sentence what ended a run; the traceback of an unexpected error goes to the run folder."""
    try:
        yield
    except (NewtonLossesError, Interrupted, ModuleNotFoundError, BrokenPipeError):
        raise  # sentences already, or the command makes one of them; nobody reads what is said into a broken pipe
    except Exception as error:
        raise _explain(error, config, folder) from error


def _explain(error: Exception, config: RunConfig, folder: RunFolder) -> RunError:
    if is_out_of_memory(error):
        sizes = [option(name) for name in ("batch_size", "n", "num_samples") if getattr(config, name, None) is not None]
        return RunError(
            f"This run does not fit into the memory of {config.device}. A smaller {' or '.join(sizes)} needs less, but "
            "is another run, in another folder. The last checkpoint is kept: rerun the command to resume once more "
            "memory is free."
        )
    traceback = folder.keep_traceback(error)
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    hint = ""
    if config.compile and "CUDA error" in message:
        # A fault of the device does not say which kernel it came from.
        hint = " The run is compiled, and a kernel made by torch's compiler may be at fault: try it without --compile."
    where = f" Its traceback is in {traceback}." if traceback else ""
    return RunError(
        f"{folder.path}: the run failed with {message}.{where}{hint} The last checkpoint is kept: fix the cause and "
        "rerun the command to resume."
    )
