"""Ctrl-C and a polite `kill`: finish the step, save, say how to go on. A second one stops at once."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupted(Exception):
    """A run was asked to stop; its checkpoint of this step is on the disk.

    `others` are those of the runs that were under way in the same process.
    """

    others: "tuple[Interrupted, ...]" = ()

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step
        self.exit_code = 128 + signal_number


class StopRequests:
    """`requested` is the number of the signal that arrived, else `None`.

    `is_own`: none arrived, and runs are asked to save because another of them has failed.
    """

    requested: int | None = None
    is_own: bool = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None and not self.is_own:
            raise KeyboardInterrupt
        self.requested, self.is_own = number, False

    def request(self) -> None:
        """Ask runs to stop, if nobody has."""
        if self.requested is None:
            self.requested, self.is_own = signal.SIGTERM, True

    def withdraw(self) -> None:
        """Go on after a request of our own."""
        if self.is_own:
            self.requested, self.is_own = None, False


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Note signals instead of being stopped by them. Off the main thread Python cannot, so nothing happens."""
    stop = StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
