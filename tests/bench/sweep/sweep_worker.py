"""Run by `test_killing.py` in a process of its own: one sweep, to be killed.

python sweep_worker.py STORE
"""

import sys
from pathlib import Path

from newton_losses_bench.cells import cells
from newton_losses_bench.store import Store
from newton_losses_bench.sweep import Job, Lines, LocalPool, run_sweep

SMALL = {
    "data": "digits", "digits": 1, "steps": 300, "eval_every": 25, "batch_size": 4, "validation_sets": 10,
    "test_sets": 10, "device": "cpu",
}  # fmt: skip


def jobs(store: Path) -> list[Job]:
    # More than a fast machine gets done between five kills.
    found = cells("table1", only="*sort-n5-*", numerics="reference")
    return [Job.of(cell.key, cell.make(**SMALL), store, "cpu") for cell in found]


if __name__ == "__main__":
    store = Store(sys.argv[1])
    result = run_sweep(jobs(store.path), store, Lines(), LocalPool(2, store.path / ".logs"))
    sys.exit(result.exit_code)
