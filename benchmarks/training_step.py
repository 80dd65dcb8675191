"""How long a training step takes, baseline against Fisher and Hessian, with the shapes of the experiments.

    PYTHONPATH=src python benchmarks/training_step.py                      # all of sorting, bf16, on CUDA
    PYTHONPATH=src python benchmarks/training_step.py --task paths
    PYTHONPATH=src python benchmarks/training_step.py --compile --lengths 5 --algorithms softsort --library
    PYTHONPATH=src python benchmarks/training_step.py --compile --wait     # compile now, measure after Enter
    PYTHONPATH=src python benchmarks/training_step.py --device cpu --repeats 3 --steps 2   # does it run at all

The step is the one that `newton-losses train` runs: sampling, network, loss, curvature, solve, optimizer; on
CUDA a captured graph. The arms take turns, a block of steps each, several times over, and the median block
counts: so that a device that gets warm or busy does not favour one of them. Pictures and maps are random:
their content does not change the time.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from newton_losses_bench.config import PATHS_ALGORITHMS, SORTING_ALGORITHMS, PathsConfig, RunConfig, SortingConfig
from newton_losses_bench.data import LabeledImages, PathMaps, Splits
from newton_losses_bench.machine import precision_flags
from newton_losses_bench.tasks import PathsTask, SortingTask
from newton_losses_bench.train_step import Trainer


def random_digits() -> Splits[LabeledImages]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (55_000, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (55_000,), generator=generator)
    data = LabeledImages(images, labels)
    return Splits(data, data.part(0, 5_000), data.part(0, 10_000))


def random_maps(count: int) -> Splits[PathMaps]:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randint(0, 256, (count, 96, 96, 3), generator=generator, dtype=torch.uint8)
    costs = torch.rand(count, 12, 12, generator=generator).half()
    data = PathMaps(maps, costs, torch.eye(12, dtype=torch.uint8).expand(count, 12, 12).contiguous())
    data = data.with_statistics()
    return Splits(data, data, data)


def block_seconds(trainer: Trainer, steps: int) -> float:
    """Seconds a step over a block of steps, by the device's own clock where it has one."""
    if not torch.cuda.is_available() or trainer.tensors["last_loss"].device.type != "cuda":
        start = time.perf_counter()
        for _ in range(steps):
            trainer.train_step()
        return (time.perf_counter() - start) / steps
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(steps):
        trainer.train_step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / steps


def compare(title: str, arms: dict[str, Trainer], steps: int, repeats: int) -> None:
    """Print a line an arm: the median over the blocks, and its ratio to the baseline."""
    for trainer in arms.values():
        block_seconds(trainer, steps)  # clocks rise, caches fill
    blocks: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, trainer in arms.items():
            blocks[name].append(block_seconds(trainer, steps))
    medians = {name: statistics.median(times) for name, times in blocks.items()}
    for name, seconds in medians.items():
        ratio = seconds / medians["none"]
        print(f"{title:28} {name:8} {1000 * seconds:9.4f} ms/step  {ratio:6.3f} × baseline", flush=True)


Comparison = tuple[str, dict[str, Trainer]]


def trainers(
    make: type[SortingTask] | type[PathsTask], configs: dict[str, RunConfig], data: object
) -> dict[str, Trainer]:
    """A trainer an arm; the data is handed over instead of being read from files."""
    # A compiler keeps eight versions of a function, and what comes after those it silently leaves as it is.
    torch.compiler.reset()
    return {name: Trainer(make(config, data), config) for name, config in configs.items()}  # type: ignore[arg-type]


def sorting(arguments: argparse.Namespace, computing: dict[str, object]) -> Iterator[Comparison]:
    data = random_digits()
    for n in arguments.lengths:
        for algorithm in arguments.algorithms or SORTING_ALGORITHMS:
            base = SortingConfig(algorithm=algorithm, n=n, numerics=arguments.numerics, **computing)  # type: ignore[arg-type]
            configs = {c: replace(base, curvature=c).resolved() for c in arguments.curvatures}
            if arguments.library:
                configs["library"] = replace(base, kernels=False).resolved()
            yield f"sorting n={n} {algorithm}", trainers(SortingTask, configs, data)


def paths(arguments: argparse.Namespace, computing: dict[str, object]) -> Iterator[Comparison]:
    data = random_maps(arguments.maps)
    for algorithm in arguments.algorithms or PATHS_ALGORITHMS:
        curvatures = [c for c in arguments.curvatures if (algorithm, c) != ("smoothed-algorithm", "hessian")]
        base = PathsConfig(algorithm=algorithm, **computing)  # type: ignore[arg-type]
        configs = {c: replace(base, curvature=c).resolved() for c in curvatures}
        yield f"paths {algorithm}", trainers(PathsTask, configs, data)


def all_ready(comparisons: Iterator[Comparison]) -> Iterator[Comparison]:
    """The same, each captured and compiled, once a line comes in: what else runs on the machine can end first."""
    ready = list(comparisons)
    for _, arms in ready:
        for trainer in arms.values():
            block_seconds(trainer, 1)
    print("ready; press Enter to measure", flush=True)
    input()
    yield from ready


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("sorting", "paths"), default="sorting")
    parser.add_argument("--algorithms", nargs="*")
    parser.add_argument("--curvatures", nargs="*", default=["none", "fisher", "hessian"])
    parser.add_argument("--lengths", nargs="*", type=int, default=[5, 10])
    parser.add_argument("--numerics", default="stable")
    parser.add_argument("--library", action="store_true", help="an arm with torch's kernels instead of this project's")
    parser.add_argument("--maps", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200, help="steps in a block")
    parser.add_argument("--repeats", type=int, default=9, help="blocks an arm")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--wait", action="store_true", help="get everything ready, then wait for a line of input")
    arguments = parser.parse_args()
    if "none" not in arguments.curvatures:
        parser.error("the curvature none has to be among them: it is what the others are compared with")
    computing = {
        "device": arguments.device,
        "precision": arguments.precision,
        "compile": arguments.compile,
        "graph": not arguments.no_graph,
    }
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(f"torch {torch.__version__}, {where}, {computing}", flush=True)
    with precision_flags(arguments.precision):
        comparisons = (sorting if arguments.task == "sorting" else paths)(arguments, computing)
        for title, arms in all_ready(comparisons) if arguments.wait else comparisons:
            compare(title, arms, arguments.steps, arguments.repeats)


if __name__ == "__main__":
    main()
