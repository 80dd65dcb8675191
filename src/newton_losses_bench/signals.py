"""Ctrl-C and a polite `kill`: finish the step, save, say how to go on. A second one stops at once."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType

STOPPING = "stopping as soon as what is under way is done and saved; once more stops at once"


_OTHERS = "interrupted_with_it"


class Interrupted(Exception):
    """A run was asked to stop; its checkpoint of this step is on the disk."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step
        self.exit_code = 128 + signal_number


def name_others(error: Exception, others: Iterable[Interrupted]) -> None:
    """Let the error or the interruption of a run know of the runs that were interrupted with it."""
    # Their tracebacks would keep networks in memory; the step is all that is told of them.
    setattr(error, _OTHERS, tuple(other.with_traceback(None) for other in others))


def others_of(error: Exception) -> tuple[Interrupted, ...]:
    """The interruptions of the other runs that were under way in the same process."""
    found: tuple[Interrupted, ...] = getattr(error, _OTHERS, ())
    return found


class StopRequests:
    """`requested` is the number of the signal that arrived, else `None`.

    `is_own`: none arrived, and runs are asked to save because another of them has failed. `answers`: a person at a
    terminal is told that the first was heard.
    """

    requested: int | None = None
    is_own: bool = False

    def __init__(self, *, answers: bool = True) -> None:
        self._answers = answers

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None and not self.is_own:
            raise KeyboardInterrupt
        self.requested, self.is_own = number, False
        if self._answers:
            _answer()

    def request(self) -> None:
        """Ask runs to stop, if nobody has."""
        if self.requested is None:
            self.requested, self.is_own = signal.SIGTERM, True

    def withdraw(self) -> None:
        """Go on after a request of our own."""
        if self.is_own:
            self.requested, self.is_own = None, False


def _answer() -> None:
    """Without it a person would wonder: an evaluation can take minutes to come to its end."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("RANK", "0") != "0":
        return
    # Not by print: this comes in the middle of anything, of another print too. A terminal may be gone by now.
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"\n{STOPPING}\n".encode())


@contextlib.contextmanager
def stop_requests(*, answers: bool = True) -> Iterator[StopRequests]:
    """Note signals instead of being stopped by them. Off the main thread Python cannot, so nothing happens."""
    stop = StopRequests(answers=answers)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
