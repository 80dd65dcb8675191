"""The process of one run of a sweep: `python -m newton_losses_bench.sweep.worker`.

It reads its job from the standard input, a line of JSON, writes the run's events to the standard output, one JSON
object per line, and ends with the job's exit code. The standard error is the run's log. When the input ends, the sweep
is gone: then the run saves and stops.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any, TextIO

from newton_losses.errors import NewtonLossesError

from ..machine import Interrupted
from ..progress import JsonLines
from ..store import RunInUse
from .jobs import FAILED, FINISHED, IN_USE, Job, execute, in_words, train_command


class Events(JsonLines):
    """The events of a run as lines, with its step every now and then, and what to say about a failure."""

    def _emit(self, event: str, **fields: Any) -> None:
        # If nobody listens any more, the input has ended too, and that is what stops the run.
        with contextlib.suppress(BrokenPipeError):
            super()._emit(event, **fields)

    def advanced(self, step: int, loss: float | None) -> None:
        self._emit("advanced", step=step)

    def failed(self, message: str) -> None:
        self._emit("failed", message=message)


def main() -> int:
    events = Events(_event_stream())
    # The sweep requests a stop with it, and a shell's background jobs are born ignoring it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = Job(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_stop_with_the_sweep, daemon=True).start()
    # The run folder keeps the command that trains the same run alone.
    sys.argv[1:] = train_command(job.configuration)
    try:
        execute(job, events)
    except RunInUse:
        return IN_USE
    except Interrupted as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        events.failed(in_words(error))
        with contextlib.suppress(OSError):  # a full disk is full for the log as well
            if isinstance(error, NewtonLossesError):
                print(error, file=sys.stderr)  # it says what to do; where it comes from helps nobody
            else:
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


def _stop_with_the_sweep() -> None:
    # Without Python's buffer: this thread would hold its lock when the process ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
