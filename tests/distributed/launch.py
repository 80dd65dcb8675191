"""Real processes for a test: several ranks of one module, and what each saved, or a failure in time.

A worker module has `warm_up()` and `work(folder, rank, ranks)`. Importing torch and its first derivative take
seconds, so one process does both and the ranks are forks of it. Run as a script, this file is that process.
"""

import importlib
import multiprocessing
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import newton_losses

HERE = Path(__file__).parent


def launch(module: str, sizes: list[int], folder: Path, *, seconds: float = 150.0) -> dict[int, list[Any]]:
    """For each number of ranks in `sizes`, what each rank saved. A deadlock fails after `seconds`."""
    paths = [Path(newton_losses.__file__).parents[1], HERE.parent, HERE]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", __file__, module, str(folder), str(seconds), *map(str, sizes)]
    process = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=seconds + 60,
        check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout
    return {
        ranks: [torch.load(folder / str(ranks) / f"{rank}.pt", weights_only=True) for rank in range(ranks)]
        for ranks in sizes
    }


def main(name: str, folder: Path, seconds: float, sizes: list[int]) -> int:
    torch.set_num_threads(1)
    module = importlib.import_module(name)
    module.warm_up()
    return max(_run_ranks(module, folder / str(ranks), ranks, seconds) for ranks in sizes)


def _run_ranks(module: Any, folder: Path, ranks: int, seconds: float) -> int:
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_rank, args=(module, folder, rank, ranks)) for rank in range(ranks)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + seconds
    # when one has failed, the others may wait for it for ever
    while time.monotonic() < deadline and {process.exitcode for process in processes} <= {None, 0}:
        if all(process.exitcode == 0 for process in processes):
            break
        time.sleep(0.05)
    for process in processes:
        process.kill()
        process.join()
    codes = [process.exitcode for process in processes]
    if codes != [0] * ranks:
        print(f"{ranks} ranks ended with {codes}; −9 is one that was still running")
    return int(codes != [0] * ranks)


def _rank(module: Any, folder: Path, rank: int, ranks: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    torch.save(module.work(folder, rank, ranks), folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), [int(size) for size in sys.argv[4:]]))
