"""What the draws of a smoothed loss are worth, and what its Hessian costs. Prints three tables.

    python benchmarks/smoothing.py

Variances are ratios to independent draws without a baseline, of the same estimator with the same
number of draws: 0.1 is what ten times as many draws would give. The second table compares the default baseline with
the paper's on shortest paths. Times are the shortest of interleaved repetitions in one run, at the size of the
shortest-path experiment: 70 samples of 144 costs, 10 draws.
"""

import time
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from newton_losses.paths import shortest_path
from newton_losses.perturbed import FenchelYoungLoss
from newton_losses.smoothing import SmoothedLoss

SIZE, CHOSEN, SCALE, DRAWS = 12, 4, 0.5, 16


def cheapest(costs: Tensor) -> Tensor:
    """A 0/1 mask of the cheapest third: a solver with a combinatorial output."""
    count = costs.shape[-1] * CHOSEN // SIZE
    return torch.zeros_like(costs).scatter(-1, costs.topk(count, dim=-1, largest=False).indices, 1.0)


def hamming(costs: Tensor, wanted: Tensor) -> Tensor:
    return (cheapest(costs) - wanted).abs().sum(-1)


def total_variances(loss: SmoothedLoss | FenchelYoungLoss, repetitions: int = 300) -> tuple[float, float]:
    """Of the gradient of one sample and of its Hessian, summed over all entries."""
    points = torch.Generator().manual_seed(1)
    y = torch.randn(1, SIZE, generator=points, dtype=torch.float64)
    wanted = cheapest(torch.randn(1, SIZE, generator=points, dtype=torch.float64))
    found = [loss.expand(y, wanted, curvature="hessian") for _ in range(repetitions)]
    gradient = torch.cat([e.gradient for e in found])
    hessian = torch.stack([e.curvature.dense() for e in found])
    return float(gradient.var(0).sum()), float(hessian.var(0).sum())


def print_variances() -> None:
    print(f"variance / that of plain draws, Hamming loss of a top-{CHOSEN} of {SIZE}, {DRAWS} draws")
    print(f"{'baseline':16}{'antithetic':12}{'quasi':8}{'gradient':>10}{'Hessian':>10}")
    reference: tuple[float, float] | None = None
    for reduction, antithetic, quasi in product(["none", "value", "leave_one_out"], [False, True], [False, True]):
        loss = SmoothedLoss(
            hamming,
            SCALE,
            DRAWS,
            variance_reduction=reduction,  # type: ignore[arg-type]
            antithetic=antithetic,
            quasi=quasi,
            generator=torch.Generator().manual_seed(0),
        )
        gradient, hessian = total_variances(loss)
        reference = reference or (gradient, hessian)
        ratios = f"{gradient / reference[0]:10.3f}{hessian / reference[1]:10.3f}"
        print(f"{reduction:16}{antithetic!s:12}{quasi!s:8}{ratios}")
    print("\nvariance of a Fenchel-Young Hessian / that of hessian='jacobian'")
    first = None
    for name in ("jacobian", "optimal_value"):
        loss = FenchelYoungLoss(
            cheapest,
            SCALE,
            DRAWS,
            hessian=name,  # type: ignore[arg-type]
            generator=torch.Generator().manual_seed(0),
        )
        variance = total_variances(loss)[1]
        first = first or variance
        print(f"{name:16}{variance / first:10.1f}")


def path_misses(costs: Tensor, wanted: Tensor) -> Tensor:
    return (shortest_path(costs) - wanted).abs().flatten(1).sum(1)


def print_baselines(repetitions: int = 40) -> None:
    """Of the gradient of a smoothed loss of paths, at the true costs and at costs of a half-trained network."""
    generator = torch.Generator().manual_seed(1)
    levels = torch.tensor([0.8, 1.2, 5.3, 7.7, 9.2], dtype=torch.float64)
    true = levels[torch.randint(5, (24, 12, 12), generator=generator)]
    half = (true + true.mean()) / 2 + 0.15 * torch.randn(true.shape, dtype=torch.float64, generator=generator)
    wanted = shortest_path(true)
    print("\nvariance of a path loss's gradient, leave-one-out / value, 12×12 maps, scale 0.1")
    print(f"{'draws':16}{'true costs':>12}{'half-trained':>14}")
    for draws in (3, 10, 30):
        ratios = []
        for costs in (true, half):
            variance = {}
            for baseline in ("leave_one_out", "value"):
                noise = torch.Generator().manual_seed(0)
                loss = SmoothedLoss(path_misses, 0.1, draws, variance_reduction=baseline, generator=noise)
                found = [loss.expand(costs, wanted, curvature=None).gradient for _ in range(repetitions)]
                variance[baseline] = float(torch.stack(found).var(0).mean())
            ratios.append(variance["leave_one_out"] / variance["value"])
        print(f"{draws:<16}{ratios[0]:12.2f}{ratios[1]:14.2f}")


def interleaved(functions: dict[str, Callable[[], object]], repetitions: int = 40) -> dict[str, float]:
    """The shortest time of each in ms, taken in turns so that a busy machine is busy for all."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for repetition in range(repetitions + 3):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if repetition >= 3:
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: min(spent) for name, spent in times.items()}


def print_times() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    samples, size, draws = 70, 144, 10
    y = torch.randn(samples, size, generator=generator)
    wanted = cheapest(y)
    loss = SmoothedLoss(hamming, SCALE, draws, generator=generator)
    noise = loss.sampler.draw(y, SCALE, loss.distribution, generator)
    first, second = (d / SCALE**k for k, d in enumerate(loss.distribution.derivatives(noise.standard), 1))
    weights = torch.randn(draws, samples, generator=generator)
    keep = torch.ones(samples, dtype=torch.bool)

    def one_hessian_per_sample() -> Tensor:
        outer = torch.bmm((weights.unsqueeze(-1) * first).permute(1, 2, 0), first.transpose(0, 1))
        return (outer - torch.diag_embed(torch.einsum("sn,sni->ni", weights, second))).mean(0) / draws

    def one_product() -> Tensor:
        return noise.mean_hessian(weights, keep)

    torch.testing.assert_close(one_product(), one_hessian_per_sample(), rtol=1e-3, atol=1e-3)
    found = interleaved(
        {
            "mean Hessian, one product (ours)": one_product,
            "mean Hessian, one per sample": one_hessian_per_sample,
            "noise through uniforms (ours)": lambda: loss.sampler.draw(y, SCALE, loss.distribution, generator),
            "noise by torch.randn": lambda: torch.randn(draws, samples, size, generator=generator),
            "the black box alone": lambda: hamming(y + noise.perturbation(), wanted),
            "expand, no curvature": lambda: loss.expand(y, wanted, curvature=None),
            "expand, fisher": lambda: loss.expand(y, wanted, curvature="fisher"),
            "expand, hessian": lambda: loss.expand(y, wanted, curvature="hessian"),
        }
    )
    print(f"\n{samples} samples of {size}, {draws} draws, one thread, torch {torch.__version__}")
    for name, milliseconds in found.items():
        print(f"{name:36}{milliseconds:8.2f} ms")


if __name__ == "__main__":
    print_variances()
    print_baselines()
    print_times()
