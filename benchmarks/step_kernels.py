"""Where the time of a captured training step goes: its kernels against the two floors of the device.

    PYTHONPATH=src python benchmarks/step_kernels.py                                  # softsort, n = 5, baseline
    PYTHONPATH=src python benchmarks/step_kernels.py --algorithm logistic --n 10 --curvature hessian
    PYTHONPATH=src python benchmarks/step_kernels.py --library                        # torch's kernels instead of ours
    PYTHONPATH=src python benchmarks/step_kernels.py --task paths --curvature fisher  # kernels alone, no floors

Needs a CUDA device. A part's floor is the larger of its bytes over the bandwidth and its operations over the
rate of bf16 products, both measured in the same run: what the part would take if nothing else limited it.
Bytes count every input once and every output once, of the kernels that were met: on Hopper GPUs pooling is a part of
the second layer, and what lies before it is never written. Pictures are random: their content does not change the
time. What was tried on the way to the present step, and what came of it, is in `step_notes.md`.
"""

import argparse
from dataclasses import dataclass, replace

import torch
from torch.profiler import ProfilerActivity, profile

from newton_losses_bench.config import PathsConfig, SortingConfig
from newton_losses_bench.machine import precision_flags
from newton_losses_bench.tasks import PathsTask, SortingTask
from newton_losses_bench.train_step import Trainer
from training_step import block_seconds, random_digits, random_maps

WARM_UP, STEPS = 30, 10
PARAMETERS = 855_041
# The forward kernel of the second layer on Hopper GPUs, by which its kernels are known.
SECOND_LAYER = "second_layer_forward"


@dataclass(frozen=True)
class Part:
    """A part of the step: the names of its kernels begin or continue with one of `names`."""

    title: str
    names: tuple[str, ...]
    bytes: float
    operations: float = 0.0


def parts(pictures: int, *, hopper: bool) -> list[Part]:
    """The large parts, with what they cannot avoid to move and to compute; `hopper` by the kernels in CUDA C."""
    # Numbers a picture: bytes, with margins that Hopper's kernels do without; bf16, with a code where pooled,
    # of half a byte or a whole one.
    pixels, first, second, features = 28 * 112 if hopper else 32 * 116, 14 * 56 * 32, 14 * 56 * 64, 12544
    with_code = 2.5 if hopper else 3
    products = 2 * 14 * 56 * 25 * 32 * 64
    one_channel = 2 * 28 * 112 * 25 * 32
    head = 2 * 12544 * 64
    # Between the second layer's pixels and what its kernels know of its results.
    moved = 2 * first + (with_code * features if hopper else 2 * second)
    layer = "layer 2" if hopper else "convolution 2"
    pooling = [
        Part("pooling 2, forward", ("pool_forward",), 2 * second + 3 * features),
        Part("pooling 2, backward", ("pool_backward",), 2 * second + 3 * features),
    ]
    kernels = [
        Part("layer 1, forward", ("first_layer_forward",), pixels + with_code * first, one_channel),
        Part(
            "layer 1, backward",
            ("first_layer_backward", "first_layer_sum", "add_parts"),
            pixels + with_code * first,
            one_channel,
        ),
        Part(f"{layer}, forward", ("fprop", SECOND_LAYER), moved, products),
        Part(f"{layer}, by weight", ("wgrad", "second_layer_by_weight", "second_layer_sum"), moved, products),
        Part(f"{layer}, by input", ("dgrad", "second_layer_by_pixels"), moved, products),
        *([] if hopper else pooling),
        Part("head", ("linear_",), 8 * features, 3 * head),
    ]
    scaled = [replace(k, bytes=k.bytes * pictures, operations=k.operations * pictures) for k in kernels]
    return [*scaled, Part("Adam", ("adam", "FusedOpti"), 28 * PARAMETERS)]


def milliseconds(function) -> float:  # type: ignore[no-untyped-def]
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(3):
        function()
    begin.record()
    for _ in range(20):
        function()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 20


def measured_floors() -> tuple[float, float]:
    """Bytes and bf16 operations a microsecond: a copy of 1 GiB, a product of 8192×8192 matrices."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    bandwidth = 2 * 2**30 / (1000 * milliseconds(lambda: target.copy_(source)))
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    rate = 2 * 8192**3 / (1000 * milliseconds(lambda: matrix @ matrix))
    return bandwidth, rate


def profiled(trainer: Trainer) -> list[tuple[str, float, float]]:
    """Name, microseconds a step and launches a step of every kernel."""
    for _ in range(WARM_UP):
        trainer.train_step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            trainer.train_step()
        torch.cuda.synchronize()
    kernels = [(k.key, k.self_device_time_total / STEPS, k.count / STEPS) for k in profiler.key_averages()]
    return sorted(kernels, key=lambda kernel: -kernel[1])


def sorting_trainer(arguments: argparse.Namespace) -> Trainer:
    base = SortingConfig(
        algorithm=arguments.algorithm or "softsort", n=arguments.n, device="cuda", precision="bf16", compile=True,
        graph=True, kernels=not arguments.library,
    )  # fmt: skip
    config = replace(base, curvature=arguments.curvature).resolved()
    return Trainer(SortingTask(config, random_digits()), config)


def paths_trainer(arguments: argparse.Namespace) -> Trainer:
    base = PathsConfig(
        algorithm=arguments.algorithm or "fenchel-young", device="cuda", precision="bf16", compile=arguments.compile,
        graph=True,
    )  # fmt: skip
    config = replace(base, curvature=arguments.curvature).resolved()
    # All batches are full: a small one would count in the time of a step.
    return Trainer(PathsTask(config, random_maps(10 * config.batch_size)), config)


def print_floors(kernels: list[tuple[str, float, float]], pictures: int) -> None:
    """The parts of the step on digits, each beside its floor."""
    total = sum(time for _, time, _ in kernels)
    bandwidth, rate = measured_floors()
    print(f"floors: {bandwidth / 1e6:.2f} TB/s, {rate / 1e6:.0f} TFLOP/s in bf16, measured now")
    print(f"{'part':28}{'µs':>9}{'floor µs':>10}{'times':>7}  limited by")
    rest, floor_sum = total, 0.0
    hopper = any(SECOND_LAYER in name for name, *_ in kernels)
    for part in parts(pictures, hopper=hopper):
        time = sum(time for name, time, _ in kernels if any(key in name for key in part.names))
        by_bytes, by_operations = part.bytes / bandwidth, part.operations / rate
        floor = max(by_bytes, by_operations)
        limit = "bytes" if by_bytes > by_operations else "operations"
        print(f"{part.title:28}{time:9.1f}{floor:10.1f}{time / floor:7.1f}  {limit}")
        rest, floor_sum = rest - time, floor_sum + floor
    print(f"{'all the small ones':28}{rest:9.1f}")
    print(f"{'sum':28}{total:9.1f}{floor_sum:10.1f}{total / floor_sum:7.1f}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("sorting", "paths"), default="sorting")
    parser.add_argument("--algorithm", help="softsort, or on maps fenchel-young, if none is given")
    parser.add_argument("--curvature", default="none")
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--library", action="store_true", help="torch's kernels instead of this project's")
    parser.add_argument("--compile", action="store_true", help="the network of the maps, too; that of digits always is")
    arguments = parser.parse_args()
    if arguments.task == "paths" and (arguments.library or arguments.n != 5):
        parser.error("--library and --n are of sorting.")
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here, and its kernels are what is timed.")
    with precision_flags("bf16"):
        trainer = (sorting_trainer if arguments.task == "sorting" else paths_trainer)(arguments)
        kernels = profiled(trainer)
        step = 1e6 * block_seconds(trainer, 200)
    total = sum(time for _, time, _ in kernels)
    print(f"{total:9.1f} µs a step in {sum(count for *_, count in kernels):.0f} kernels; a step takes {step:.1f} µs")
    if arguments.task == "sorting":
        print_floors(kernels, 100 * arguments.n)
    for name, time, count in kernels[: arguments.rows]:
        print(f"{time:9.1f} µs {count:5.1f}× {name[:110]}")


if __name__ == "__main__":
    main()
