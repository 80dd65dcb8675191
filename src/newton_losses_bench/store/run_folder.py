"""The folder of one run: its configuration, its evaluations, two checkpoints, its result, and a lock on it all.

    config.json             the configuration, and the versions that it ran with; other ones with which it resumed, too
    evaluations.jsonl       one line per evaluation
    checkpoint.pt           everything that resuming needs; checkpoint.previous.pt is the one before
    weights.pt              the network that the result is about; weights.average.pt that of its averaged figures
    result.json             written last: a folder that has it is finished
    error.txt               the traceback of an unexpected error, until the run is finished

A checkpoint holds the evaluations up to its step, and it is on the disk before they are. So the lines on the disk never
know more than the checkpoint, and after a crash they are written again from it.
"""

import contextlib
import io
import json
import os
import traceback
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from ..config import RunConfig, configuration_class
from ..machine import changed_versions, device_kind, environment, take_lock
from ..settings import option
from .atomic_io import (
    BadCheckpoint,
    Record,
    RunError,
    checksummed_json,
    file_checksum,
    read_checkpoint,
    read_json,
    sync_folder,
    write_atomically,
    write_checkpoint,
    write_error,
)

CONFIG, EVALUATIONS, RESULT = "config.json", "evaluations.jsonl", "result.json"
WEIGHTS, AVERAGE = "weights.pt", "weights.average.pt"
CHECKPOINT, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
ERROR = "error.txt"
# The configuration is deleted last: until then an interrupted deletion can be repeated.
_OWN_FILES = (EVALUATIONS, RESULT, WEIGHTS, AVERAGE, CHECKPOINT, PREVIOUS, ERROR, CONFIG)
_LOCK = ".lock"


class RunInUse(RunError):
    """Another process is at work in a run folder."""


class RunFolder:
    """The folder at `path`, opened for a run with this (resolved) configuration; use it in a `with`.

    Refused with a `RunError`: a folder in use by another process, one that holds a run with another configuration, one
    that holds something else, and one that cannot be written. `overwrite` deletes the files of the run that is there
    and starts over.
    """

    def __init__(self, path: str | os.PathLike[str], config: RunConfig, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.config = config
        self.evaluations: list[Record] = []
        self.notes: list[str] = []
        self._overwrite = overwrite
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(self.path)
        except OSError as error:
            raise write_error(self.path, error) from error
        try:
            cleared = self._overwrite and self._clear()
            self._agree_on_configuration(may_hold_others=cleared)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        """Release the lock. The kernel does so, too, however the process ends."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Reading

    @property
    def result(self) -> Record | None:
        """The result of a finished run, else `None`. Damage to it is an error, damage to its files a note."""
        if not (self.path / RESULT).exists():
            return None
        result = read_json(self.path / RESULT)
        for name, checksum in result.get("files", {}).items():
            found = file_checksum(self.path / name)
            # Weights may have been removed to save space; only wrong ones are worth a note.
            if found == checksum or (found is None and name != EVALUATIONS):
                continue
            what = "missing" if found is None else f"damaged, its checksum is not the one in {RESULT}. Do not use it"
            consequence = "the result is not affected."
            if name == EVALUATIONS:
                consequence = (
                    "the figures of the result are not affected, but reports and tables leave the run out. Restore "
                    f"it; or, while the checkpoint is there, delete {RESULT} and rerun the command, which writes both."
                )
            self.notes.append(f"{self.path / name}: {what}; {consequence}")
        return result

    def load(self) -> Record | None:
        """The state to resume from, or `None` for a new run. Brings `evaluations` to the state's step."""
        state = self._newest_checkpoint()
        if state is None:
            if (self.path / EVALUATIONS).exists():
                raise RunError(
                    f"{self.path}: there are evaluations but no checkpoint to resume from; it was removed. Nothing has "
                    "been changed. Choose another folder, or add --overwrite to start over here."
                )
            return None
        self.evaluations = [json.loads(line) for line in state["evaluations"]]
        self._write_evaluations()
        self._note_other_environment(state["step"])
        return state

    def _note_other_environment(self, step: int) -> None:
        """Keep the environment of this process beside the earlier ones if it may compute other digits."""
        stored = read_json(self.path / CONFIG)
        first = stored.get("environment")
        if not isinstance(first, dict):
            return
        earlier, now = first.get("resumed", []), environment()
        changes = changed_versions(earlier[-1] if earlier else first, now)
        if not changes:
            return
        self.notes.append(
            f"resuming with {', '.join(changes)}: the result may differ in its last digits from that of a run without "
            f"this change. {CONFIG} keeps both."
        )
        entry = {"after_step": step, **now, "started": _time()}
        changed = {**stored, "environment": {**first, "resumed": [*earlier, entry]}}
        write_atomically(self.path / CONFIG, checksummed_json(changed))

    def _newest_checkpoint(self) -> Record | None:
        damaged: BadCheckpoint | None = None
        for name in (CHECKPOINT, PREVIOUS):
            if not (self.path / name).exists():
                continue
            try:
                state = read_checkpoint(self.path / name)
            except BadCheckpoint as error:
                damaged = damaged or error
                continue
            if damaged:
                self.notes.append(f"{damaged} Resuming from the previous one, of step {state['step']}.")
            return state
        if damaged:
            raise RunError(
                f"{damaged} There is no older one that can be read. Nothing has been changed. Restore the file, choose "
                "another folder, or add --overwrite to start over here."
            )
        return None

    # Writing

    def save(self, state: Record, evaluation: Record | None = None) -> None:
        """Write a checkpoint and, if this step was evaluated, add the evaluation to the others."""
        evaluations = [*self.evaluations, evaluation] if evaluation else self.evaluations
        state = {**state, "evaluations": [json.dumps(record) for record in evaluations]}
        newest = self.path / CHECKPOINT
        fresh = self.path / f".{CHECKPOINT}.new"
        write_checkpoint(fresh, state)
        try:
            if newest.exists():
                os.replace(newest, self.path / PREVIOUS)
            os.replace(fresh, newest)
        except OSError as error:
            raise write_error(newest, error) from error
        sync_folder(self.path)
        if evaluation:
            self.evaluations = evaluations
            self._write_evaluations()

    def _write_evaluations(self) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in self.evaluations)
        write_atomically(self.path / EVALUATIONS, lines.encode())

    def save_weights(self, weights: dict[str, torch.Tensor], name: str = WEIGHTS) -> None:
        """Write a network's `state_dict`, to be read with `torch.load(..., weights_only=True)`."""
        buffer = io.BytesIO()
        torch.save({name: tensor.cpu() for name, tensor in weights.items()}, buffer)
        write_atomically(self.path / name, buffer.getvalue())

    def finish(self, result: Record) -> Record:
        """Write the result, and return it: from now on the run is finished."""
        names = (EVALUATIONS, WEIGHTS, AVERAGE)
        checksums = {name: found for name in names if (found := file_checksum(self.path / name)) is not None}
        result = {**result, "files": checksums}
        write_atomically(self.path / RESULT, checksummed_json(result))
        with contextlib.suppress(OSError):
            (self.path / ERROR).unlink(missing_ok=True)
        return result

    def keep_traceback(self, error: Exception) -> Path | None:
        """Write the traceback of an error that ended the run; `None` if that is not possible."""
        try:
            (self.path / ERROR).write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        except OSError:
            return None
        return self.path / ERROR

    # Which run the folder belongs to

    def _agree_on_configuration(self, may_hold_others: bool) -> None:
        wanted = json.loads(json.dumps(self.config.to_dict()))
        file = self.path / CONFIG
        if not file.exists():
            others = sorted(p.name for p in self.path.iterdir() if not p.name.startswith("."))
            if others and not may_hold_others:
                raise RunError(
                    f"{self.path} is not a run folder and holds other files ({', '.join(others[:3])}…). "
                    "Choose a new folder with --out."
                )
            self._write_configuration(wanted)
            return
        stored = read_json(file).get("configuration", {})
        if not isinstance(stored, dict):
            raise RunError(f"{file}: its configuration is not a JSON object. Restore it, or use another folder.")
        # A setting that an early version did not have yet had what is now its default.
        stored = {**{one.name: one.default for one in fields(self.config) if one.default is not MISSING}, **stored}
        names = [name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)]
        # The same data may lie elsewhere today, and the same kind of device have another number.
        if device_kind(str(stored.get("device"))) == device_kind(self.config.device):
            names = [name for name in names if name != "device"]
        names = [name for name in names if name != "data_root"]
        # Other tasks have other settings; settings of another version count unless they are switched off.
        names = ["task"] if "task" in names else [n for n in names if n in wanted or stored[n]]
        if names and not any((self.path / name).exists() for name in (CHECKPOINT, PREVIOUS, EVALUATIONS, RESULT)):
            # A run that never got anywhere, as with a forgotten data set: nothing to protect.
            self._write_configuration(wanted)
        elif names:
            lines = [_difference(name, stored, wanted) for name in names]
            resume = "Use the same settings"
            if not wanted.keys() >= set(names):
                resume = f"Use the version of newton-losses that has these settings, named in its {CONFIG},"
            raise RunError(
                f"{self.path} holds a run with another configuration:\n"
                + "\n".join(lines)
                + f"\n{resume} to resume it, "
                "choose another folder with --out, or add --overwrite to delete it."
            )

    def _write_configuration(self, configuration: Record) -> None:
        content = {"configuration": configuration, "environment": {**environment(), "started": _time()}}
        write_atomically(self.path / CONFIG, checksummed_json(content))

    def _clear(self) -> bool:
        """Delete the run that is here, and nothing else; whether there was one."""
        if not (self.path / CONFIG).exists():
            return False
        for name in _OWN_FILES:
            try:
                (self.path / name).unlink(missing_ok=True)
            except OSError as error:
                raise write_error(self.path / name, error) from error
        return True


def _difference(name: str, stored: Record, wanted: Record) -> str:
    if name not in wanted:
        return f"  {name}: {stored[name]} there, a setting that this version does not have"
    return f"  {name if name == 'task' else option(name)}: {stored.get(name)} there, {wanted[name]} here"


def _time() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def compact(folder: Path) -> None:
    """Remove checkpoints and weights of a finished run: what is left is a few kilobytes."""
    configuration = read_json(folder / CONFIG)["configuration"]
    with RunFolder(folder, configuration_class(configuration["task"]).from_dict(configuration)) as locked:
        if locked.result is not None:
            for name in (CHECKPOINT, PREVIOUS, WEIGHTS, AVERAGE):
                (folder / name).unlink(missing_ok=True)


def is_in_use(path: Path) -> bool:
    """Whether another process is at work in a run folder right now."""
    if not (path / _LOCK).exists():
        return False
    try:
        os.close(_take_lock(path))
    except RunInUse:
        return True
    return False


def _take_lock(folder: Path) -> int:
    """Lock a run folder for this process, and leave the process's number in the lock for others to name."""
    try:
        lock = take_lock(folder / _LOCK, wait=False)
    except BlockingIOError:
        owner = (folder / _LOCK).read_text(encoding="utf-8").strip()
        who = f" (process {owner})" if owner else ""
        raise RunInUse(
            f"{folder} is in use by another run{who}. Wait until it has ended, or choose another folder with --out."
        ) from None
    with contextlib.suppress(OSError):  # a full disk is no reason to refuse here: nothing depends on the number
        os.truncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
    return lock
