"""`newton-losses` as a process of its own, in which the seeds of a command take turns on a CPU as on CUDA.

python together_worker.py train sorting ... --seeds 0-2
"""

import sys

from newton_losses_bench import loop
from newton_losses_bench.cli import _train

if __name__ == "__main__":
    from newton_losses_bench.cli.app import app

    # The command itself has no use for this on a CPU.
    _train.choose_at_once = lambda asked, config, seeds: (seeds, None)  # type: ignore[assignment]
    loop.STEPS_A_TURN = 1
    app(prog_name="newton-losses", args=sys.argv[1:])
