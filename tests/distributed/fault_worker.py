"""Run by `test_rank_faults.py` in a process of its own: two ranks that train together, and what may happen to one.

    python fault_worker.py FOLDER

It imports torch once and forks the ranks from there. Standard output is one JSON object: for every fault what
became of each rank, and how long the others took to notice. Each fault is followed by ranks that go on to the end.
"""

import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

torch.set_num_threads(1)
if __name__ == "__main__":  # the test runner imports this file as well, to look for examples in it
    # Without its compiled back end: compiling would be most of the time, and its threads do not survive a fork.
    sys.modules["numba"] = None  # type: ignore[assignment]

from newton_losses_bench.config import PathsConfig, RunConfig  # noqa: E402  after the above
from newton_losses_bench.loop import run  # noqa: E402
from newton_losses_bench.tasks import Task, make_task  # noqa: E402

CONFIG = PathsConfig(
    algorithm="fenchel-young", curvature="hessian", scale=2.0, num_samples=2, size=4, train_maps=10, test_maps=4,
    batch_size=4, epochs=3, device="cpu",
)  # fmt: skip
RANKS = 2
FAULT_STEP = 5  # in the second epoch: there is a checkpoint of step 3
Fault = Callable[[int], None]


def kill_last(rank: int) -> None:
    if rank == RANKS - 1:
        os.kill(os.getpid(), signal.SIGKILL)


def kill_first(rank: int) -> None:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def freeze_last(rank: int) -> None:
    """Alive and silent, as behind a network that has gone."""
    if rank == RANKS - 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def fill_disk(rank: int) -> None:
    """No file of rank 0 can grow from here on, as on a full disk."""
    if rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def raise_last(rank: int) -> None:
    if rank == RANKS - 1:
        raise RuntimeError("a bug on one rank")


FAULTS = (kill_last, kill_first, freeze_last, fill_disk, raise_last)


def with_fault(fault: Fault, rank: int) -> Callable[[RunConfig], Task]:
    def make(config: RunConfig) -> Task:
        task = make_task(config)
        draw = task.draw_loss
        steps = 0

        def draw_loss(size: int) -> torch.Tensor:
            nonlocal steps
            steps += 1
            if steps == FAULT_STEP:
                fault(rank)
            return draw(size)

        task.draw_loss = draw_loss
        return task

    return make


def one_rank(folder: Path, store: Path, rank: int, fault: Fault | None, patience: float) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=patience)
    )
    config = replace(CONFIG, data_root=str(folder.parent / "data"))
    make = make_task if fault is None else with_fault(fault, rank)
    said: dict[str, Any] = {"kind": "finished"}
    try:
        run(config, str(folder), make=make, checkpoint_seconds=math.inf)
    except Exception as error:
        said = {"kind": type(error).__name__, "text": str(error)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    store.with_name(f"{store.name}.{rank}.json").write_text(json.dumps({**said, "at": time.monotonic()}))
    os._exit(0)


def ranks_of(folder: Path, name: str, fault: Fault | None = None, patience: float = 60.0) -> dict[str, Any]:
    """What the ranks said, by number, and how long it took from the first end to the last."""
    store = folder.parent / f"store-{folder.name}-{name}"
    context = get_context("fork")
    processes = [context.Process(target=one_rank, args=(folder, store, rank, fault, patience)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    ends = {}
    deadline = time.monotonic() + 60
    # One that is frozen never ends by itself.
    while len(ends) < RANKS - (fault is freeze_last) and time.monotonic() < deadline:
        for rank, process in enumerate(processes):
            if process.exitcode is not None:
                ends.setdefault(rank, time.monotonic())
        time.sleep(0.01)
    for process in processes:
        process.kill()
        process.join()
    told = {}
    for rank in range(RANKS):
        path = store.with_name(f"{store.name}.{rank}.json")
        told[str(rank)] = json.loads(path.read_text()) if path.exists() else {"kind": "killed"}
    return {"ranks": told, "seconds": max(ends.values()) - min(ends.values()) if len(ends) > 1 else 0.0}


def main(base: Path) -> None:
    base.mkdir(parents=True, exist_ok=True)
    report = {"whole": ranks_of(base / "whole", "whole")}
    for fault in FAULTS:
        folder = base / fault.__name__
        # Waited out by the rank that does not freeze, and long enough for a busy machine to get the other one there.
        patience = 8.0 if fault is freeze_last else 60.0
        report[fault.__name__] = ranks_of(folder, "fault", fault, patience)
        report[f"{fault.__name__}, after"] = ranks_of(folder, "after")
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
