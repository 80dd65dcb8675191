"""When does a Newton loss help? Small training problems, each with every variant, and how well `diagnose` predicts it.

    python benchmarks/catalogue.py train   # what is missing in benchmarks/catalogue.json; about 25 CPU-minutes for all
    python benchmarks/catalogue.py table   # the gains, and the confusion table of the prediction

A network of two layers learns each problem of `catalogue_problems.py` with Adam, a cosine schedule and fresh samples in
every step, from four seeds, which give all variants the same weights and samples. Of three learning rates each variant
is judged by its best. A gain is the ratio of final losses: the better of plain and clipped training over the variant's.
"""

import argparse
import json
import math
import statistics
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from catalogue_problems import PROBLEMS, Problem
from newton_losses import DerivativeError, NewtonLoss, NormalizedDamping
from newton_losses.diagnose import GROWS, LEADS, Report, diagnose

FILE = Path(__file__).with_suffix(".json")
INPUTS, HIDDEN, HELD_OUT = 10, 32, 1024
RATES = (0.01, 0.03, 0.1)
SEEDS = (1, 2, 3, 4)
# A variant that shall be compared is one more line here. The first three normalise each batch on its own.
VARIANTS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "clipped": None,
    "normalised": {"curvature": "fisher", "damping": NormalizedDamping(1000)},
    "fisher": {"curvature": "fisher", "damping": NormalizedDamping()},
    "hessian": {"curvature": "hessian", "damping": NormalizedDamping()},
    "default": {"curvature": "fisher"},
    "sample": {"curvature": "sample"},
}


def network(outputs: int, seed: int) -> nn.Sequential:
    """With outputs of about standard normal size, as a teacher, and smaller ones as a student."""
    layers = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs))
    generator = torch.Generator().manual_seed(seed)
    for parameter in layers.parameters():
        fan_in = parameter.shape[1] if parameter.dim() > 1 else math.inf
        parameter.data = torch.randn(parameter.shape, generator=generator) / math.sqrt(fan_in)
    return layers


class Task:
    """One problem from one seed: the student, and batches of inputs with their targets."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.teacher = network(problem.outputs, 1000 + seed)
        self.teacher[2].weight.data *= 2
        self.student = network(problem.outputs, 2000 + seed)
        self.generator = torch.Generator().manual_seed(3000 + seed)

    def batch(self, count: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        inputs = torch.randn(count, INPUTS, generator=self.generator)
        with torch.no_grad():
            return inputs, self.problem.targets(self.teacher(inputs))

    def train(self, variant: str, rate: float, steps: int | None = None) -> None:
        """For all steps of the schedule, or the first of them."""
        options = VARIANTS[variant]
        if isinstance(generator := getattr(self.problem.loss, "generator", None), torch.Generator):
            generator.manual_seed(0)
        loss = self.problem.loss if options is None else NewtonLoss(self.problem.loss, **options)
        # A memory of 100 of 150 steps: the usual 1000 would be longer than the whole training.
        optimizer = torch.optim.Adam(self.student.parameters(), lr=rate, betas=(0.9, 0.99))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.problem.steps)
        norms: list[float] = []
        for _ in range(self.problem.steps if steps is None else steps):
            inputs, targets = self.batch(self.problem.batch)
            optimizer.zero_grad()
            loss(self.student(inputs), *targets).mean().backward()
            if variant == "clipped":  # at the median of all norms so far: a threshold that has no unit
                norms.append(float(nn.utils.get_total_norm(p.grad for p in self.student.parameters())))
                nn.utils.clip_grad_norm_(self.student.parameters(), statistics.median(norms))
            optimizer.step()
            schedule.step()

    def error(self) -> float:
        inputs, targets = self.batch(HELD_OUT)
        with torch.no_grad():
            found = (self.problem.metric or self.problem.loss)(self.student(inputs), *targets)
        return float(found.mean())


def trained(problem: Problem, variant: str, rate: float, seed: int) -> float:
    task = Task(problem, seed)
    task.train(variant, rate)
    return task.error()


def measured(problem: Problem, variant: str) -> dict[str, Any]:
    """The final errors of all seeds at each learning rate."""
    began = time.process_time()
    try:
        errors = {
            str(rate): [float(f"{trained(problem, variant, rate, seed):.6g}") for seed in SEEDS] for rate in RATES
        }
    except DerivativeError as error:
        return {"error": str(error)}
    return {"errors": errors, "seconds": round(time.process_time() - began, 1)}


def train(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(options.file.read_text()) if options.file.exists() else {}
    for problem in PROBLEMS:
        own = found.setdefault(problem.name, {})
        for variant in options.variants:
            if variant not in own and problem.name in (options.only or {problem.name}):
                own[variant] = measured(problem, variant)
                print(f"{problem.name:26} {variant:10} {own[variant].get('seconds')} s", flush=True)
                options.file.write_text(written(found))


def written(found: dict[str, Any]) -> str:
    """Two levels of names as JSON, one line for each of the lower (here a variant)."""
    problems = (
        f" {json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(variant)}: {json.dumps(one)}" for variant, one in own.items())
        + "\n }"
        for name, own in found.items()
    )
    return "{\n" + ",\n".join(problems) + "\n}\n"


def best(found: dict[str, Any]) -> tuple[str, list[float]]:
    """The learning rate with the lowest mean logarithm of the errors, and the errors of its seeds."""
    rate = min(found["errors"], key=lambda rate: statistics.mean(map(_log, found["errors"][rate])))
    return rate, found["errors"][rate]


def _log(error: float) -> float:
    return math.log(max(error, 1e-9)) if math.isfinite(error) else math.log(1e9)


def gains(own: dict[str, Any], variant: str) -> list[float] | None:
    """Per seed, the logarithm of how much lower the error is than that of plain or clipped training."""
    if "errors" not in own[variant]:
        return None
    reference = min((best(own[one])[1] for one in ("plain", "clipped")), key=lambda e: sum(map(_log, e)))
    return [_log(a) - _log(b) for a, b in zip(reference, best(own[variant])[1], strict=True)]


def label(gain: list[float]) -> str:
    """More than a tenth, and more than two standard errors."""
    mean, error = statistics.mean(gain), statistics.stdev(gain) / math.sqrt(len(gain))
    if abs(mean) < max(math.log(1.1), 2 * error):
        return "no difference"
    return "helps" if mean > 0 else "harms"


def diagnosed(problem: Problem, own: dict[str, Any]) -> Report:
    """At a batch of outputs after a quarter of plain training."""
    task = Task(problem, SEEDS[0])
    task.train("plain", float(best(own["plain"])[0]), problem.steps // 4)
    inputs, targets = task.batch(problem.batch)
    return diagnose(problem.loss, task.student(inputs).detach(), *targets)


class Measured(NamedTuple):
    """What `diagnose` found, what its rule makes of it, and what training with the default showed."""

    grows: float
    leads: float
    verdict: str
    label: str

    def right(self, grows: float, leads: float) -> bool:
        return self.predicted(grows, leads) == self.label

    def predicted(self, grows: float, leads: float) -> str:
        return "helps" if self.grows >= grows or self.leads >= leads else "no difference"


def thresholds(known: list[Measured]) -> tuple[float, float]:
    """The two numbers of the rule with which most problems are right; of equal ones the middle."""
    tried = list(product((1.5, 2.0, 2.5, 3.0), (1.05, 1.1, 1.15, 1.2, 1.25, 1.3)))
    right = [sum(one.right(*pair) for one in known) for pair in tried]
    equal = [pair for pair, count in zip(tried, right, strict=True) if count == max(right)]
    return equal[len(equal) // 2]


def table(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    found = json.loads(options.file.read_text())
    shown = [variant for variant in VARIANTS if variant not in ("plain", "clipped")]
    print("Final error of the better of plain and clipped training, over that of each variant; its learning rate")
    print(f"{'':26}" + "".join(f"{variant:>26}" for variant in shown) + "   diagnose: verdict, grows, leads")
    measured: dict[str, Measured] = {}
    for problem in PROBLEMS:
        own = found.get(problem.name, {})
        cells = "".join(f"{_cell(own, variant):>26}" for variant in shown)
        if "default" not in own:
            print(f"{problem.name:26}{cells}")
            continue
        report = diagnosed(problem, own)
        grows, leads = 0.0, 0.0
        if report.descent is not None and report.verdict != "fix":
            grows, leads = report.descent.grows, report.descent.lead(report.descent.candidates[0])
        one = Measured(grows, leads, report.verdict, label(gains(own, "default") or []))
        measured[problem.name] = one
        print(f"{problem.name:26}{cells}   {one.verdict:4} {grows:8.2g} {leads:.2f}", flush=True)
    for variant in shown:
        tried = [gain for own in found.values() if variant in own and (gain := gains(own, variant)) is not None]
        print(f"{variant}, {len(tried)} problems: {dict(Counter(map(label, tried)))}")
    _print_confusion(measured)


def _cell(own: dict[str, Any], variant: str) -> str:
    if variant not in own or "plain" not in own:
        return "not run"
    gain = gains(own, variant)
    if gain is None:
        return "no second derivative"
    return f"{math.exp(statistics.mean(gain)):.2f} {label(gain)} {best(own[variant])[0]}"


def _print_confusion(measured: dict[str, Measured]) -> None:
    """Each problem with the thresholds that the others give, and all of them with those of all."""
    counts: Counter[tuple[str, str]] = Counter()
    for name, one in measured.items():
        pair = thresholds([other for key, other in measured.items() if key != name])
        counts[one.label, one.predicted(*pair)] += 1
    everything = list(measured.values())
    grows, leads = thresholds(everything)
    print(f"\nThe default, {len(measured)} problems, each left out in turn:\n")
    print(f"{'measured':16}{'predicted: helps':>18}{'predicted: no difference':>26}")
    for name in ("helps", "no difference", "harms"):
        print(f"{name:16}{counts[name, 'helps']:18}{counts[name, 'no difference']:26}")
    right = counts["helps", "helps"] + counts["no difference", "no difference"]
    print(f"\nright: {right} of {len(measured)}, {right / len(measured):.0%}")
    print(f"thresholds from all: grows {grows}, leads {leads}; those of diagnose: grows {GROWS}, leads {LEADS}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE, help="where the results of training are kept")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("train")
    command.add_argument("--only", nargs="*", help="names of problems")
    command.add_argument("--variants", nargs="*", default=list(VARIANTS))
    command.set_defaults(run=train)
    commands.add_parser("table").set_defaults(run=table)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
