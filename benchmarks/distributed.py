"""What sharing the curvature costs under data parallelism: a step of the path model on gloo ranks of this machine.

    python benchmarks/distributed.py

Every rank has its own 70 maps of 96×96 pixels, whose network gives 144 costs. Prints, from interleaved rounds of
the same run, the step with the curvature of all ranks relative to the step in which each rank keeps to its own
(DDP averages the gradients in both), and the share of a step that the exchange itself takes.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import newton_losses as nl
from newton_losses.curvature import resolve_group, share_curvature
from newton_losses_bench.models import MapCNN


def distance(costs: Tensor, wanted: Tensor) -> Tensor:
    """A cheap loss that couples the costs of a map, so that what is added cannot hide behind the loss."""
    return torch.sin(costs - wanted).flatten(1).square().sum(1)


def measure(rank: int, ranks: int, store: str, rounds: int, curvature: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    images, wanted = torch.rand(70, 3, 96, 96), torch.rand(70, 12, 12)
    model = DistributedDataParallel(MapCNN())
    optimizer = torch.optim.Adam(model.parameters())

    def step_with(newton: nl.NewtonLoss) -> Callable[[], object]:
        def step() -> None:
            optimizer.zero_grad()
            newton(model(images), wanted).backward()
            optimizer.step()

        return step

    group = resolve_group("default")
    assert group is not None
    expansion = nl.expand(distance, model(images).detach(), wanted, curvature=curvature)
    taken = _rounds(
        {
            "shared": step_with(nl.NewtonLoss(distance, curvature, 0.1)),
            "local": step_with(nl.NewtonLoss(distance, curvature, 0.1, process_group=None)),
            "exchange": lambda: share_curvature(expansion, curvature, group),
        },
        rounds,
    )
    if rank == 0:
        ratio = statistics.median(a / b for a, b in zip(taken["shared"], taken["local"], strict=True))
        share = statistics.median(a / b for a, b in zip(taken["exchange"], taken["shared"], strict=True))
        exchange, step = (1e3 * statistics.median(taken[name]) for name in ("exchange", "shared"))
        print(f"{curvature}, {ranks} ranks: a step takes ×{ratio:.4f} with the curvature of all ranks")
        print(f"  the exchange itself is {100 * share:.2f} % of a step ({exchange:.2f} ms of {step:.0f})")
    dist.destroy_process_group()


def _rounds(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each function in each round. All ranks begin each together, and run the same order."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for index in range(rounds + 1):
        for name, function in functions.items():
            dist.barrier()
            start = time.perf_counter()
            function()
            if index > 0:
                taken[name].append(time.perf_counter() - start)
    return taken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for kind in ("hessian", "fisher"):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(
                measure, (arguments.ranks, f"{folder}/store", arguments.rounds, kind), nprocs=arguments.ranks
            )
