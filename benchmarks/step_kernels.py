"""Where the time of a captured training step goes: its kernels, the slowest first.

    PYTHONPATH=src python benchmarks/step_kernels.py                                  # softsort, n = 5, baseline
    PYTHONPATH=src python benchmarks/step_kernels.py --algorithm logistic --n 10 --curvature hessian

Needs a CUDA device. Pictures are random: their content does not change the time. What was tried on the way
to the present step, and what came of it, is in `step_notes.md`.
"""

import argparse
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from newton_losses.bench.config import SortingConfig
from newton_losses.bench.loop import precision_flags
from newton_losses.bench.tasks import SortingTask
from newton_losses.bench.trainer import Trainer
from training_step import random_digits

WARM_UP, STEPS = 30, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="softsort")
    parser.add_argument("--curvature", default="none")
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--rows", type=int, default=40)
    arguments = parser.parse_args()
    base = SortingConfig(
        algorithm=arguments.algorithm, n=arguments.n, device="cuda", precision="bf16", compile=True, graph=True
    )
    config = replace(base, curvature=arguments.curvature).resolved()
    with precision_flags("bf16"):
        trainer = Trainer(SortingTask(config, random_digits()), config)
        for _ in range(WARM_UP):
            trainer.train_step()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(STEPS):
                trainer.train_step()
            torch.cuda.synchronize()
    kernels = sorted(profiler.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    total = sum(kernel.self_device_time_total for kernel in kernels) / STEPS
    print(f"{total:9.1f} µs a step in {sum(kernel.count for kernel in kernels) / STEPS:.0f} kernels")
    for kernel in kernels[: arguments.rows]:
        print(f"{kernel.self_device_time_total / STEPS:9.1f} µs {kernel.count / STEPS:5.1f}× {kernel.key[:110]}")


if __name__ == "__main__":
    main()
