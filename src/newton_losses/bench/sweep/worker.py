"""The process of one run of a sweep: `python -m newton_losses.bench.sweep.worker`, with the job as a line of JSON.

It reads the job from its standard input and writes events to its standard output, one JSON object a line. When
the input ends, the sweep is no more, and the run saves and stops. Its exit code says how it ended.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import TextIO

from ...errors import NewtonLossesError
from ..interrupts import Interrupted
from ..progress import JsonLines
from ..run_folder import RunInUse
from ._command import train_command
from ._job import FAILED, FINISHED, IN_USE, Job, execute

_NEWS_SECONDS = 2.0


class Events(JsonLines):
    """The events of a run as lines, with its step every now and then."""

    _told = 0.0

    def advanced(self, step: int, loss: float | None) -> None:
        if time.monotonic() - self._told >= _NEWS_SECONDS:
            self._told = time.monotonic()
            self._emit("advanced", step=step)


def main() -> int:
    job = Job(**json.loads(sys.stdin.readline()))
    # The run folder tells the command that makes the same run alone.
    sys.argv[1:] = train_command(job.configuration)
    threading.Thread(target=_stop_with_the_sweep, daemon=True).start()
    try:
        execute(job, Events(_event_stream()))
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
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return events


def _stop_with_the_sweep() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
