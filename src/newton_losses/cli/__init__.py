"""Layer 5: the command `newton-losses`. What it does is in `newton_losses.bench`; here it is only asked for."""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial


def main() -> None:
    """Run the command."""
    load()()


def load() -> Callable[[], object]:
    """Import the command. Without the packages of the extra it says how to get them, and nothing breaks."""
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
