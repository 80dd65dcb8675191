"""Jobs on this machine: so many processes at once, each of which does one job after another."""

import os
import signal
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
from ._process import WorkerProcess
from .counters import Tally
from .jobs import FINISHED, IN_USE, Job

ATTEMPTS = 2
# Without the current folder on its path, in which anything may be called like a package.
WORKER = (sys.executable, "-P", "-m", "newton_losses_bench.sweep.worker")
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_LAST_LINES = 12
# How long to leave a run alone that another sweep is at work on.
_IN_USE_SECONDS = 2.0
# What made a run fail may pass: a device that is being reset, a server of it that starts anew.
_RETRY_SECONDS = 15.0


class LocalPool:
    """`slots` processes at once, for all jobs one after another, each started with `command`.

    A process does jobs as long as they end well; after any other it is replaced. A job that fails is tried once
    more, not at once and when the others have had their turn. One that another sweep is at work on waits until that
    is done, and then counts as done.
    """

    def __init__(self, slots: int, logs: Path, command: Sequence[str] = WORKER) -> None:
        self._slots = slots
        self._logs = logs
        self._command = list(command)
        self._stopping = threading.Event()
        self._workers: dict[int, WorkerProcess] = {}
        # With the number of the attempt, and when it may begin.
        self._waiting: list[tuple[Job, int, float]] = []
        self._lock = threading.Lock()

    def start(self, jobs: list[Job], tally: Tally) -> None:
        """Begin; returns at once."""
        self._waiting.extend((job, 1, 0.0) for job in jobs)
        self._threads = [
            threading.Thread(target=self._work, args=(slot, tally), daemon=True) for slot in range(self._slots)
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
        """Nothing is left to close when all processes have ended."""

    def _signal(self, number: int) -> None:
        with self._lock:
            for worker in self._workers.values():
                worker.send_signal(number)

    def _work(self, slot: int, tally: Tally) -> None:
        try:
            self._do_jobs(slot, tally)
        finally:
            self._dismiss(slot)

    def _do_jobs(self, slot: int, tally: Tally) -> None:
        while not self._stopping.is_set():
            with self._lock:
                if not self._waiting:
                    return
                # The first of those that can begin, or that can do so first.
                entry = min(self._waiting, key=itemgetter(2))
                self._waiting.remove(entry)
            job, attempt, not_before = entry
            if self._stopping.wait(max(0.0, not_before - time.monotonic())):
                return
            if not_before and is_in_use(Path(job.folder)):
                self._wait_for_other(job, attempt)
                continue
            try:
                tally.start(job)
                # Another sweep over the same store may have done it in the meantime.
                code = FINISHED if job.is_finished() else self._run(job, slot, tally)
                self._settle(job, attempt, code, tally)
            except RunError as error:
                self._again(job, attempt, str(error), tally)
            except Exception:  # whatever it is: a thread that ends here would leave its runs undone without a word
                self._again(job, attempt, traceback.format_exc(), tally)

    def _wait_for_other(self, job: Job, attempt: int) -> None:
        with self._lock:
            self._waiting.append((job, attempt, time.monotonic() + _IN_USE_SECONDS))

    def _settle(self, job: Job, attempt: int, code: int, tally: Tally) -> None:
        # A stop can come between the result and the word of it.
        if code == FINISHED or (code in _STOPPED and job.is_finished()):
            try:
                result = read_json(Path(job.folder) / RESULT)
            except RunError as error:  # trying again would find the same
                tally.fail(job, str(error), again=False)
            else:
                tally.finish(job, result)
        elif code == IN_USE:
            tally.put_back(job)
            self._wait_for_other(job, attempt)
        elif self._stopping.is_set() or code in _STOPPED:
            tally.put_back(job)
            if not self._stopping.is_set():  # somebody stopped this one alone: as if it had failed
                self._again(job, attempt, "it was asked to stop", tally)
        else:
            self._again(job, attempt, self._last_words(job, code), tally)

    def _again(self, job: Job, attempt: int, message: str, tally: Tally) -> None:
        again = attempt < ATTEMPTS
        log = self._log(job)
        tally.fail(job, message, str(log) if log.is_file() else None, again=again)
        if again:
            with self._lock:
                self._waiting.append((job, attempt + 1, time.monotonic() + _RETRY_SECONDS))

    def _run(self, job: Job, slot: int, tally: Tally) -> int:
        with self._open_log(job) as log:
            worker = self._begin(job, slot, log)
        if worker is None:
            return _STOPPED[0]
        try:
            code = worker.follow(lambda fraction: tally.advance(job, fraction))
        except BaseException:
            self._dismiss(slot)
            raise
        if not worker.stays:
            self._dismiss(slot)
        # One that ended between two jobs, somehow, says nothing about the second.
        return self._run(job, slot, tally) if code is None else code

    def _begin(self, job: Job, slot: int, log: IO[str]) -> WorkerProcess | None:
        """Hand a job to the slot's process, a new one where there is none; `None` if it is too late for that."""
        if slot in self._workers and not self._workers[slot].is_alive():
            self._dismiss(slot)
        # With the lock: either the job is handed over before `stop` sends its signals, or not at all.
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
        # Until it has ended, it can be reached by `stop` and `kill`.
        self._workers[slot].end()
        with self._lock:
            del self._workers[slot]

    def _environment(self, job: Job, slot: int) -> dict[str, str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if self._slots > 1:
            # Processes that all use all cores only stand in each other's way.
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self._slots)))
        devices = torch.cuda.device_count()
        # A device with a number is counted among all that are there, and somebody's choice.
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
