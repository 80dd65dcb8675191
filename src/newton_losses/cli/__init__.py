"""Layer 5: the command `newton-losses`. What it does is in `newton_losses.bench`; here it is only asked for."""

import importlib.util
import sys


def main() -> None:
    """Run the command. Without the packages of the extra it says how to get them, and nothing breaks."""
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"newton-losses: the command needs {' and '.join(missing)}, which the extra 'bench' brings:\n"
            "  pip install 'newton-losses[bench]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from ._app import app

    app(prog_name="newton-losses")
