"""One rank of the test of equality: every scenario under DDP. Started by `launch.py`."""

import time
from pathlib import Path

from scenarios import SCENARIOS
from torch import Tensor


def warm_up() -> None:
    SCENARIOS["hessian-equal"].run(0, 2, alone=True)


def work(folder: Path, rank: int, ranks: int) -> dict[str, dict[str, Tensor]]:
    found = {}
    for name, scenario in SCENARIOS.items():
        start = time.perf_counter()
        found[name] = scenario.run(rank, ranks, alone=False)
        # shown where a rank fails or hangs: the last line tells where
        print(f"rank {rank} of {ranks}: {name} {time.perf_counter() - start:.2f} s", flush=True)
    return found
