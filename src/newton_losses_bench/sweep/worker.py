"""A process that runs jobs of a sweep, one after another: `python -m newton_losses_bench.sweep.worker`.

It reads jobs from its standard input, one line of JSON each, and writes events to its standard output, one JSON object
per line: `begun`, those of the run, and `ended`, with the job's exit code, a message if it failed, and whether the
process `stays` for another job. It stays only after a run that ended well and left nothing behind: an error, a signal
or a compiled loss calls for a new process. It keeps the data of its last run, in case the next one uses the same.

When the input ends, the sweep is over or was killed: then a running job saves and stops.
"""

import contextlib
import gc
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import Any, TextIO

import torch

from newton_losses.errors import NewtonLossesError

from ..machine import Interrupted
from ..progress import JsonLines
from ..store import RunInUse
from ..tasks import DataCache
from .jobs import FAILED, FINISHED, IN_USE, Job, execute, in_words, train_command

_NEWS_SECONDS = 2.0


class Events(JsonLines):
    """The events of a run as lines, with its step every now and then."""

    _told = 0.0

    def _emit(self, event: str, **fields: Any) -> None:
        # If nobody listens any more, the input has ended too, and that is what stops the run.
        with contextlib.suppress(BrokenPipeError):
            super()._emit(event, **fields)

    def advanced(self, step: int, loss: float | None) -> None:
        if time.monotonic() - self._told >= _NEWS_SECONDS:
            self._told = time.monotonic()
            self._emit("advanced", step=step)

    def begun(self) -> None:
        self._emit("begun")

    def ended(self, code: int, stays: bool, message: str | None = None) -> None:
        self._emit("ended", code=code, stays=stays, **({} if message is None else {"message": message}))


class Jobs:
    """The standard input, read in a thread of its own, so that its end is noticed during a run as well."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._at_work = self._closed = False
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any] | None:
        """The next job, or `None` if there is none. From here until `done` the end of the input is a signal."""
        line = self._lines.get()
        self._at_work = True
        # Checked after the line above; the thread does it the other way round, so one of the two sees the other.
        if line is None or self._closed:
            return None
        found: dict[str, Any] = json.loads(line)
        return found

    def done(self) -> None:
        self._at_work = False

    def _read(self) -> None:
        rest = b""
        # Without Python's buffer: this thread would hold its lock when the process ends.
        while chunk := os.read(0, 65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._lines.put(line)
        self._closed = True
        self._lines.put(None)
        if self._at_work:
            os.kill(os.getpid(), signal.SIGTERM)


_FLAGS: tuple[tuple[Any, str], ...] = (
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cuda.matmul, "allow_tf32"),
)


class ProcessReset:
    """The state of a process that has run nothing yet, to be restored before the next run.

    A run restores the flags it sets and draws from generators of its own. This is for what it might forget, and for
    memory: captured graphs hold their device memory until they are collected.
    """

    def __init__(self) -> None:
        self._flags = [getattr(owner, name) for owner, name in _FLAGS]
        self._generator = torch.get_rng_state()
        self._threads = torch.get_num_threads()
        self._dtype = torch.get_default_dtype()
        self._compiled: list[Any] | None = None

    def make_room(self, configuration: dict[str, Any]) -> None:
        """Before a compiled run: forget the compiled code of networks of other shapes.

        Code of the same shape is reused. That of others would add up: the compiler keeps a few versions of a function
        and leaves further ones uncompiled.
        """
        if not configuration.get("compile"):
            return
        shape = [configuration.get(name) for name in ("task", "size", "train_maps", "batch_size", "precision")]
        if self._compiled not in (None, shape):
            torch.compiler.reset()
        self._compiled = shape

    def restore(self) -> None:
        """Make the process as it was, as far as a run can tell."""
        gc.collect()
        for (owner, name), value in zip(_FLAGS, self._flags, strict=True):
            setattr(owner, name, value)
        torch.set_rng_state(self._generator)
        if torch.get_num_threads() != self._threads:  # setting it, to any value, also stops MKL from choosing
            torch.set_num_threads(self._threads)
        torch.set_default_dtype(self._dtype)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(torch.initial_seed())
            for device in range(torch.cuda.device_count()):
                # Waiting for an unused device would take memory on it.
                if torch.cuda.memory_reserved(device):
                    torch.cuda.synchronize(device)
            torch.cuda.empty_cache()


def main() -> int:
    stream = _event_stream()
    # The sweep requests a stop with it, and a shell's background jobs are born ignoring it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reset, jobs, data = ProcessReset(), Jobs(), DataCache()
    try:
        while (job := jobs.next()) is not None:
            log = job.pop("log")
            reset.make_room(job["configuration"])
            code, stays, message = _do(Job(**job), log, Events(stream), data)
            if stays:
                reset.restore()
            jobs.done()
            Events(stream).ended(code, stays, message)
            if not stays:
                return code
    except KeyboardInterrupt:  # between two jobs there is nothing to save
        return 128 + signal.SIGINT
    return FINISHED


def _do(job: Job, log: str, events: Events, data: DataCache) -> tuple[int, bool, str | None]:
    """Run a job: its exit code, whether the process may run another, and what to say about a failure."""
    events.begun()
    _log_to(log)
    # The run folder keeps the command that trains the same run alone.
    sys.argv[1:] = [] if job.program else train_command(job.configuration)
    code, message = _execute(job, events, data)
    sys.stdout.flush()
    sys.stderr.flush()
    return code, code in (FINISHED, IN_USE) and not _compiles_its_loss(job.configuration), message


def _compiles_its_loss(configuration: dict[str, Any]) -> bool:
    """A run on paths compiles only its network, which the next one of the same shape takes over as it is.

    Sorting runs compile their losses as well, of which there are many, and the compiler gives up after a few.
    """
    return bool(configuration.get("compile")) and configuration["task"] == "sorting"


def _execute(job: Job, events: Events, data: DataCache) -> tuple[int, str | None]:
    try:
        execute(job, events, data.make_task)
    except RunInUse:
        return IN_USE, None
    except Interrupted as stop:
        return stop.exit_code, None
    except KeyboardInterrupt:
        return 128 + signal.SIGINT, None
    except NewtonLossesError as error:
        print(error, file=sys.stderr)  # it says what to do; where it comes from helps nobody
        return FAILED, in_words(error)
    except Exception as error:
        traceback.print_exc()
        return FAILED, in_words(error)
    return FINISHED, None


def _event_stream() -> TextIO:
    """The standard output, for events alone.

    What libraries print goes to the log instead, and processes that they start cannot keep the pipe open.
    """
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def _log_to(path: str) -> None:
    """Send everything printed from now on to this file."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


if __name__ == "__main__":
    sys.exit(main())
