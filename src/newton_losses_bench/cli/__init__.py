"""The command `newton-losses`: it asks `newton_losses_bench` for work and reports the outcome.

This module imports nothing slow. `app.py` lists the commands; the module of a command is imported when it is called.
"""

import codecs
import contextlib
import importlib.util
import io
import signal
import sys
from collections.abc import Iterator


def main() -> None:
    """Run the command. Without the packages of the extra "bench", say how to get them."""
    _accept_any_character()
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        needs = f"newton-losses: the command needs {' and '.join(missing)}. Install the extra 'bench':"
        print(needs, "  pip install 'newton-losses[bench]'", sep="\n", file=sys.stderr)
        sys.exit(2)
    with quiet_interrupts():
        from .app import app
    # One more Ctrl-C after the last word was said prints no traceback: while Python shuts down it ends the process, and
    # on the way there, also in the `finally`, it is caught.
    try:
        try:
            app(prog_name="newton-losses")
        finally:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        sys.exit(130)


@contextlib.contextmanager
def quiet_interrupts() -> Iterator[None]:
    """For slow imports: Ctrl-C ends the process at once and silently, as nothing has been done that could be lost."""
    # Where Ctrl-C is ignored, as in the background of a script, it stays so.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    # No exception: a package may take that for a failed import, and continue.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _accept_any_character() -> None:
    """Let no λ end a command: ASCII streams become UTF-8, and terminals with few characters show a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            errors = "replace" if stream.errors == "strict" else stream.errors
            stream.reconfigure(encoding="utf-8" if is_ascii else stream.encoding, errors=errors)
