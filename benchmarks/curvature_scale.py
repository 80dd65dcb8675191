"""How large is the curvature of a training loss, beside the λ that the paper damps it with?

    python benchmarks/curvature_scale.py sorting --steps 400 --every 100
    python benchmarks/curvature_scale.py paths --algorithms smoothed-loss --samples 10

Trains the baseline with the settings of the experiments, on a CPU, and prints now and then the smallest and the largest
eigenvalue of the batch's mean Hessian and the largest of its empirical Fisher, each divided by the paper's λ. Where the
largest is far below 1 the damping is all that is left, and the Newton loss is the plain one; where it is far above, the
curvature rules. A Hessian with an eigenvalue near −1 makes C + λI singular and the step arbitrarily long.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

import newton_losses as nl
from newton_losses.curvature import Curvature
from newton_losses.errors import ArgumentError, NewtonLossesError
from newton_losses_bench.config import PATHS_ALGORITHMS, SORTING_ALGORITHMS, PathsConfig, RunConfig, SortingConfig
from newton_losses_bench.describe import number
from newton_losses_bench.train import make_task
from newton_losses_bench.train_step import Trainer


class Watch:
    """The outputs and targets that the loss of a task last saw."""

    def __init__(self, module: nn.Module) -> None:
        self.seen: tuple[Tensor, ...] = ()
        module.register_forward_hook(self._see)

    def _see(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.seen = tuple(tensor.detach() for tensor in inputs)


def paper_damping(config: RunConfig, curvature: str) -> float | None:
    """The paper's λ, or `None` where a loss has no such curvature."""
    try:
        return replace(config, curvature=curvature, damping=None, spectrum=None).resolved().damping
    except ArgumentError:
        return None


def scales(config: RunConfig, steps: int, every: int) -> Iterator[str]:
    """A line for each of the steps that are looked at."""
    task = make_task(config)
    watch = Watch(task.loss_module)
    trainer = Trainer(task, config)
    dampings = {kind: paper_damping(config, kind) for kind in ("hessian", "fisher")}
    for step in range(steps):
        trainer.train_step()
        if step % every and step != steps - 1:
            continue
        found = []
        for kind, damping in dampings.items():
            if damping is None:
                continue
            curvature = nl.expand(task.loss_module.loss, *watch.seen, curvature=kind).curvature
            matrix = curvature.dense() if isinstance(curvature, Curvature) else curvature
            eigenvalues = torch.linalg.eigvalsh(matrix.double()) / damping
            found.append(f"{kind}/{damping:g}: {eigenvalues[0]:9.3g} to {eigenvalues[-1]:9.3g}")
        spread = watch.seen[0].flatten(1).std(1).mean()
        yield f"{step + 1:>6}  loss {number(trainer.last_loss()):>9}  spread {spread:7.3g}  " + "   ".join(found)


def configurations(options: argparse.Namespace) -> Iterator[tuple[str, RunConfig]]:
    common = {"device": "cpu", "data_root": options.data_root}
    if options.task == "sorting":
        for algorithm in options.algorithms or SORTING_ALGORITHMS:
            config = SortingConfig(algorithm=algorithm, n=options.n, numerics=options.numerics, **common)
            yield f"{algorithm}, n={options.n}, {options.numerics}", config.resolved()
        return
    for algorithm in options.algorithms or PATHS_ALGORITHMS:
        samples = {} if algorithm == "bellman-ford" else {"num_samples": options.samples}
        config = PathsConfig(algorithm=algorithm, train_maps=2100, test_maps=100, **samples, **common)
        yield ", ".join([algorithm, *(f"{count} samples" for count in samples.values())]), config.resolved()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["sorting", "paths"])
    parser.add_argument("--algorithms", nargs="+")
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--numerics", default="stable")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--steps", type=int, default=201)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--data-root")
    options = parser.parse_args()
    try:
        for name, config in configurations(options):
            print(name, flush=True)
            for line in scales(config, options.steps, options.every):
                print(line, flush=True)
    except NewtonLossesError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
