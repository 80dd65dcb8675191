"""The books of a sweep: what is done, what runs, what failed, and how long it may still take."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from .jobs import Job


@dataclass(frozen=True)
class Failure:
    """A job that failed for good, with the end of what it said and the file with all of it."""

    job: Job
    message: str
    log: str | None = None


class Listener(Protocol):
    """Who is told what happens in a sweep. Calls come one at a time, from any thread."""

    def sweep_started(self, tally: "Tally") -> None: ...
    def job_started(self, job: Job, tally: "Tally") -> None: ...
    def job_advanced(self, job: Job, tally: "Tally") -> None: ...
    def job_finished(self, job: Job, result: dict[str, Any], tally: "Tally") -> None: ...
    def job_failed(self, job: Job, message: str, again: bool, tally: "Tally") -> None: ...
    def sweep_stopping(self) -> None: ...
    def close(self) -> None: ...


class Tally:
    """Counts jobs, and tells a listener. `finished_before` were done when the sweep began."""

    def __init__(self, to_do: int, finished_before: int, listener: Listener) -> None:
        self.to_do, self.finished_before = to_do, finished_before
        self.finished: list[Job] = []
        self.failures: list[Failure] = []
        self.running: dict[str, float] = {}
        self._begun_at: dict[str, float] = {}
        self._listener = listener
        self._lock = threading.RLock()
        self._began = time.monotonic()
        listener.sweep_started(self)

    @property
    def total(self) -> int:
        return self.to_do + self.finished_before

    @property
    def done(self) -> int:
        return len(self.finished) + self.finished_before

    def start(self, job: Job) -> None:
        with self._lock:
            self.running[job.name] = 0.0
            with _a_reader_who_may_have_left():
                self._listener.job_started(job, self)

    def advance(self, job: Job, fraction: float) -> None:
        """A running job has come so far. Its first word says from where it goes on."""
        with self._lock:
            self._begun_at.setdefault(job.name, fraction)
            self.running[job.name] = fraction
            with _a_reader_who_may_have_left():
                self._listener.job_advanced(job, self)

    def finish(self, job: Job, result: dict[str, Any]) -> None:
        with self._lock:
            self._leave(job)
            self.finished.append(job)
            with _a_reader_who_may_have_left():
                self._listener.job_finished(job, result, self)

    def fail(self, job: Job, message: str, log: str | None = None, *, again: bool) -> None:
        """A job has failed; `again` says whether it gets another chance."""
        with self._lock:
            self._leave(job)
            if not again:
                self.failures.append(Failure(job, message, log))
            with _a_reader_who_may_have_left():
                self._listener.job_failed(job, message, again, self)

    def put_back(self, job: Job) -> None:
        """A job was stopped, or is done elsewhere at the moment."""
        with self._lock:
            self._leave(job)

    def stop(self) -> None:
        """Somebody has asked for it; jobs at work save first."""
        with self._lock, _a_reader_who_may_have_left():
            self._listener.sweep_stopping()

    def seconds_left(self) -> float:
        """At the pace so far, in jobs a second; parts of running ones count. NaN before there is a pace."""
        with self._lock:
            here = sum(self.running[name] - self._begun_at.get(name, 0.0) for name in self.running)
            parts = sum(self.running.values())
            gone = len(self.finished) + here
            left = self.to_do - len(self.finished) - len(self.failures) - parts
            elapsed = time.monotonic() - self._began
        return max(left, 0.0) * elapsed / gone if gone > 0 else float("nan")

    def _leave(self, job: Job) -> None:
        self.running.pop(job.name, None)
        self._begun_at.pop(job.name, None)


@contextlib.contextmanager
def _a_reader_who_may_have_left() -> Iterator[None]:
    """Nobody reads at the other end of a closed pipe. That is no reason to stop training."""
    with contextlib.suppress(OSError):
        yield
