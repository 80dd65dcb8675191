"""The CUDA kernels of the relaxed Bellman-Ford algorithm: one for the path, one for its gradient, one program per map.

Steps, thresholds and gradients are those of `_relaxation.py`; the conorms and the while loop are those of
`_bellman_ford.py`. A program holds its whole grid, padded to a power of two, and runs all iterations. A neighbour's
value comes by `tl.gather`, from tensor to tensor: Triton moves it through shared memory and places the barriers, so
no program reads memory that another of its threads has written. The first kernel stores what the way back needs
(distances, positions and paths of all iterations), the second reads it. No atomics, and nothing goes to the host.
Importing this module imports triton.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import _relaxation
from ._triton_shortest_path import neighbors, of_neighbors, padded

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

FAR = tl.constexpr(_relaxation.FAR)
FAINT = tl.constexpr(_relaxation.FAINT)


def relaxed_path(
    costs: Tensor, path: Tensor, kept: Tensor, beta: float, iterations: int, loop: str, conorm: str
) -> None:
    """Fill the path and what the pullback needs; see `path_operator`."""
    _launch(walk, (costs, path, kept), beta, iterations, loop, conorm)


def relaxed_path_pullback(
    kept: Tensor, gradient: Tensor, by_costs: Tensor, beta: float, iterations: int, loop: str, conorm: str
) -> None:
    """Fill the gradient by the costs; see `pullback_operator`."""
    _launch(walk_back, (gradient, by_costs, kept), beta, iterations, loop, conorm)


def _launch(kernel: Any, tensors: tuple[Tensor, ...], beta: float, iterations: int, loop: str, conorm: str) -> None:
    grids = tensors[0]
    count, height, width = grids.shape
    if count == 0:
        return
    # One cell per thread: there are more threads than work, and this makes the shortest chain.
    size = padded(height * width)
    with torch.cuda.device_of(grids):  # type: ignore[no-untyped-call]
        kernel[(count,)](
            # A number among the arguments would be rounded to float32; this one is filled in on the device.
            *tensors, grids.new_full((), beta), height, width,
            # A constant: older interpreters of Triton cannot loop over a number from the host.
            ITERATIONS=iterations, WHILE=loop == "while", YAGER=conorm == "yager",
            CUT=_relaxation.cut(grids.dtype), FAINTEST=_relaxation.faintest(grids.dtype),
            SIZE=size, num_warps=min(16, size // 32), num_stages=1,
        )  # fmt: skip


@_jit
def walk(  # type: ignore[no-untyped-def]
    costs, result, kept, beta, height, width,
    ITERATIONS: tl.constexpr, WHILE: tl.constexpr, YAGER: tl.constexpr,
    CUT: tl.constexpr, FAINTEST: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The path of one map. In 64 bits where the number of maps is a factor."""
    place = tl.program_id(0).to(tl.int64)
    cells = height * width
    vertex = tl.arange(0, SIZE)
    live = vertex < cells
    others, inside = neighbors(height, width, SIZE)
    beta = tl.load(beta)
    cost = beta * tl.load(costs + place * cells + vertex, mask=live, other=0.0)
    stride = 3 * cells + 1
    kept += place * ITERATIONS * stride

    weights = to_the_goal(cost, kept, others, inside, live, stride, ITERATIONS, CUT, FAINTEST, SIZE)
    nothing = tl.zeros_like(cost)
    position = tl.where(vertex == cells - 1, nothing + 1.0, 0.0)
    path = nothing
    average = nothing
    running = sigmoid(beta)
    for step in range(ITERATIONS):
        if YAGER:
            path = path + position
            path = tl.where(path > 1.0, 1.0, path)
        else:
            path = path + position - path * position
        row = kept + step * stride + cells
        tl.store(row + vertex, position, mask=live)
        tl.store(row + cells + vertex, path, mask=live)
        tl.store(row + 2 * cells, running)
        if WHILE:
            still = running * sigmoid(beta * (1.0 - tl.sum(tl.where(vertex == 0, path, 0.0), 0)))
            average += (running - still) * path
            running = still
        arrived = received(weights * position[None, :], others, inside, SIZE)
        position = tl.where(arrived <= FAINT, 0.0, arrived)
    if WHILE:
        path = average + running * path
    tl.store(result + place * cells + vertex, path, mask=live)


@_jit
def to_the_goal(  # type: ignore[no-untyped-def]
    cost, kept, others, inside, live, stride,
    ITERATIONS: tl.constexpr, CUT: tl.constexpr, FAINTEST: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The last weights; the distances before each iteration go to memory."""
    vertex = tl.arange(0, SIZE)
    distance = tl.where(vertex == 0, tl.zeros_like(cost), FAR)
    for step in range(ITERATIONS - 1):
        tl.store(kept + step * stride + vertex, distance, mask=live)
        weights, lead, nearest, total = softmin(distance, others, inside, CUT, FAINTEST, SIZE)
        mean = tl.sum(weights * lead, 0) / total
        distance = tl.where(vertex == 0, 0.0, nearest + cost - mean)
    tl.store(kept + (ITERATIONS - 1) * stride + vertex, distance, mask=live)
    weights, _, _, total = softmin(distance, others, inside, CUT, FAINTEST, SIZE)
    return weights / total[None, :]


@_jit
def walk_back(  # type: ignore[no-untyped-def]
    gradient, by_costs, kept, beta, height, width,
    ITERATIONS: tl.constexpr, WHILE: tl.constexpr, YAGER: tl.constexpr,
    CUT: tl.constexpr, FAINTEST: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The gradient of one map's path times `gradient`, from what `walk` has kept."""
    place = tl.program_id(0).to(tl.int64)
    cells = height * width
    vertex = tl.arange(0, SIZE)
    live = vertex < cells
    others, inside = neighbors(height, width, SIZE)
    beta = tl.load(beta)
    by_path = tl.load(gradient + place * cells + vertex, mask=live, other=0.0)
    stride = 3 * cells + 1
    kept += place * ITERATIONS * stride

    last = tl.load(kept + (ITERATIONS - 1) * stride + vertex, mask=live, other=FAR)
    weights, _, _, total = softmin(last, others, inside, CUT, FAINTEST, SIZE)
    weights = weights / total[None, :]
    by_weights = back_to_the_goal(
        weights, by_path, kept + cells, others, inside, live, cells, stride, beta, ITERATIONS, WHILE, YAGER, SIZE
    )

    # The last iteration gives the weights s themselves: ∂/∂around = s (Σ s g − g).
    sent = weights * by_weights
    sent = weights * tl.sum(sent, 0)[None, :] - sent
    by_cost = tl.zeros_like(by_path)
    for back in range(ITERATIONS - 1):
        by_distance = tl.where(vertex == 0, 0.0, received(sent, others, inside, SIZE))
        by_distance = tl.where(tl.abs(by_distance) <= FAINT, 0.0, by_distance)
        by_cost += by_distance
        # The others give the distance d = Σ s·around: ∂d/∂around = s (1 + lead − Σ s lead).
        before = tl.load(kept + (ITERATIONS - 2 - back) * stride + vertex, mask=live, other=FAR)
        shares, lead, _, total = softmin(before, others, inside, CUT, FAINTEST, SIZE)
        mean = tl.sum(shares * lead, 0) / total
        sent = shares * (lead + (1.0 - mean)[None, :]) * (by_distance / total)[None, :]
    tl.store(by_costs + place * cells + vertex, beta * by_cost, mask=live)


@_jit
def back_to_the_goal(  # type: ignore[no-untyped-def]
    weights, gradient, steps, others, inside, live, cells, stride, beta,
    ITERATIONS: tl.constexpr, WHILE: tl.constexpr, YAGER: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The gradient by the weights: through the average, the gathering and the steps, last step first.

    `steps` points to the map's first position. Step 0 is constant and takes no gradient.
    """
    vertex = tl.arange(0, SIZE)
    by_weights = tl.zeros_like(weights)
    by_position = tl.zeros_like(gradient)
    by_path = gradient
    final = steps + (ITERATIONS - 1) * stride
    path = tl.load(final + cells + vertex, mask=live, other=0.0)
    position = tl.load(final + vertex, mask=live, other=0.0)
    if WHILE:
        # The last path counts once more, with what is left of the running product.
        by_running = tl.sum(gradient * path, 0)
        by_path = tl.load(final + 2 * cells) * sigmoid(beta * (1.0 - tl.load(final + cells))) * gradient
    for back in range(ITERATIONS - 1):
        row = steps + (ITERATIONS - 1 - back) * stride
        if WHILE:
            along = tl.sum(gradient * path, 0)
            share, slope, by_running = by_condition(row + cells, cells, beta, by_running, along)
            by_path += share * gradient + tl.where(vertex == 0, slope, 0.0)
        earlier = tl.load(row - stride + vertex, mask=live, other=0.0)
        path = tl.load(row - stride + cells + vertex, mask=live, other=0.0)
        if YAGER:
            by_path = tl.where(path + position <= 1.0, by_path, 0.0)
            by_position += by_path
        else:
            by_position += by_path * (1.0 - path)
            by_path = by_path * (1.0 - position)
        # A share that was dropped has no derivative.
        by_position = by_position * (position != 0.0).to(by_position.dtype)
        around = of_neighbors(by_position, others, inside, 0.0, SIZE)
        by_weights += around * earlier[None, :]
        by_position = tl.sum(around * weights, 0)
        position = earlier
    return by_weights


@_jit
def by_condition(path, cells, beta, by_later, along):  # type: ignore[no-untyped-def]
    """The share of one step's path in the average, the gradient by its first vertex, and that by p(t).

    `path` points to the path after the step, `along` is its product with the gradient, `by_later` the gradient by
    p(t + 1) from all that comes after.
    """
    running = tl.load(path + cells)
    condition = sigmoid(beta * (1.0 - tl.load(path)))
    by_still = by_later - along
    slope = -beta * condition * (1.0 - condition) * running * by_still
    return running - running * condition, slope, by_still * condition + along


@_jit
def received(sent, others, inside, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of what a vertex's neighbours send to it; `sent` `(8, SIZE)` is what each sends to its own neighbours."""
    opposite = (7 - tl.arange(0, 8))[:, None]
    found = tl.gather(tl.reshape(sent, [8 * SIZE]), tl.reshape(opposite * SIZE + others, [8 * SIZE]), 0)
    return tl.sum(tl.where(inside, tl.reshape(found, [8, SIZE]), 0.0), 0)


@_jit
def softmin(distance, others, inside, CUT: tl.constexpr, FAINTEST: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Weights that are not yet divided by their sum, the lead, the nearest, and that sum.

    A neighbour that is not a number makes its weight and so the sum NaN, whatever the nearest is. Every threshold is
    written so that NaN stays NaN.
    """
    around = of_neighbors(distance, others, inside, FAR, SIZE)
    nearest = tl.min(around, 0)
    lead = nearest[None, :] - around
    lead = tl.where(lead < -CUT, -CUT, lead)
    weights = tl.exp(lead)
    weights = tl.where(weights <= FAINTEST, 0.0, weights)
    return weights, lead, nearest, tl.sum(weights, 0)


@_jit
def sigmoid(x):  # type: ignore[no-untyped-def]
    return 1.0 / (1.0 + tl.exp(-x))
