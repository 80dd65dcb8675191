"""The training loop of both tasks, from an empty or half-done folder to a result."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from newton_losses.errors import ArgumentError

from .at_once import full_device, give_back_memory
from .clock import Clock
from .config import RunConfig
from .device import is_out_of_memory, on_device, precision_flags
from .evaluation import averaged_evaluations, evaluate
from .progress import Progress, Silent
from .ranks import Ranks, sharing_ranks
from .settings import check_at_least, option
from .signals import Interrupted, StopRequests, name_others, others_of, stop_requests
from .store import AVERAGE, Record, RunError, RunFolder
from .tasks import Task, make_task
from .train_step import Trainer
from .turns import WHEN_DONE, WHEN_NEARLY_DONE, Steps, take_turns
from .whose import errors_of, name_seed, seed_of

# Between evaluations: how long a crash may throw a run back.
CHECKPOINT_SECONDS = 60.0
# Of several runs at once: so many that those of one last while the host is busy with another's checkpoint.
STEPS_A_TURN = 100


@dataclass(frozen=True)
class PlannedRun:
    """A run to be: its configuration, its folder, and who is told how it goes."""

    config: RunConfig
    out: str
    progress: Progress | None = None


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
    plan = PlannedRun(config, out, progress)
    return run_together(
        [plan], at_once=1, make=make, overwrite=overwrite, checkpoint_seconds=checkpoint_seconds
    )[0]  # fmt: skip


def run_together(
    plans: Sequence[PlannedRun],
    *,
    at_once: int,
    fewer_if_full: bool = False,
    make: Callable[[Any], Task] = make_task,
    overwrite: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> list[Record]:
    """`run` for each of several, `at_once` of them at the same time in this process; the results in order.

    They take turns of a few steps, on CUDA in streams of their own, and each comes out as it does alone, on a CPU
    to the last bit. When one ends the next begins. If one fails, or the process is asked to stop, the others
    save and end too. Ranks of `torch.distributed` do them one after another.

    Where the device has no memory for so many, that is an error; with `fewer_if_full` half as many go on, from what
    the others have saved just then, and the one that found no room from its last checkpoint.
    """
    check_at_least("at_once", at_once, 1)
    plans = [replace(plan, config=plan.config.resolved()) for plan in plans]
    if not plans:
        return []
    precision, device = _common("precision", plans), _common("device", plans)
    with on_device(device), sharing_ranks() as ranks, stop_requests() as stop, precision_flags(precision):
        number = min(at_once, len(plans)) if ranks.count == 1 else 1
        setting = _Setting(ranks, stop, make, overwrite, checkpoint_seconds, number)
        while left := [plan for plan in plans if plan.out not in setting.results]:
            try:
                take_turns([_steps(plan, setting) for plan in left], setting.at_once, device, stop)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    _suspect_compiler(error, left)
                    raise
                # Not after a person's Ctrl-C, which all have obeyed.
                if setting.at_once == 1 or not (fewer_if_full and stop.is_own):
                    raise _full_device(error, left, setting.at_once) from error
                others = others_of(error)
            else:
                break
            setting = _with_fewer(setting, left, others)
        return [setting.results[plan.out] for plan in plans]


@dataclass(frozen=True)
class _Setting:
    """What the runs of one call have in common."""

    ranks: Ranks
    stop: StopRequests
    make: Callable[[Any], Task]
    overwrite: bool
    checkpoint_seconds: float
    at_once: int
    # By folder: whose is open or has been, and the results.
    opened: set[str] = field(default_factory=set)
    results: dict[str, Record] = field(default_factory=dict)


def _full_device(error: RuntimeError, left: Sequence[PlannedRun], at_once: int) -> RunError:
    config = next((plan.config for plan in left if plan.config.seed == seed_of(error)), left[0].config)
    told = full_device(config, at_once)
    name_others(told, others_of(error))
    if at_once == 1:
        name_seed(told, config.seed)
    return told


def _suspect_compiler(error: RuntimeError, left: Sequence[PlannedRun]) -> None:
    """A fault of the device has no author; where code was compiled, say so."""
    if "CUDA error" in str(error) and any(plan.config.compile for plan in left):
        error.add_note(
            "The run is compiled, and a kernel that torch's compiler made may be at fault. Try it without --compile in "
            "another folder, or go on from the last checkpoint with the same command."
        )


def _with_fewer(setting: _Setting, left: Sequence[PlannedRun], others: Sequence[Interrupted]) -> _Setting:
    """Half as many at once, with the memory that the others had."""
    config, number = left[0].config, setting.at_once // 2
    if not give_back_memory(config.device):
        full = full_device(config, setting.at_once)
        name_others(full, others)
        raise full
    setting.stop.withdraw()
    told = f"going on with {number} at a time" if number > 1 else "going on one after another"
    if left[0].progress is not None:
        left[0].progress.note(f"The memory of {config.device} does not hold {setting.at_once} runs at once: {told}.")
    return replace(setting, at_once=number)


def _common(name: str, plans: Sequence[PlannedRun]) -> str:
    """The one value of a setting that is the whole process's."""
    first, *others = dict.fromkeys(str(getattr(plan.config, name)) for plan in plans)
    if others:
        raise ArgumentError(
            f"Runs of one process have the same {option(name)}, and these have {', '.join([first, *others])}. Make a "
            "call for each."
        )
    return first


def _steps(plan: PlannedRun, setting: _Setting) -> Steps[Record]:
    """A run from beginning to end. It gives way after a few steps, and before whatever waits for the device."""
    ranks, stop = setting.ranks, setting.stop
    progress = (plan.progress if ranks.is_first else None) or Silent()
    # What this call has begun is never deleted by it.
    folder = RunFolder(plan.out, plan.config, overwrite=setting.overwrite and plan.out not in setting.opened)
    with errors_of(plan.config.seed), contextlib.closing(folder):
        if (result := _open(plan, setting, folder)) is not None:
            _tell_notes(folder, progress)
            setting.results[plan.out] = result
            progress.finished(result, again=True)
            return result
        trainer, earlier = _prepare(plan, setting, folder, progress)
        task = trainer.task
        yield WHEN_DONE  # the others get ready as well, before any clock starts
        clock = Clock(setting.checkpoint_seconds, earlier)
        _tell_notes(folder, progress)
        progress.started(plan.config, trainer.step, task.total_steps, folder.evaluations)
        while trainer.step < task.total_steps:
            trainer.train_step()
            if task.is_evaluation(trainer.step):
                yield WHEN_DONE
                progress.evaluating(trainer.step)
                progress.evaluated(_evaluate(ranks, trainer, folder, clock))
            asked_to_stop, is_time_to_save = ranks.largest(stop.requested or 0, clock.is_time_to_save())
            if is_time_to_save or asked_to_stop:
                yield WHEN_DONE
                _save(ranks, trainer, folder, clock)
            if asked_to_stop:
                if setting.at_once > 1:
                    progress.note(f"saved after step {trainer.step}")
                raise Interrupted(trainer.step, asked_to_stop)
            if clock.is_time_for_news():
                yield WHEN_DONE
                progress.advanced(trainer.step, trainer.last_loss())
            if trainer.step % STEPS_A_TURN == 0:
                yield WHEN_NEARLY_DONE
        result = ranks.on_first(lambda: folder.finish(_result(plan, setting, trainer, folder, clock)))
        setting.results[plan.out] = result
        progress.finished(result)
        return result


def _open(plan: PlannedRun, setting: _Setting, folder: RunFolder) -> Record | None:
    """Take the folder, and return the result that it may have."""
    (asked_to_stop,) = setting.ranks.largest(setting.stop.requested or 0)
    if asked_to_stop:
        raise Interrupted(0, asked_to_stop)
    _check_same_run(setting.ranks, plan.config)
    setting.ranks.on_first(folder.open)
    setting.opened.add(plan.out)
    return setting.ranks.on_first(lambda: folder.result)


def _prepare(plan: PlannedRun, setting: _Setting, folder: RunFolder, progress: Progress) -> tuple[Trainer, float]:
    """A trainer at the step of the last checkpoint, and the seconds that the run has taken up to it."""
    # First: a folder that cannot be used should not cost a wait for the data.
    saved = setting.ranks.on_first(folder.load)
    progress.preparing(plan.config)
    trainer = Trainer(setting.ranks.in_turn(lambda: setting.make(plan.config)), plan.config)
    if saved is None:
        return trainer, 0.0
    trainer.restore(saved)
    return trainer, saved["seconds"]


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


def _evaluate(ranks: Ranks, trainer: Trainer, folder: RunFolder, clock: Clock) -> Record:
    """Evaluate on rank 0 and save there, together with the network if it is the one to report."""
    ranks.check_same(
        trainer.replicated(),
        "The ranks of this run have come apart: after the same steps their weights are not the same. Train on machines "
        "of one kind with the same versions. The same command goes on from the last checkpoint, where they agreed.",
    )
    loss, count = trainer.take_mean_loss()

    def evaluate_and_save() -> Record:
        before = folder.evaluations[-1]["step"] if folder.evaluations else 0
        record = {**_record(trainer, loss, trainer.step - before - count), **evaluate(trainer)}
        _save_weights(trainer, folder, [*folder.evaluations, record])
        folder.save(_state(trainer, clock), record)
        return record

    record = ranks.on_first(evaluate_and_save)
    clock.saved()
    return record


def _save_weights(trainer: Trainer, folder: RunFolder, evaluations: list[Record]) -> None:
    """Keep the network, and the averaged one, if the last evaluation is the one to report of it."""
    task = trainer.task
    if task.reported(evaluations) is evaluations[-1]:
        folder.save_weights(task.model.state_dict())
    if trainer.average is None:
        return
    averaged = averaged_evaluations(evaluations)
    if task.reported(averaged) is averaged[-1]:
        with trainer.average.in_place():
            folder.save_weights(task.model.state_dict(), AVERAGE)


def _save(ranks: Ranks, trainer: Trainer, folder: RunFolder, clock: Clock) -> None:
    ranks.on_first(lambda: folder.save(_state(trainer, clock)))
    clock.saved()


def _record(trainer: Trainer, loss: float | None, not_finite_steps: int) -> Record:
    return {
        "step": trainer.step,
        "learning_rate": trainer.task.learning_rate(trainer.step - 1),
        "loss": loss,
        "not_finite_steps": not_finite_steps,
        "skipped_samples": trainer.skipped_samples(),
    }


def _state(trainer: Trainer, clock: Clock) -> dict[str, Any]:
    return {**trainer.state(), "seconds": clock.seconds()}


def _result(plan: PlannedRun, setting: _Setting, trainer: Trainer, folder: RunFolder, clock: Clock) -> Record:
    reported = trainer.task.reported(folder.evaluations)
    seconds = clock.seconds()
    return {
        "configuration": plan.config.to_dict(),
        "test": reported["test"],
        "reported": reported,
        **(
            {"averaged": trainer.task.reported(averaged_evaluations(folder.evaluations))} if plan.config.average else {}
        ),
        "final": folder.evaluations[-1],
        "not_finite_steps": folder.steps_without_loss,
        "steps": trainer.step,
        "seconds": round(seconds, 2),
        "milliseconds_per_step": round(1000 * seconds / trainer.step, 4),
        "ranks": setting.ranks.count,
        # The time of a step is that of a device shared by so many.
        "at_once": setting.at_once,
    }
