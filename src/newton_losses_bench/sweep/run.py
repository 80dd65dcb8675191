"""Running a sweep: the jobs that have no result yet, here or on a cluster, until all are done or it is stopped."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ..config import identity
from ..machine import stop_requests
from ..store import Store
from .display import Lines
from .jobs import Job, tidy

# How often a run is tried.
ATTEMPTS = 2
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Failure:
    """A job that failed for good: the end of its output, and the file with all of it."""

    job: Job
    message: str
    log: str | None = None


class Counters:
    """What is done, running and failed, and how long the rest may take. Passes every event on to a listener, one at a
    time, whichever thread it comes from.

    `finished_before` jobs were done when the sweep began. For each running job, `running` has the fraction done and
    `accuracy` the last test accuracy, once there is one.
    """

    def __init__(self, to_do: int, finished_before: int, listener: Lines) -> None:
        self.to_do, self.finished_before = to_do, finished_before
        self.finished: list[Job] = []
        self.failures: list[Failure] = []
        self.running: dict[str, float] = {}
        self.accuracy: dict[str, float] = {}
        self._begun_at: dict[str, float] = {}
        self._failed = Counter[str]()
        self._listener = listener
        self._lock = threading.RLock()
        # The clock starts with the first report of a job: starting processes says nothing about their pace. On a
        # cluster jobs report nothing but their end.
        self._created = time.monotonic()
        self._began: float | None = None
        listener.sweep_started(self)

    @property
    def total(self) -> int:
        return self.to_do + self.finished_before

    @property
    def done(self) -> int:
        return len(self.finished) + self.finished_before

    def start(self, job: Job) -> None:
        with self._telling():
            self.running[job.name] = 0.0
            self._listener.job_started(job, self)

    def advance(self, job: Job, fraction: float, accuracy: float | None = None) -> None:
        """A running job has come this far. Its first report says where it resumed."""
        with self._telling():
            self._began = self._began or time.monotonic()
            self._begun_at.setdefault(job.name, fraction)
            self.running[job.name] = fraction
            if accuracy is not None:
                self.accuracy[job.name] = accuracy
            self._listener.job_advanced(job, self)

    def finish(self, job: Job, result: dict[str, Any]) -> None:
        with self._telling():
            self.put_back(job)
            self.finished.append(job)
            self._listener.job_finished(job, result, self)

    def fail(self, job: Job, message: str, log: str | None = None, *, final: bool = False) -> bool:
        """A job has failed. Returns whether to try it again; after a `final` failure there is no use."""
        self._failed[job.name] += 1
        again = not final and self._failed[job.name] < ATTEMPTS
        with self._telling():
            self.put_back(job)
            if not again:
                self.failures.append(Failure(job, message, log))
            self._listener.job_failed(job, message, again, self)
        return again

    def put_back(self, job: Job) -> None:
        """A job was stopped, or another sweep is running it at the moment."""
        with self._lock:
            for by_name in (self.running, self.accuracy, self._begun_at):
                by_name.pop(job.name, None)

    def stop(self) -> None:
        """A stop was requested; running jobs save first."""
        with self._telling():
            self._listener.sweep_stopping()

    def note(self, text: str) -> None:
        with self._telling():
            self._listener.note(text)

    def pass_time(self) -> None:
        """Let the listener say how far everything is, if it has been silent for long."""
        with self._telling():
            self._listener.time_passed(self)

    def seconds_left(self) -> float:
        """At the pace so far, in jobs per second; parts of running jobs count. NaN before there is a pace."""
        with self._lock:
            here = sum(self.running[name] - self._begun_at.get(name, 0.0) for name in self.running)
            parts = sum(self.running.values())
            gone = len(self.finished) + here
            left = self.to_do - len(self.finished) - len(self.failures) - parts
            elapsed = time.monotonic() - (self._created if self._began is None else self._began)
        return max(left, 0.0) * elapsed / gone if gone > 0 else float("nan")

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        # If nobody reads at the other end of a closed pipe, that is no reason to stop training.
        with self._lock, contextlib.suppress(OSError):
            yield


class Pool(Protocol):
    """Where jobs run. `stop` asks running jobs to save and end; `kill` ends them at once; `close` comes last."""

    def start(self, jobs: list[Job], counters: Counters) -> None: ...
    def is_busy(self) -> bool: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended: runs finished before it and in it, failures, and the signal that stopped it, if any."""

    total: int
    finished_before: int
    finished: int
    failures: tuple[Failure, ...]
    stopped_by: int | None

    @property
    def exit_code(self) -> int:
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        # By what was done, not only by what failed: a lost run is no success either.
        return 0 if self.finished_before + self.finished == self.total else 1


def run_sweep(jobs: Iterable[Job], store: Store, listener: Lines, pool: Pool) -> SweepResult:
    """Run the jobs that have no record in the store.

    A record counts wherever in the store it lies, whatever its folder is called. The first Ctrl-C, or a polite
    `kill`, lets every run save its state; a second one ends them at once.
    """
    wanted, to_do = split(jobs, store)
    for job in wanted:
        if not job.keep_weights:
            tidy(job)
    counters = Counters(len(to_do), len(wanted) - len(to_do), listener)
    # The listener answers Ctrl-C: bars of several rows would wipe out what anyone else writes.
    with stop_requests(answers=False) as stop:
        try:
            pool.start(to_do, counters)
            asked = False
            while pool.is_busy():
                time.sleep(_LOOK_SECONDS)
                counters.pass_time()
                if stop.requested is not None and not asked:
                    asked = True
                    counters.stop()
                    pool.stop()
        except BaseException:
            pool.kill()
            raise
        finally:
            listener.close()
            pool.close()
    return SweepResult(
        counters.total, counters.finished_before, len(counters.finished), tuple(counters.failures), stop.requested
    )


def split(jobs: Iterable[Job], store: Store) -> tuple[list[Job], list[Job]]:
    """The jobs without repetitions, and those of them that have no record in the store."""
    wanted = {identity(job.configuration): job for job in jobs}
    done = {record.identity for record in store.records()}
    return list(wanted.values()), [job for key, job in wanted.items() if key not in done]
