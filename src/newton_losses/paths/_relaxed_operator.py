"""The Triton kernels of the relaxed Bellman-Ford algorithm as torch operators, and when they run.

What they compute is in `_triton_relaxation.py`; the same in torch's own operators is in `_bellman_ford.py`.
"""

import os
from typing import Literal

import torch
from torch import Tensor

from .._arguments import one_of
from .._backends import obstacle
from .._tracing import sees_operators
from ..errors import ArgumentError

Backend = Literal["auto", "triton", "torch"]

# What "auto" is on a device, where it can be used; on all others it is torch.
AUTOMATIC: dict[str, Backend] = {"cuda": "triton"}


def check_backend(backend: str) -> Backend:
    """`backend`, if it is one and installed."""
    chosen: Backend = one_of(backend, ("auto", "triton", "torch"), "backend", "RelaxedBellmanFord")
    if chosen == "triton" and (reason := obstacle(chosen)):
        raise ArgumentError(
            f"RelaxedBellmanFord: backend 'triton' {reason}. The back end 'torch' needs nothing and gives the "
            "same paths."
        )
    return chosen


def takes_triton(backend: Backend, costs: Tensor) -> bool:
    """Whether the kernels compute the paths of these costs `(B, H, W)`.

    They step aside on other devices than CUDA, for large grids, and where a compiler or a transform of torch.func looks
    at the operators, which it would not see.
    """
    if sees_operators():
        return False
    device = costs.device.type
    chosen = AUTOMATIC.get(device, "torch") if backend == "auto" else backend
    runs_here = device == "cuda" or (device == "cpu" and _is_interpreted())
    if chosen != "triton" or not runs_here or obstacle("triton"):
        return False
    from ._grid_triton import LARGEST

    return costs.shape[1] * costs.shape[2] <= LARGEST


def _is_interpreted() -> bool:
    """Whether Triton's kernels run in its interpreter, and so on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@torch.library.custom_op("newton_losses::relaxed_path", mutates_args=())
def path_operator(costs: Tensor, beta: float, iterations: int, loop: str, conorm: str) -> tuple[Tensor, Tensor]:
    """The relaxed path `(B, H, W)` of such costs in float32 or float64, and what the pullback needs.

    This is, for each map and iteration t, three grids and a number: the distances before iteration t, position and path
    after t steps back, and the running product p(t) of the while loop.
    """
    from ._triton_relaxation import relaxed_path

    path, kept = _fake_path(costs, beta, iterations, loop, conorm)
    relaxed_path(costs.contiguous(), path, kept, beta, iterations, loop, conorm)
    return path, kept


@path_operator.register_fake
def _fake_path(costs: Tensor, beta: float, iterations: int, loop: str, conorm: str) -> tuple[Tensor, Tensor]:
    count, height, width = costs.shape
    return costs.new_empty(costs.shape), costs.new_empty(count, iterations, 3 * height * width + 1)


@torch.library.custom_op("newton_losses::relaxed_path_pullback", mutates_args=())
def pullback_operator(kept: Tensor, gradient: Tensor, beta: float, iterations: int, loop: str, conorm: str) -> Tensor:
    """The gradient by the costs `(B, H, W)`, from that by the path and from what `path_operator` kept."""
    from ._triton_relaxation import relaxed_path_pullback

    by_costs = gradient.new_empty(gradient.shape)
    relaxed_path_pullback(kept, gradient.contiguous(), by_costs, beta, iterations, loop, conorm)
    return by_costs


@pullback_operator.register_fake
def _fake_pullback(kept: Tensor, gradient: Tensor, beta: float, iterations: int, loop: str, conorm: str) -> Tensor:
    return gradient.new_empty(gradient.shape)
