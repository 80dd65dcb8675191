"""Ctrl-C and a polite `kill`: finish the step, save, say how to resume. A second signal stops at once."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

STOPPING = "stopping after the current step or evaluation is saved; press Ctrl-C again to stop at once"


class Interrupted(Exception):
    """A run was asked to stop; its checkpoint of this step is on the disk."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step
        self.exit_code = 128 + signal_number


class StopRequests:
    """`requested` is the number of the signal that arrived, else `None`.

    With `answers`, somebody at a terminal reads that the first signal was received.
    """

    requested: int | None = None

    def __init__(self, *, answers: bool = True) -> None:
        self._answers = answers

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise KeyboardInterrupt
        self.requested = number
        if self._answers:
            _answer()


def _answer() -> None:
    """Confirm the signal: an evaluation can take minutes to end."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    # Not print: a signal can arrive in the middle of another print. The terminal may be gone by now.
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"\n{STOPPING}\n".encode())


@contextlib.contextmanager
def stop_requests(*, answers: bool = True) -> Iterator[StopRequests]:
    """Note signals instead of being stopped by them. Python cannot do this off the main thread; there, nothing happens.

    Within another `stop_requests`, a signal reaches both: the inner one saves its run, the outer one begins no other.
    """
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
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, StopRequests) and stop.requested == number:
                outer.requested = number
