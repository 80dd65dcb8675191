"""When does a Newton loss help? Small training problems, each with every variant, and how well `diagnose` predicts it.

    python benchmarks/catalogue.py train   # what is missing in benchmarks/catalogue.json; all of it in 15 CPU-minutes
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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from catalogue_problems import PROBLEMS, Problem
from newton_losses import DerivativeError, NewtonLoss, NormalizedDamping
from newton_losses.diagnose import Report, diagnose

FILE = Path(__file__).with_suffix(".json")
INPUTS, HIDDEN, HELD_OUT = 10, 32, 1024
RATES = (0.01, 0.03, 0.1)
SEEDS = (1, 2, 3, 4)
# A variant that shall be compared is one more line here.
VARIANTS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "clipped": None,
    "normalised": {"curvature": "fisher", "damping": NormalizedDamping(1000)},
    "fisher": {"curvature": "fisher"},
    "hessian": {"curvature": "hessian"},
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
        errors = {str(rate): [trained(problem, variant, rate, seed) for seed in SEEDS] for rate in RATES}
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
                options.file.write_text(json.dumps(found, indent=1) + "\n")


def diagnosed(problem: Problem, rate: float) -> Report:
    """What `diagnose` measures at a batch of outputs after a quarter of plain training."""
    task = Task(problem, SEEDS[0])
    task.train("plain", rate, problem.steps // 4)
    inputs, targets = task.batch(problem.batch)
    return diagnose(problem.loss, task.student(inputs).detach(), *targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("train")
    command.add_argument("--only", nargs="*", help="names of problems")
    command.add_argument("--variants", nargs="*", default=list(VARIANTS))
    command.add_argument("--file", type=Path, default=FILE)
    command.set_defaults(run=train)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
