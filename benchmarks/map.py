"""When does which curvature help? One family of losses, five dials, and the gain of each variant over normalising.

    python benchmarks/map.py              # writes benchmarks/map.json, about 3 CPU-minutes; docs/pictures.py draws it
    python benchmarks/map.py explosions   # samples that explode in every batch, about 2 CPU-minutes

A linear student with m = 8 outputs learns a linear teacher with Adam and a cosine schedule. Its loss is ½ rᵀA r of the
residual r. Dials, one turned at a time from the setting in the middle:

- condition: A has eigenvalues from 1/κ to 1;
- coupling: A's eigenvectors are turned away from the outputs, from not at all to at random;
- exploding: a share of the samples has a loss that is 1000 times as large, at a wrong target;
- samples per output, N/m;
- noise: the standard deviation of the targets around the teacher.

A gain is the ratio of the final losses on clean samples, geometric mean over the seeds, each variant at the better of
two learning rates: that of the gradient in units of the run (`RunningDamping(1000)`) over the variant's.

`explosions` also tries a bound on each sample at ten times the running median of their sizes, and shows what it costs:
at the optimum the samples of a class of one in a hundred have gradients a hundred times those of the others.
"""

import argparse
import json
import math
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from catalogue import written
from newton_losses import NewtonLoss, NormalizedDamping, RunningDamping

FILE = Path(__file__).with_suffix(".json")
OUTPUTS, INPUTS, STEPS = 8, 10, 100
SEEDS, RATES = (1, 2, 3), (0.02, 0.1)
USUAL = {"condition": 100.0, "coupling": 1.0, "exploding": 0.0, "factor": 1e3, "samples per output": 4.0, "noise": 0.1}
DIALS = {
    "condition": (1.0, 1e2, 1e4, 1e6),
    "coupling": (0.0, 0.3, 1.0),
    "exploding": (0.0, 0.01, 0.05, 0.2),
    "samples per output": (0.25, 1.0, 4.0, 16.0),
    "noise": (0.0, 0.1, 1.0),
}
VARIANTS: dict[str, dict[str, Any] | None] = {
    "normalised": {"curvature": "fisher", "damping": RunningDamping(1000)},
    "clipped": None,
    "sample": {"curvature": "sample"},
    "fisher": {"curvature": "fisher"},
    "hessian": {"curvature": "hessian"},
}
# With a number, gradients longer than √(Nλ) are shrunk: here 1, about the size of usual ones.
EXPLOSIONS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "clipped": None,
    "default": {"curvature": "fisher"},
    "sample": {"curvature": "sample"},
    "by batch": {"curvature": "fisher", "damping": NormalizedDamping()},
    "sample, λ=1/N": {"curvature": "sample", "damping": 1 / 32},
    "bounded": None,
}


def shape(setting: dict[str, float], generator: torch.Generator) -> Tensor:
    """A of the loss ½ rᵀA r."""
    values = torch.logspace(-math.log10(setting["condition"]), 0, OUTPUTS)
    skew = torch.randn(OUTPUTS, OUTPUTS, generator=generator)
    turned = torch.matrix_exp(setting["coupling"] * (skew - skew.mT))
    return turned @ torch.diag(values) @ turned.mT


class Bound:
    """A bound on the rows of a gradient at ten times the running median of their lengths."""

    usual: Tensor | None = None

    def __call__(self, gradient: Tensor) -> Tensor:
        norms = gradient.norm(dim=1)
        self.usual = norms.median() if self.usual is None else torch.lerp(norms.median(), self.usual, 0.99)
        return gradient * (10 * self.usual / norms).clamp(max=1)[:, None]


def trained(setting: dict[str, float], variant: str, rate: float, seed: int) -> float:
    """The final loss on samples without noise and explosions."""
    generator = torch.Generator().manual_seed(seed)
    matrix = shape(setting, generator)
    teacher = torch.randn(INPUTS, OUTPUTS, generator=generator)
    weights = torch.zeros(INPUTS, OUTPUTS, requires_grad=True)
    count = max(1, round(setting["samples per output"] * OUTPUTS))

    def loss(y: Tensor, target: Tensor, factor: Tensor) -> Tensor:
        return factor * ((y - target) @ matrix * (y - target)).sum(1) / 2

    options = {**VARIANTS, **EXPLOSIONS}[variant]
    learned = loss if options is None else NewtonLoss(loss, check=False, **options)
    optimizer = torch.optim.Adam([weights], lr=rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    norms: list[float] = []
    bound = Bound()
    for _ in range(STEPS):
        inputs = torch.randn(count, INPUTS, generator=generator)
        target = inputs @ teacher + setting["noise"] * torch.randn(count, OUTPUTS, generator=generator)
        wild = torch.rand(count, generator=generator) < setting["exploding"]
        target = torch.where(wild[:, None], torch.randn(count, OUTPUTS, generator=generator), target)
        optimizer.zero_grad()
        outputs = inputs @ weights
        if variant == "bounded":
            outputs.register_hook(bound)
        learned(outputs, target, 1 + (setting["factor"] - 1) * wild.float()).mean().backward()
        if variant == "clipped":
            norms.append(float(weights.grad.norm()))  # type: ignore[union-attr]
            nn.utils.clip_grad_norm_([weights], statistics.median(norms))
        optimizer.step()
        schedule.step()
    inputs = torch.randn(512, INPUTS, generator=generator)
    with torch.no_grad():
        return float(loss(inputs @ weights, inputs @ teacher, torch.ones(512)).mean())


def errors(setting: dict[str, float], variant: str) -> list[float]:
    """The logarithm of the final loss of each seed, at the better learning rate."""
    tried = [[math.log(max(trained(setting, variant, rate, seed), 1e-12)) for seed in SEEDS] for rate in RATES]
    return min(tried, key=statistics.mean)


def explosions() -> None:
    """Final losses where a share of the samples explodes in every batch, and the class of one sample in a hundred."""
    print(f"{'share':>6}{'factor':>8}", *(f"{variant:>14}" for variant in EXPLOSIONS))
    for share, factor in ((0.0, 1.0), *product((0.01, 0.05, 0.1), (1e2, 1e4, 1e6))):
        setting = {**USUAL, "exploding": share, "factor": factor}
        losses = (math.exp(statistics.mean(errors(setting, variant))) for variant in EXPLOSIONS)
        print(f"{share:6.0%}{factor:8.0e}", *(f"{loss:14.2g}" for loss in losses), flush=True)
    print("\nA logit learned from the labels alone, of which 1 % are 1: the probability that it ends at")
    print(f"{'':14}", *(f"{variant:>14}" for variant in EXPLOSIONS))
    print(f"{'':14}", *(f"{rare(variant):14.1%}" for variant in EXPLOSIONS))


def rare(variant: str, share: float = 0.01, steps: int = 2000) -> float:
    """The mean probability over the second half of training, from batches of 128."""
    generator, options, bound = torch.Generator().manual_seed(0), EXPLOSIONS[variant], Bound()
    logit = torch.full((1,), math.log(share / (1 - share)), requires_grad=True)

    def loss(y: Tensor, label: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(y, label, reduction="none").sum(1)

    learned = loss if options is None else NewtonLoss(loss, check=False, **options)
    optimizer, norms, found = torch.optim.Adam([logit], lr=0.02), [], []
    for _ in range(steps):
        labels = (torch.rand(128, 1, generator=generator) < share).float()
        optimizer.zero_grad()
        outputs = logit.expand(128, 1) * 1
        if variant == "bounded":
            outputs.register_hook(bound)
        learned(outputs, labels).mean().backward()
        if variant == "clipped":
            norms.append(float(logit.grad.norm()))  # type: ignore[union-attr]
            nn.utils.clip_grad_norm_([logit], statistics.median(norms))
        optimizer.step()
        found.append(float(logit.detach().sigmoid()))
    return statistics.mean(found[steps // 2 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("map", "explosions"), default="map")
    torch.set_num_threads(1)
    if parser.parse_args().what == "explosions":
        explosions()
        return
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for dial, values in DIALS.items():
        for value in values:
            setting = {**USUAL, dial: value}
            own = found.setdefault(dial, {}).setdefault(f"{value:g}", {})
            for variant in VARIANTS:
                if variant not in own:
                    own[variant] = [round(one, 3) for one in errors(setting, variant)]
                    FILE.write_text(written(found))
            gains = {one: math.exp(statistics.mean(own["normalised"]) - statistics.mean(own[one])) for one in own}
            print(f"{dial:20}{value:8g}", *(f"{name} {gain:6.2f}" for name, gain in gains.items()), flush=True)


if __name__ == "__main__":
    main()
