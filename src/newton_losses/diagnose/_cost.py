"""What each order of derivatives costs beside the loss itself, and how much of anything a budget buys."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from ._probe import Probe

Result = TypeVar("Result")


@dataclass(frozen=True)
class Cost:
    """Seconds for `samples` samples: the value alone, with gradients, and with either curvature.

    `hessian` is `None` where there is none, or would take too long to try; what is slow is timed on fewer
    samples and scaled.
    """

    value: float
    gradient: float
    fisher: float
    hessian: float | None
    samples: int


def timed(call: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """The result of one call and its seconds: of this process on a CPU, so that a busy machine changes no plan."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        result = call()
        torch.cuda.synchronize(device)
        return result, time.perf_counter() - began
    began = time.process_time()
    result = call()
    return result, time.process_time() - began


def seconds(call: Callable[[], object], device: torch.device, budget: float = 0.05) -> float:
    """The fastest call of as many as fit into the budget, at least one and at most 20; never nothing.

    Where the clock is too coarse for a single call, it is their mean; where it is too coarse for all, a nanosecond.
    """
    times: list[float] = []
    while not times or (len(times) < 20 and sum(times) < budget):
        times.append(timed(call, device)[1])
    return max(min(times) or sum(times) / len(times), 1e-9)


def affordable(cost: float, budget: float, least: int, most: int) -> int:
    """How often something of that cost is done: as often as the budget allows, within the bounds."""
    return max(least, min(most, int(budget / max(cost, 1e-9))))


def first_order_cost(probe: Probe, slow: float) -> Cost:
    """Where a gradient takes longer than `slow`, the products of gradients that make the Fisher count for nothing."""
    device = probe.y.device
    value = seconds(lambda: probe.values(probe.flat), device)
    gradient = seconds(lambda: probe.gradient(probe.flat), device)
    fisher = gradient if gradient > slow else seconds(lambda: probe.expand(probe.flat, "fisher"), device)
    return Cost(value, gradient, fisher, hessian=None, samples=probe.count)
