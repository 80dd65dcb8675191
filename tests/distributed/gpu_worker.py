"""One rank of the test of equality on a CUDA device, which all ranks share. Started by `launch.py`."""

from pathlib import Path

from scenarios import SCENARIOS
from torch import Tensor


def warm_up() -> None:
    """Nothing: a process that has used the device cannot be forked."""


def work(folder: Path, rank: int, ranks: int) -> dict[str, dict[str, Tensor]]:
    return {name: scenario.run(rank, ranks, alone=False, device="cuda") for name, scenario in SCENARIOS.items()}
