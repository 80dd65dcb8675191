"""What each order of derivatives costs beside the loss itself."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ._probe import Probe, clock


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


def seconds(call: Callable[[], object], device: torch.device, budget: float = 0.05) -> float:
    """The fastest call of as many as fit into the budget, at least one and at most 20."""
    best, over = float("inf"), clock(budget)
    repeats = 0
    while repeats == 0 or (repeats < 20 and not over()):
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
        repeats += 1
    return best


def first_order_cost(probe: Probe) -> Cost:
    device = probe.y.device
    return Cost(
        value=seconds(lambda: probe.values(probe.flat), device),
        gradient=seconds(lambda: probe.gradient(probe.flat), device),
        fisher=seconds(lambda: probe.expand(probe.flat, "fisher"), device),
        hessian=None,
        samples=probe.count,
    )
