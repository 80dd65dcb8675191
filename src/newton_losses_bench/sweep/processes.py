"""Jobs on this machine: several at once, each in a process of its own.

`worker.py` is the other side: what such a process does.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import IO

import torch

from ..store import RESULT, RunError, is_in_use, read_json, write_error
from .jobs import FINISHED, IN_USE, Job
from .mps import MultiProcessService
from .run import Counters

# Without the current folder on its path, where anything may have the name of a package.
WORKER = (sys.executable, "-P", "-m", "newton_losses_bench.sweep.worker")
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_LAST_LINES = 12
# How long to leave a run alone that another sweep is working on.
_IN_USE_SECONDS = 2.0
# The cause of a failure may pass, such as a device that is being reset.
_RETRY_SECONDS = 15.0
# A process that was asked to end may still have a run to save.
_PATIENCE_SECONDS = 60.0


class LocalPool:
    """`slots` processes at once, each started with `command` for one job.

    A job that fails is retried once, after a pause and when the others have had their turn. A job that another sweep is
    working on waits until that sweep has finished it, and then counts as done.
    """

    def __init__(self, slots: int, logs: Path, command: Sequence[str] = WORKER) -> None:
        self._slots = slots
        self._logs = logs
        self._command = list(command)
        self._stopping = threading.Event()
        self._children: dict[int, subprocess.Popen[str]] = {}
        # Each with the earliest time to begin it.
        self._waiting: list[tuple[Job, float]] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._mps = MultiProcessService()

    def start(self, jobs: list[Job], counters: Counters) -> None:
        """Start the processes; returns without waiting for them."""
        self._waiting.extend((job, 0.0) for job in jobs)
        if min(self._slots, len(jobs)) > 1 and any(_uses_cuda(job) for job in jobs):
            note = self._mps.start()
            if note is not None:
                counters.note(note)
        self._threads = [
            threading.Thread(target=self._work, args=(slot, counters), daemon=True) for slot in range(self._slots)
        ]
        for thread in self._threads:
            thread.start()

    def is_busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Ask every process once to save and end, and start no other."""
        self._stopping.set()
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End every process at once. What they had saved is intact."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        self._mps.stop()

    def _signal(self, number: int) -> None:
        with self._lock:
            for child in self._children.values():
                child.send_signal(number)

    def _work(self, slot: int, counters: Counters) -> None:
        while not self._stopping.is_set() and (entry := self._next()) is not None:
            self._attempt(*entry, slot, counters)

    def _next(self) -> tuple[Job, float] | None:
        """The first job that can begin, or the one that can begin first."""
        with self._lock:
            if not self._waiting:
                return None
            entry = min(self._waiting, key=itemgetter(1))
            self._waiting.remove(entry)
            return entry

    def _attempt(self, job: Job, not_before: float, slot: int, counters: Counters) -> None:
        if self._stopping.wait(max(0.0, not_before - time.monotonic())):
            return
        if not_before and is_in_use(Path(job.folder)):
            self._put_off(job, _IN_USE_SECONDS)
            return
        try:
            counters.start(job)
            # Another sweep over the same store may have finished it in the meantime.
            code, message = (FINISHED, None) if job.is_finished() else self._run(job, slot, counters)
            self._settle(job, code, message, counters)
        except RunError as error:
            self._fail(job, str(error), counters)
        except Exception:  # whatever it is: a thread that ended here would silently leave its runs undone
            self._fail(job, traceback.format_exc(), counters)

    def _put_off(self, job: Job, seconds: float) -> None:
        with self._lock:
            self._waiting.append((job, time.monotonic() + seconds))

    def _settle(self, job: Job, code: int, message: str | None, counters: Counters) -> None:
        # A stop can come between the result and the report of it.
        if code == FINISHED or (code in _STOPPED and job.is_finished()):
            try:
                result = read_json(Path(job.folder) / RESULT)
            except RunError as error:  # a retry would find the same
                counters.fail(job, str(error), final=True)
            else:
                counters.finish(job, result)
        elif code == IN_USE:
            counters.put_back(job)
            self._put_off(job, _IN_USE_SECONDS)
        elif self._stopping.is_set():
            counters.put_back(job)
        elif code in _STOPPED:  # somebody has stopped this one alone
            self._fail(job, "it was asked to stop", counters)
        else:
            self._fail(job, message or self._last_words(job, code), counters)

    def _fail(self, job: Job, message: str, counters: Counters) -> None:
        log = self._log(job)
        if counters.fail(job, message, str(log) if log.is_file() else None):
            self._put_off(job, _RETRY_SECONDS)

    def _run(self, job: Job, slot: int, counters: Counters) -> tuple[int, str | None]:
        """Run a job in a process: its exit code, and what it says about a failure."""
        child = self._begin(job, slot)
        if child is None:
            return _STOPPED[0], None
        try:
            message = _follow(child, job, counters)
            return child.wait(), message
        finally:
            _end(child)
            with self._lock:
                del self._children[slot]

    def _begin(self, job: Job, slot: int) -> "subprocess.Popen[str] | None":
        """Start a process with a job; `None` if the sweep is stopping.

        It has a session of its own: Ctrl-C at the terminal reaches the sweep, which then asks each process once.
        """
        # With the lock: the process is there before `stop` sends its signals, or not at all.
        with self._open_log(job) as log, self._lock:
            if self._stopping.is_set():
                return None
            try:
                child = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    env=self._environment(job, slot), encoding="utf-8", start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise RunError(f"its process could not be started ({error}).") from error
            self._children[slot] = child
            return child

    def _environment(self, job: Job, slot: int) -> dict[str, str]:
        environment = {**os.environ, **self._mps.environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if self._slots > 1:
            # Processes that all use all cores only get in each other's way.
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self._slots)))
        devices = torch.cuda.device_count()
        # A device with a number is somebody's choice, counted among all devices.
        is_chosen = ":" in job.configuration.get("device", "")
        if devices > 1 and not is_chosen and "CUDA_VISIBLE_DEVICES" not in os.environ:
            environment["CUDA_VISIBLE_DEVICES"] = str(slot % devices)
        return environment

    def _open_log(self, job: Job) -> IO[str]:
        path = self._logs
        try:
            path.mkdir(parents=True, exist_ok=True)
            path = self._log(job)
            return open(path, "w", encoding="utf-8")
        except OSError as error:
            raise write_error(path, error) from error

    def _log(self, job: Job) -> Path:
        return self._logs / f"{job.name}.txt"

    def _last_words(self, job: Job, code: int) -> str:
        how = f"it was ended by signal {-code}" if code < 0 else f"it ended with code {code}"
        try:
            lines = self._log(job).read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        except OSError:
            lines = []
        return "\n".join([how, *lines])


def _follow(child: "subprocess.Popen[str]", job: Job, counters: Counters) -> str | None:
    """Hand a job over and pass its progress on until it ends; what the process said about a failure."""
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code says how
        child.stdin.write(json.dumps(job.to_dict()) + "\n")
        child.stdin.flush()
    message, total = None, 1
    for line in child.stdout:
        try:
            event = json.loads(line)
        except ValueError:  # a kill has torn it
            continue
        kind = event["event"]
        if kind == "failed":
            message = event["message"]
        if kind == "started":
            total = max(1, event["total"])
        if kind in ("started", "advanced", "evaluated"):
            accuracy = next(iter(event.get("test", {}).values()), None)
            counters.advance(job, event["step"] / total, accuracy)
    return message


def _end(child: "subprocess.Popen[str]") -> None:
    """Let a process go. One that is still at work, as after an error here, saves and stops when its input ends."""
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(OSError):
        child.stdin.close()
    try:
        child.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    child.stdout.close()


def _uses_cuda(job: Job) -> bool:
    return job.configuration.get("device") != "cpu" and torch.cuda.is_available()
