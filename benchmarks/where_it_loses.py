"""Two losses of everyday work from which the default gains little, and why: a pose, and a Gaussian likelihood.

    python benchmarks/where_it_loses.py pose         # about 2 CPU-minutes
    python benchmarks/where_it_loses.py likelihood   # about 1 CPU-minute

`pose`: a network of three layers predicts three angles in degrees and three coordinates in metres under a Huber loss,
which is the sum of both; six seeds, two learning rates of Adam, constant and with a cosine schedule. Adam remembers
large early gradients, and so shortens the steps of a plain loss as its gradients shrink. In a unit that follows them,
steps stay longer and need a schedule.

`likelihood`: means and logarithms of deviations of three standard normal numbers, learned as bare numbers from fresh
batches until they only fluctuate. The gradient of such a logarithm, 1 − z², is skewed, so what clips samples makes the
deviation too small.
"""

import argparse
import math
import statistics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from newton_losses import NewtonLoss, NormalizedDamping, RunningDamping

VARIANTS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "normalised only": {"damping": RunningDamping(1000)},
    "default": {},
    "factor 10": {"damping": RunningDamping(10)},
    "by batch": {"damping": NormalizedDamping()},
    "sample": {"curvature": "sample"},
    "hessian": {"curvature": "hessian"},
}
SEEDS, RATES, STEPS, BATCH = range(6), (1e-2, 3e-2), 300, 64
UNITS = torch.tensor([25.0] * 3 + [1.0] * 3)  # 25 degrees, 1 metre


def wrapped(loss: Any, variant: str) -> Any:
    options = VARIANTS[variant]
    return loss if options is None else NewtonLoss(loss, check=False, **options)


def huber(y: Tensor, target: Tensor) -> Tensor:
    return functional.smooth_l1_loss(y, target, reduction="none").sum(1)


def posed(variant: str, rate: float, seed: int, decays: bool) -> tuple[float, float, float]:
    """The final loss, and the mean errors in degrees and in metres."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    teacher = [torch.randn(shape, generator=generator) / math.sqrt(shape[0]) for shape in ((10, 32), (32, 6))]
    network = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))

    def batch(count: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(count, 10, generator=generator)
        noise = 0.05 * torch.randn(count, 6, generator=generator)
        return inputs, (torch.tanh(inputs @ teacher[0]) @ teacher[1] + noise) * UNITS

    loss = wrapped(huber, variant)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        inputs, target = batch(BATCH)
        optimizer.zero_grad()
        loss(network(inputs), target).mean().backward()
        optimizer.step()
        if decays:
            schedule.step()
    inputs, target = batch(2048)
    with torch.no_grad():
        outputs = network(inputs)
        degrees, metres = (outputs - target).abs().split(3, 1)
        return float(huber(outputs, target).mean()), float(degrees.mean()), float(metres.mean())


def pose() -> None:
    """The loss at each learning rate, on how many seeds it is below the plain one, and the parts at the better rate."""
    for decays in (False, True):
        print(f"{'cosine schedule' if decays else 'constant rate':18}", *(f"{rate:>13g}" for rate in RATES), end="")
        print("   better: degrees  metres")
        plain: dict[float, list[tuple[float, float, float]]] = {}
        for variant in ("plain", "normalised only", "default", "by batch", "sample"):
            found = {rate: [posed(variant, rate, seed, decays) for seed in SEEDS] for rate in RATES}
            plain = plain or found
            means = {rate: [statistics.mean(part) for part in zip(*found[rate], strict=True)] for rate in RATES}
            lower = {rate: sum(a < b for a, b in zip(found[rate], plain[rate], strict=True)) for rate in RATES}
            cells = (f"{means[rate][0]:8.3f} ({lower[rate]}/{len(SEEDS)})" for rate in RATES)
            _, degrees, metres = min(means.values())
            print(f"{variant:18}", *cells, f"{degrees:16.3f}{metres:8.4f}", flush=True)


def gaussian(y: Tensor, target: Tensor) -> Tensor:
    mean, log_deviation = y.chunk(2, 1)
    return ((target - mean).square() * torch.exp(-2 * log_deviation) / 2 + log_deviation).sum(1)


def deviation(variant: str, count: int, steps: int = 1500) -> float:
    """The deviation that three numbers end with, geometric mean of them and of the last two thirds of training."""
    generator, loss = torch.Generator().manual_seed(0), wrapped(gaussian, variant)
    parameters = torch.zeros(6, requires_grad=True)
    optimizer, found = torch.optim.Adam([parameters], lr=0.01), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss(parameters.expand(count, 6), torch.randn(count, 3, generator=generator)).mean().backward()
        optimizer.step()
        found.append(float(parameters.detach()[3:].mean()))
    return math.exp(statistics.mean(found[steps // 3 :]))


def likelihood() -> None:
    counts = (8, 32, 128)
    print("The deviation learned, where 1 is right, from batches of " + ", ".join(map(str, counts)))
    for variant in VARIANTS:
        print(f"{variant:18}" + "".join(f"{deviation(variant, count):8.3f}" for count in counts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pose", "likelihood"))
    torch.set_num_threads(1)
    {"pose": pose, "likelihood": likelihood}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
