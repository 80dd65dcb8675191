"""Layer 5: the command `newton-losses`. What it does is in `newton_losses_bench`; here it is only asked for."""

import codecs
import importlib.util
import io
import sys
from collections.abc import Callable
from functools import partial


def main() -> None:
    """Run the command."""
    load()()


def load() -> Callable[[], object]:
    """Import the command. Without the packages of the extra it says how to get them, and nothing breaks."""
    _let_write_anything()
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"newton-losses: the command needs {' and '.join(missing)}, which the extra 'bench' brings:\n"
            "  pip install 'newton-losses[bench]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from ._app import app

    return partial(app, prog_name="newton-losses")


def _let_write_anything() -> None:
    """A λ ends no command where the locale has none.

    What is said to be ASCII gets UTF-8, as typer does for its own words; a narrower terminal, as one of Windows may
    be, a question mark.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            errors = "replace" if stream.errors == "strict" else stream.errors
            stream.reconfigure(encoding="utf-8" if is_ascii else stream.encoding, errors=errors)
