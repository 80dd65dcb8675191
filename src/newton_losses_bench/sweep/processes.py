"""Jobs on this machine: several processes at once, each of which runs one job after another.

`worker.py` is the other side: what such a process does. They speak in lines of JSON over its standard input and output.
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
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import torch

from ..store import RESULT, RunError, is_in_use, read_json, write_error
from .jobs import FINISHED, IN_USE, Job
from .mps import MultiProcessService
from .run import Counters

ATTEMPTS = 2
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


class WorkerProcess:
    """A process started with `command`. After each job it says whether it `stays` for another.

    It has a session of its own: Ctrl-C at the terminal reaches the sweep, which then asks each process once.
    """

    def __init__(self, command: list[str], environment: dict[str, str], log: IO[str]) -> None:
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                encoding="utf-8",
                start_new_session=True,
            )
        except OSError as error:
            raise RunError(f"its process could not be started ({error}).") from error
        self.stays = True
        self.message: str | None = None
        self._is_new = True

    def is_alive(self) -> bool:
        return self._child.poll() is None

    def send_signal(self, number: int) -> None:
        self._child.send_signal(number)

    def hand_over(self, job: Job, log: Path) -> None:
        """Give it a job; whatever is printed meanwhile goes to the end of `log`."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already; `follow` finds out how
            self._child.stdin.write(json.dumps({**job.to_dict(), "log": str(log)}) + "\n")
            self._child.stdin.flush()

    def follow(self, advance: Callable[[float, float | None], None]) -> int | None:
        """Wait for the end of the job and return its exit code. `advance` gets the fraction done and the accuracy.

        `None` if the process ended after an earlier job and never read this one, which is then not to blame.
        `message` is what the process said about a failure.
        """
        assert self._child.stdout is not None
        begun, total = self._is_new, 1
        self._is_new, self.message = False, None
        for line in self._child.stdout:
            event = _event(line)
            kind = event.get("event")
            if kind == "ended":
                self.stays, self.message = bool(event["stays"]), event.get("message")
                return int(event["code"])
            begun = begun or kind == "begun"
            if kind == "started":
                total = max(1, event["total"])
            if kind in ("started", "advanced", "evaluated"):
                accuracy = next(iter(event.get("test", {}).values()), None)
                advance(event["step"] / total, accuracy)
        self.stays = False
        code = self._child.wait()
        return code if begun else None

    def end(self) -> None:
        """Let it go: an idle process ends at once, and a running job saves and stops."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()


def _event(line: str) -> dict[str, Any]:
    """The event in a line; nothing if a library has printed it."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class LocalPool:
    """`slots` processes at once, each started with `command`, which share all jobs.

    A process runs jobs as long as they end well and is replaced after any other. A job that fails is retried once,
    after a pause and when the others have had their turn. A job that another sweep is working on waits until that
    sweep has finished it, and then counts as done.
    """

    def __init__(self, slots: int, logs: Path, command: Sequence[str] = WORKER) -> None:
        self._slots = slots
        self._logs = logs
        self._command = list(command)
        self._stopping = threading.Event()
        self._workers: dict[int, WorkerProcess] = {}
        # Each with the number of the attempt, and the earliest time of it.
        self._waiting: list[tuple[Job, int, float]] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._mps = MultiProcessService()

    def start(self, jobs: list[Job], counters: Counters) -> None:
        """Start the processes; returns without waiting for them."""
        self._waiting.extend((job, 1, 0.0) for job in jobs)
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
            for worker in self._workers.values():
                worker.send_signal(number)

    def _work(self, slot: int, counters: Counters) -> None:
        try:
            while not self._stopping.is_set() and (entry := self._next()) is not None:
                self._attempt(*entry, slot, counters)
        finally:
            self._dismiss(slot)

    def _next(self) -> tuple[Job, int, float] | None:
        """The first job that can begin, or the one that can begin first."""
        with self._lock:
            if not self._waiting:
                return None
            entry = min(self._waiting, key=itemgetter(2))
            self._waiting.remove(entry)
            return entry

    def _attempt(self, job: Job, attempt: int, not_before: float, slot: int, counters: Counters) -> None:
        if self._stopping.wait(max(0.0, not_before - time.monotonic())):
            return
        if not_before and is_in_use(Path(job.folder)):
            self._wait_for_other(job, attempt)
            return
        try:
            counters.start(job)
            # Another sweep over the same store may have finished it in the meantime.
            code, message = (FINISHED, None) if job.is_finished() else self._run(job, slot, counters)
            self._settle(job, attempt, code, message, counters)
        except RunError as error:
            self._retry(job, attempt, str(error), counters)
        except Exception:  # whatever it is: a thread that ended here would silently leave its runs undone
            self._retry(job, attempt, traceback.format_exc(), counters)

    def _wait_for_other(self, job: Job, attempt: int) -> None:
        with self._lock:
            self._waiting.append((job, attempt, time.monotonic() + _IN_USE_SECONDS))

    def _settle(self, job: Job, attempt: int, code: int, message: str | None, counters: Counters) -> None:
        # A stop can come between the result and the report of it.
        if code == FINISHED or (code in _STOPPED and job.is_finished()):
            try:
                result = read_json(Path(job.folder) / RESULT)
            except RunError as error:  # a retry would find the same
                counters.fail(job, str(error), again=False)
            else:
                counters.finish(job, result)
        elif code == IN_USE:
            counters.put_back(job)
            self._wait_for_other(job, attempt)
        elif self._stopping.is_set():
            counters.put_back(job)
        elif code in _STOPPED:  # somebody has stopped this one alone
            self._retry(job, attempt, "it was asked to stop", counters)
        else:
            self._retry(job, attempt, message or self._last_words(job, code), counters)

    def _retry(self, job: Job, attempt: int, message: str, counters: Counters) -> None:
        again = attempt < ATTEMPTS
        log = self._log(job)
        counters.fail(job, message, str(log) if log.is_file() else None, again=again)
        if again:
            with self._lock:
                self._waiting.append((job, attempt + 1, time.monotonic() + _RETRY_SECONDS))

    def _run(self, job: Job, slot: int, counters: Counters) -> tuple[int, str | None]:
        with self._open_log(job) as log:
            worker = self._begin(job, slot, log)
        if worker is None:
            return _STOPPED[0], None
        try:
            code = worker.follow(lambda fraction, accuracy: counters.advance(job, fraction, accuracy))
        except BaseException:
            self._dismiss(slot)
            raise
        if not worker.stays:
            self._dismiss(slot)
        # A process that somehow ended between two jobs says nothing about the second.
        return self._run(job, slot, counters) if code is None else (code, worker.message)

    def _begin(self, job: Job, slot: int, log: IO[str]) -> WorkerProcess | None:
        """Hand a job to the slot's process, starting one if needed; `None` if the sweep is stopping."""
        if slot in self._workers and not self._workers[slot].is_alive():
            self._dismiss(slot)
        # With the lock: the job is handed over before `stop` sends its signals, or not at all.
        with self._lock:
            if self._stopping.is_set():
                return None
            if slot not in self._workers:
                self._workers[slot] = WorkerProcess(self._command, self._environment(job, slot), log)
            self._workers[slot].hand_over(job, self._log(job).resolve())
            return self._workers[slot]

    def _dismiss(self, slot: int) -> None:
        if slot not in self._workers:
            return
        # Until it has ended, `stop` and `kill` can reach it.
        self._workers[slot].end()
        with self._lock:
            del self._workers[slot]

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


def _uses_cuda(job: Job) -> bool:
    return job.configuration.get("device") != "cpu" and torch.cuda.is_available()
