"""Timing several functions side by side: interleaved, so that a noisy machine disturbs all of them alike."""

import random
import statistics
import time
from collections.abc import Callable

import torch

Functions = dict[str, Callable[[], object]]


def rounds_of(
    functions: Functions,
    rounds: int,
    warm_up: int,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """The seconds of each function in each round. All run in every round, each time in another order.

    Whoever follows a function that runs the same code finds it in the caches, so none may always do so.
    On a device a function counts from an idle device until it is idle again.
    """
    names = list(functions)
    wait = torch.cuda.synchronize if device.startswith("cuda") else _at_once
    taken: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)
    for index in range(rounds + warm_up):
        for name in order.sample(names, len(names)):
            wait()
            start = clock()
            functions[name]()
            wait()
            if index >= warm_up:
                taken[name].append(clock() - start)
    return taken


def _at_once() -> None:
    """A CPU is done when the call returns."""


def interleaved(functions: Functions, rounds: int = 30, warm_up: int = 3) -> dict[str, float]:
    """The median seconds of each function."""
    return {name: statistics.median(times) for name, times in rounds_of(functions, rounds, warm_up).items()}


def ratios(functions: Functions, rounds: int = 30, warm_up: int = 3) -> dict[str, float]:
    """The median over the rounds of each function's time divided by the first one's in the same round.

    A slow spell of the machine lasts longer than a round, so it cancels in the quotient.
    """
    return to_first(rounds_of(functions, rounds, warm_up))


def to_first(taken: dict[str, list[float]]) -> dict[str, float]:
    """The ratios of rounds that were taken already."""
    base = next(iter(taken.values()))
    return {name: statistics.median(a / b for a, b in zip(times, base, strict=True)) for name, times in taken.items()}
