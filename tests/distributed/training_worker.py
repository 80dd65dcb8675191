"""One rank of the tests that whole runs do not depend on the number of ranks. Started by `launch.py`.

All is computed in float64, so that a difference is one of meaning and not of rounding.
"""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from newton_losses_bench.config import PathsConfig, RunConfig, SortingConfig
from newton_losses_bench.loop import run
from newton_losses_bench.ranks import RankError
from newton_losses_bench.signals import Interrupted
from newton_losses_bench.store import read_checkpoint
from newton_losses_bench.tasks import Task, make_task

SORTING = SortingConfig(
    algorithm="softsort", data="digits", digits=1, n=3, steps=6, eval_every=3, batch_size=7,
    validation_sets=20, test_sets=20, device="cpu",
)  # fmt: skip
# 7 maps in batches of 5 and 2: of four ranks, two have no map of the second. The noise is so wide that it does change
# paths of maps this small: otherwise there is no gradient.
PATHS = PathsConfig(
    algorithm="fenchel-young", scale=2.0, num_samples=4, size=4, train_maps=7, test_maps=5, batch_size=5, epochs=3,
    device="cpu",
)  # fmt: skip

CASES: dict[str, RunConfig] = {
    "sorting, clipped and augmented": replace(SORTING, clip_norm=0.01, augment=True),
    "sorting, Fisher": replace(SORTING, curvature="fisher", average=True),
    "sorting, Hessian, relative damping": replace(SORTING, curvature="hessian", relative_damping=1.0),
    "sorting, Hessian, automatic damping": replace(SORTING, curvature="hessian", damping="auto"),
    "sorting, energy, automatic damping": replace(SORTING, curvature="energy", damping="auto"),
    "paths, Fenchel-Young, Hessian": replace(PATHS, curvature="hessian", average=True),
    "paths, smoothed loss, energy": replace(PATHS, algorithm="smoothed-loss", curvature="energy"),
    "paths, smoothed algorithm, clipped": replace(PATHS, algorithm="smoothed-algorithm", clip_norm=0.1),
    "paths, Bellman-Ford, Hessian": replace(
        PATHS, algorithm="bellman-ford", scale=None, num_samples=None, iterations=4, curvature="hessian", epochs=2
    ),
}


def in_float64(config: RunConfig) -> Task:
    task = make_task(config)
    # Channels last, as on a GPU: gradients have to keep the layout of their parameters.
    task.model.to(dtype=torch.float64, memory_format=torch.channels_last)
    task.model.register_forward_pre_hook(lambda model, arguments: (arguments[0].double(),))
    return task


def stopped_after(step: int, rank: int, ranks: int) -> Any:
    """A task of which one rank, not the first where there are others, gets a polite `kill` in this step."""

    def make(config: RunConfig) -> Task:
        task = in_float64(config)
        begin = task.begin_step

        def begin_step(number: int) -> int:
            if number + 1 == step and rank == ranks - 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return begin(number)

        task.begin_step = begin_step
        return task

    return make


def state_of(folder: Path) -> dict[str, Any]:
    saved = read_checkpoint(folder / "checkpoint.pt")
    return {name: saved[name] for name in ("step", "tensors", "generators", "evaluations")}


def whole_runs(base: Path) -> dict[str, Any]:
    found = {}
    for name, config in CASES.items():
        result = run(replace(config, data_root=str(base.parent / "data")), str(base / name), make=in_float64)
        found[name] = {"result": result, "state": state_of(base / name)}
    return found


def chain(base: Path, rank: int, ranks: int) -> dict[str, Any]:
    """Two more steps of runs that all numbers of ranks go on with, one after the other."""
    found = {}
    for name in ("sorting, Fisher", "paths, Fenchel-Young, Hessian"):
        config = replace(CASES[name], data_root=str(base.parent / "data"))
        folder = base.parent / "chain" / name
        stop = 2 + (state_of(folder)["step"] if folder.exists() else 0)
        try:
            run(config, str(folder), make=stopped_after(stop, rank, ranks))
            stopped = None
        except Interrupted as error:
            stopped = (error.step, error.exit_code)
        found[name] = {"stopped": stopped, "state": state_of(folder)}
    return found


class InfiniteForNines(nn.Module):
    """A loss that is not finite for sets with a nine in them: a few samples of a batch, on some ranks."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, y: Tensor, values: Tensor) -> Tensor:
        return self.loss(y, values) / (values.amax(1) < 9)


def skipped_samples(base: Path, rank: int, ranks: int) -> dict[str, Any]:
    """A sample that is not finite, on whichever rank it is: all ranks count it."""

    def make(config: RunConfig) -> Task:
        task = in_float64(config)
        task.loss_module.loss = InfiniteForNines(task.loss_module.loss)
        return task

    result = run(CASES["sorting, Fisher"], str(base / "skipped"), make=make)
    return {"result": result, "state": state_of(base / "skipped")}


def different_runs(base: Path, rank: int, ranks: int) -> str:
    try:
        run(replace(SORTING, seed=rank), str(base / f"different-{rank}"))
    except RankError as error:
        return str(error)
    return ""


def warm_up() -> None:
    from newton_losses_bench.data import Digits

    Digits()


def work(folder: Path, rank: int, ranks: int) -> dict[str, Any]:
    return {
        "whole": whole_runs(folder),
        "chain": chain(folder, rank, ranks),
        "skipped": skipped_samples(folder, rank, ranks),
        "different": different_runs(folder, rank, ranks),
    }
