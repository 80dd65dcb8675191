"""What a Newton loss costs: beside a training step of a small network, and as N and m grow.

    python benchmarks/newton.py

Prints ratios of things measured in the same run; the times themselves depend on the machine.
"""

import argparse
import math
from itertools import pairwise

import torch
from torch import Tensor, nn

import newton_losses as nl
from timing import interleaved, ratios


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 49, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def wavy(y: Tensor, target: Tensor) -> Tensor:
    """A cheap non-convex loss, so that what is added cannot hide behind the loss itself."""
    return torch.sin(y - target).square().sum(1)


def training_step(rounds: int) -> None:
    torch.manual_seed(0)
    model, images, target = network(), torch.rand(100, 1, 28, 28), torch.randn(100, 10)
    optimizer = torch.optim.Adam(model.parameters())
    newton = {kind: nl.NewtonLoss(wavy, kind, 0.1) for kind in ("fisher", "hessian")}
    losses = {
        "baseline": lambda y: wavy(y, target).mean(),
        "fisher": lambda y: newton["fisher"](y, target),
        "inject_fisher": lambda y: wavy(nl.inject_fisher(y, 0.1), target).mean(),
        "hessian": lambda y: newton["hessian"](y, target),
    }

    def step(loss) -> None:
        optimizer.zero_grad()
        loss(model(images)).backward()
        optimizer.step()

    found = ratios({name: lambda loss=loss: step(loss) for name, loss in losses.items()}, rounds)
    print("A training step of a small CNN, 100 images of 28×28, m = 10, relative to the baseline:")
    for name, ratio in found.items():
        print(f"  {name:14s} {ratio:6.3f}")


def growth(rounds: int) -> None:
    print("The cost of inject_fisher's backward pass; growth is the exponent between two sizes,")
    print("which min(N, m)³ bounds by 3:")
    for what, sizes in (
        ("m, N = 64", [(64, m) for m in (256, 1024, 4096, 16384)]),
        ("N = m", [(s, s) for s in (64, 128, 256, 512)]),
        ("N, m = 64", [(n, 64) for n in (256, 1024, 4096)]),
    ):
        functions = {}
        for count, size in sizes:
            y = torch.randn(count, size, requires_grad=True)
            functions[f"{count}×{size}"] = lambda y=y: nl.inject_fisher(y, 0.1).square().sum(1).mean().backward()
        times = interleaved(functions, rounds)
        for (small, a), (large, b) in pairwise(zip(times, sizes, strict=True)):
            factor = max(b[0] / a[0], b[1] / a[1])
            growth = times[large] / times[small]
            print(f"  {what:10s} {small:>9s} → {large:<9s} ×{growth:6.2f}  growth {math.log(growth, factor):5.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    training_step(arguments.rounds)
    growth(max(5, arguments.rounds // 4))
