"""Random and adversarial scores against the stable sorting losses: nothing may be NaN or infinite.

Run as `python benchmarks/sorting_fuzz.py --cases 100000 --seed 0`. A case is one sample: its scores, its
target, and the algorithm with its temperature or steepness. Value, gradient (of the backward pass and of the
expansion) and Hessian are computed in float32 and must be finite; they are compared with float64 on the same
inputs. Relative errors are those of a whole sample: of its value, in the norm of its gradient vector, in the
Frobenius norm of its batch's mean Hessian. A derivative may be the sum of large terms that cancel, exactly so
where all scores are equal; then no float32 sum can be right relative to the result. So a gradient below 1 %
of (sharpness · loss), a Hessian below 1 % of (sharpness² · loss), is compared with that 1 %. The sharpness is
the slope of the log-odds: the steepness or the inverse temperature, and where the exponent is not linear in
the scores what its derivative makes of it.
"""

import argparse
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from newton_losses.sorting import NeuralSort, Relaxation, SoftSort, SortingLoss, SortingNetwork

DISTRIBUTIONS = ("logistic", "logistic_phi", "gaussian", "cauchy", "reciprocal", "optimal")
KINDS = ("normal", "magnitudes", "ties", "clusters", "equal", "right", "wrong")
FLOOR = 1e-30  # where float32 itself ends
CANCELLED = 0.01


@dataclass
class Outcome:
    """What a run found. `worst` maps a quantity to its largest error and the case that had it."""

    cases: int = 0
    not_finite: list[str] = field(default_factory=list)
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)

    def note(self, quantity: str, errors: Tensor, where: str) -> None:
        error = float(errors.detach().max())
        if error > self.worst.get(quantity, (0.0, ""))[0]:
            self.worst[quantity] = (error, where)


def pick(options: tuple, generator: torch.Generator):
    return options[int(torch.randint(len(options), (), generator=generator))]


def log_uniform(low: float, high: float, generator: torch.Generator) -> float:
    """A number from 10^low to 10^high."""
    return float(10 ** (low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64)))


def random_relaxation(generator: torch.Generator) -> tuple[Relaxation, str]:
    name = pick(("neuralsort", "softsort", "softsort²", *DISTRIBUTIONS), generator)
    temperature = log_uniform(-3, 1, generator)
    if name == "neuralsort":
        return NeuralSort(temperature), f"{name} temperature {temperature:.3g}"
    if name.startswith("softsort"):
        return SoftSort(temperature, 2 if name.endswith("²") else 1), f"{name} temperature {temperature:.3g}"
    steepness = log_uniform(-1, 3, generator)
    backend = pick(("auto", "torch"), generator)
    return SortingNetwork(None, "odd_even", name, steepness, backend), f"{name} steepness {steepness:.3g} {backend}"


def random_scores(kind: str, count: int, n: int, spread: float, generator: torch.Generator) -> Tensor:
    """Float32 scores whose largest difference is about `spread`."""
    scores = torch.rand(count, n, generator=generator) - 0.5
    if kind == "magnitudes":
        scores = scores.sign() * 10 ** (-12 * torch.rand(count, n, generator=generator))
    elif kind == "ties":
        scores = (scores * 4).round() / 4
    elif kind == "clusters":
        scores = (scores * 4).round() / 4 + 1e-6 * torch.randn(count, n, generator=generator)
    elif kind == "equal":
        scores = scores[:, :1].expand(-1, n)
    return (scores * spread).contiguous()


def sharpness(relaxation: Relaxation, scores: Tensor) -> Tensor:
    """How much a sample's log-odds change with its scores, `(N,)`."""
    ascending = scores.double().sort(-1).values
    spread = ascending[:, -1] - ascending[:, 0]
    if not isinstance(relaxation, SortingNetwork):
        quadratic = isinstance(relaxation, SoftSort) and relaxation.p == 2
        scale = torch.full_like(spread, 1 / relaxation.temperature)
        return scale * spread + scale.sqrt() if quadratic else scale
    scale = torch.full_like(spread, relaxation.steepness)
    if relaxation.distribution == "gaussian":
        return scale * (1 + scale * spread)
    if relaxation.distribution == "logistic_phi":
        return scale * (ascending.diff().amin(-1) + 1e-10).pow(-0.25)
    return scale


def check(loss: SortingLoss, scores: Tensor, values: Tensor, where: str, outcome: Outcome) -> None:
    """One batch in float32 and in float64."""
    leaf = scores.clone().requires_grad_()
    value = loss(leaf, values)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    small = loss.expand(scores, values, curvature="hessian")
    large = loss.expand(scores.double(), values, curvature="hessian")
    found = {"value": value, "backward": gradient, "gradient": small.gradient, "hessian": small.curvature.dense()}
    outcome.cases += len(scores)
    for quantity, tensor in found.items():
        if not bool(tensor.isfinite().all()):
            outcome.not_finite.append(f"{quantity}: {where}")
    outcome.note("value", (value.double() - large.value).abs() / large.value.abs().clamp(min=FLOOR), where)
    terms = CANCELLED * sharpness(loss.relaxation, scores) * large.value.clamp(max=1)
    norms = torch.maximum(large.gradient.norm(dim=-1), terms).clamp(min=FLOOR)
    for quantity in ("backward", "gradient"):
        outcome.note(quantity, (found[quantity].double() - large.gradient).norm(dim=-1) / norms, where)
    terms = (terms * sharpness(loss.relaxation, scores)).mean()
    size = torch.maximum(large.curvature.dense().norm(), terms).clamp(min=FLOOR)
    outcome.note("hessian", (small.curvature.dense().double() - large.curvature.dense()).norm() / size, where)


def fuzz(cases: int, seed: int, largest: int = 64) -> Outcome:
    """Check `cases` random samples, in batches that share an algorithm, a size and a kind of scores."""
    generator = torch.Generator().manual_seed(seed)
    outcome = Outcome()
    while outcome.cases < cases:
        relaxation, name = random_relaxation(generator)
        n = min(pick((2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 10, 12, 16, 24, largest), generator), largest)
        kind = pick(KINDS, generator)
        spread = log_uniform(-3, 6, generator)
        count = min(50 if n <= 10 else 20 if n <= 24 else 4, cases - outcome.cases)
        scores = random_scores(kind, count, n, spread, generator)
        values = {"right": scores, "wrong": -scores}.get(kind)
        if values is None:
            values = torch.randint(2 * n, (count, n), generator=generator)
        where = f"{name}, n={n}, {kind}, spread {spread:.3g}"
        ties = pick(("share", "mask"), generator)
        check(SortingLoss(relaxation, ties=ties), scores, values, where, outcome)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    outcome = fuzz(arguments.cases, arguments.seed)
    print(f"{outcome.cases} cases, seed {arguments.seed}, {time.perf_counter() - start:.0f} s")
    print(f"not finite: {len(outcome.not_finite)}")
    for where in outcome.not_finite[:20]:
        print(f"  {where}")
    for quantity, (error, where) in outcome.worst.items():
        print(f"largest relative error of {quantity} in float32: {error:.2e}  ({where})")


if __name__ == "__main__":
    main()
