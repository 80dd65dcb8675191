"""Steps a second of one run alone, and of several seeds at once in the same process.

    PYTHONPATH=src python benchmarks/seeds_at_once.py                              # sorting, bf16, on CUDA: 2, 3, 4
    PYTHONPATH=src python benchmarks/seeds_at_once.py --task paths --algorithm fenchel-young --curvature hessian
    PYTHONPATH=src python benchmarks/seeds_at_once.py --device cpu --at-once 2 --repeats 1 --tiny   # does it run at all

These are whole runs as `newton-losses train` does them, with evaluations, checkpoints and results in a folder
that is deleted afterwards; a clock runs from the first step of any run to the last result. Getting ready
(capturing, compiling) is not in it. Alone and at once take turns, several times over, and the median counts.
Pictures and maps are random: their content does not change the time.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from newton_losses_bench.config import PathsConfig, RunConfig, SortingConfig
from newton_losses_bench.loop import PlannedRun, run_together
from newton_losses_bench.progress import Record, Silent
from newton_losses_bench.tasks import PathsTask, SortingTask, Task
from training_step import random_digits, random_maps


class Stopwatch(Silent):
    """From the first start to the last result of all runs that tell it."""

    def __init__(self) -> None:
        self.start = self.end = 0.0

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        self.start = self.start or time.perf_counter()

    def finished(self, result: Record, *, again: bool = False) -> None:
        self.end = time.perf_counter()


def steps_per_second(config: RunConfig, count: int, make: Callable[[Any], Task]) -> float:
    """Of `count` seeds at once, all their steps together."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        plans = [PlannedRun(replace(config, seed=seed), str(Path(folder, str(seed))), watch) for seed in range(count)]
        results = run_together(plans, at_once=count, make=make)
    return sum(result["steps"] for result in results) / (watch.end - watch.start)


def compare(config: RunConfig, counts: list[int], make: Callable[[Any], Task], repeats: int) -> None:
    """Print a line a number of seeds: the median over the repeats, and its ratio to one run alone."""
    steps_per_second(config, 1, make)  # clocks rise, caches fill, the compiler compiles
    found: dict[int, list[float]] = {count: [] for count in (1, *counts)}
    for _ in range(repeats):
        for count, rates in found.items():
            rates.append(steps_per_second(config, count, make))
    medians = {count: statistics.median(rates) for count, rates in found.items()}
    for count, rate in medians.items():
        spread = f"{min(found[count]):.1f} to {max(found[count]):.1f}"
        print(f"{count:2} at once {rate:9.1f} steps/s ({spread})  {rate / medians[1]:6.3f} × alone", flush=True)


def sorting(arguments: argparse.Namespace, computing: dict[str, Any]) -> tuple[RunConfig, Callable[[Any], Task]]:
    lengths = {"steps": arguments.steps or 3000, "n": arguments.n, "eval_every": arguments.eval_every or 1000}
    if arguments.tiny:
        lengths = {"steps": 3, "eval_every": 2, "batch_size": 2, "validation_sets": 2, "test_sets": 2}
    data = random_digits()
    config = SortingConfig(
        algorithm=arguments.algorithm or "softsort", curvature=arguments.curvature, **lengths, **computing
    )
    return config, lambda config: SortingTask(config, data)


def paths(arguments: argparse.Namespace, computing: dict[str, Any]) -> tuple[RunConfig, Callable[[Any], Task]]:
    data = random_maps(10 if arguments.tiny else 1000)
    epochs = 1 if arguments.tiny else -(-(arguments.steps or 1500) // 15)
    every = arguments.eval_every or 10
    config = PathsConfig(
        algorithm=arguments.algorithm or "fenchel-young",
        curvature=arguments.curvature,
        epochs=epochs,
        eval_every=every,
        **computing,
    )
    return config, lambda config: PathsTask(config, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("sorting", "paths"), default="sorting")
    parser.add_argument("--algorithm")
    parser.add_argument("--curvature", default="none")
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--at-once", nargs="*", type=int, default=[2, 3, 4])
    parser.add_argument("--steps", type=int, help="of each run; 3000 for sorting, 1500 for paths")
    parser.add_argument("--eval-every", type=int, help="steps (sorting, 1000) or epochs of 15 steps (paths, 10)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a few steps of small batches")
    arguments = parser.parse_args()
    computing = {"device": arguments.device, "precision": arguments.precision, "compile": arguments.compile}
    config, make = (sorting if arguments.task == "sorting" else paths)(arguments, computing)
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(f"torch {torch.__version__}, {where}, {config.resolved()}", flush=True)
    compare(config, arguments.at_once, make, arguments.repeats)


if __name__ == "__main__":
    main()
