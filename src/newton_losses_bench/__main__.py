"""The entry point of the command `newton-losses`; the command itself lives in `cli`.

This module imports nothing slow, so that Ctrl-C during the first seconds, while torch loads, ends the process quietly
instead of printing the traceback of some import.
"""

import contextlib
import os
import signal
from collections.abc import Iterator


def main() -> None:
    """Import the command, and run it."""
    with _ended_by_control_c():
        from .cli import load

        command = load()
    command()


@contextlib.contextmanager
def _ended_by_control_c() -> Iterator[None]:
    """Ctrl-C ends the process at once and in silence: nothing has been done that could be lost."""
    # Where it is ignored, as in the background of a script, it stays so.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    # No exception: a package may take that for a failed import, and go on.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    main()
