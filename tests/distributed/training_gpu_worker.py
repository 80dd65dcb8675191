"""One rank of the test that runs on a CUDA device do not depend on the number of ranks. Started by `launch.py`.

All ranks share the one device, which NCCL refuses and gloo does not.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from training_worker import CASES, in_float64, state_of

from newton_losses_bench.loop import run

NAMES = ("sorting, clipped and augmented", "sorting, Fisher", "paths, Fenchel-Young, Hessian")


def warm_up() -> None:
    """Nothing: a process that has used the device cannot be forked."""


def work(folder: Path, rank: int, ranks: int) -> dict[str, Any]:
    found = {}
    for name in NAMES:
        # Several ranks capture no graph; the one they are compared with must not draw its noise in one.
        config = replace(CASES[name], device="cuda", graph=False, data_root=str(folder.parent / "data"))
        result = run(config, str(folder / name), make=in_float64)
        found[name] = {"result": result, "state": state_of(folder / name)}
    return found
