"""A process for runs of a sweep, one after another: `python -m newton_losses_bench.sweep.worker`.

It reads jobs from its standard input, a line of JSON each, and writes events to its standard output, one JSON object
a line: `begun`, those of the run, and `ended` with the exit code that a process of this one job would have had and
with whether the process `stays` for another. It does so only after a run that ended well and left nothing
behind: an error, a signal or a compiled loss is a reason for a new process. What stays with it is the data of its last
run, in case that the next one has the same.

When the input ends, the sweep is over, or it is no more: then a run that is at work saves and stops.
"""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import Any, TextIO

from newton_losses.errors import NewtonLossesError

from ..progress import JsonLines
from ..signals import Interrupted
from ..store import RunInUse
from ..tasks import KeptData
from ._command import train_command
from .jobs import FAILED, FINISHED, IN_USE, Job, execute
from .process_reset import FreshProcess

_NEWS_SECONDS = 2.0


class Events(JsonLines):
    """The events of a run as lines, with its step every now and then."""

    _told = 0.0

    def _emit(self, event: str, **fields: Any) -> None:
        # Nobody listens any more: then the input has ended too, and that is what stops the run.
        with contextlib.suppress(BrokenPipeError):
            super()._emit(event, **fields)

    def advanced(self, step: int, loss: float | None) -> None:
        if time.monotonic() - self._told >= _NEWS_SECONDS:
            self._told = time.monotonic()
            self._emit("advanced", step=step)

    def begun(self) -> None:
        self._emit("begun")

    def ended(self, code: int, stays: bool) -> None:
        self._emit("ended", code=code, stays=stays)


class Jobs:
    """What comes in, read in a thread of its own, so that the end of it is noticed during a run as well."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._at_work = self._closed = False
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any] | None:
        """The next job, or `None` when there is no other. From now on until `done` the end of the input is a signal."""
        line = self._lines.get()
        self._at_work = True
        # Looked at after the above, as the thread does it the other way round: one of the two sees the other.
        if line is None or self._closed:
            return None
        found: dict[str, Any] = json.loads(line)
        return found

    def done(self) -> None:
        self._at_work = False

    def _read(self) -> None:
        rest = b""
        # Without a buffer of Python's: it would be locked by this thread when the process ends.
        while chunk := os.read(0, 65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._lines.put(line)
        self._closed = True
        self._lines.put(None)
        if self._at_work:
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    stream = _event_stream()
    # The sweep asks for a stop with it, and a shell's background jobs are born ignoring it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fresh, jobs, data = FreshProcess(), Jobs(), KeptData()
    try:
        while (job := jobs.next()) is not None:
            log = job.pop("log")
            fresh.make_room(job["configuration"])
            code, stays = _do(Job(**job), log, Events(stream), data)
            if stays:
                fresh.restore()
            jobs.done()
            Events(stream).ended(code, stays)
            if not stays:
                return code
    except KeyboardInterrupt:  # between two jobs there is nothing to save
        return 128 + signal.SIGINT
    return FINISHED


def _do(job: Job, log: str, events: Events, data: KeptData) -> tuple[int, bool]:
    """Do a job; how it ended, and whether the process may do another."""
    events.begun()
    _log_to(log)
    # The run folder tells the command that makes the same run alone.
    sys.argv[1:] = train_command(job.configuration)
    code = _execute(job, events, data)
    sys.stdout.flush()
    sys.stderr.flush()
    return code, code in (FINISHED, IN_USE) and not _compiles_its_loss(job.configuration)


def _compiles_its_loss(configuration: dict[str, Any]) -> bool:
    """A run on paths compiles its network alone, and the next one of the same shape takes that over as it is.

    Those that sort compile their losses as well, of which there are many, and the compiler gives up after a few.
    """
    return bool(configuration.get("compile")) and configuration["task"] == "sorting"


def _execute(job: Job, events: Events, data: KeptData) -> int:
    try:
        execute(job, events, data.make_task)
    except RunInUse:
        return IN_USE
    except Interrupted as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except NewtonLossesError as error:
        print(error, file=sys.stderr)  # it says what to do; where it comes from helps nobody
        return FAILED
    except Exception:
        traceback.print_exc()
        return FAILED
    return FINISHED


def _event_stream() -> TextIO:
    """The standard output, for events alone.

    What libraries print goes to the log instead, and processes that they start cannot keep the pipe open.
    """
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def _log_to(path: str) -> None:
    """Let all that is printed from now on go to this file."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


if __name__ == "__main__":
    sys.exit(main())
