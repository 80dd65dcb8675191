"""`python -m newton_losses` runs the command `newton-losses`, which lives in the package `newton_losses_bench`."""

import importlib.util
import sys

if __name__ == "__main__":
    if importlib.util.find_spec("newton_losses_bench") is None:
        sys.exit("newton-losses: the command is not installed. Run: pip install 'newton-losses[bench]'")
    from newton_losses_bench.__main__ import main

    main()
