"""The cross-entropy of a matrix's rows within a CUDA kernel: its derivatives by the log-weights, and products with
its Hessian. Importing this module imports triton.

The formulas are those of `_cross_entropy.py`, the product is that of `_network_numba.py`.
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

FAR = tl.constexpr(1e30)


@_jit
def exchange(matrix, partner, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The rows of the wires' partners."""
    return tl.gather(matrix, tl.broadcast_to(partner[:, None], (SIZE, SIZE)), 0)


@_jit
def log_of_one_plus(x):  # type: ignore[no-untyped-def]
    """log(1 + x) for x ≥ 0: what rounding took from 1 + x, the quotient gives back."""
    whole = 1.0 + x
    lost = tl.where(whole == 1.0, 1.0, whole - 1.0)
    return tl.where(whole == 1.0, x, x * (tl.log(whole) / lost))


@_jit
def row_losses(state, target, cells, rows, tops, size, HESSIAN: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The loss of one sample and its derivatives by the log-weights; what `row_products` needs goes to memory.

    `target` and `cells` point to the sample's own n × n.
    """
    i = tl.arange(0, SIZE)
    item = i[None, :]
    inside = (i[:, None] < size) & (item < size)
    wanted = tl.load(target + i[:, None] * size + item, mask=inside, other=0.0)
    cell = tl.load(cells + i[:, None] * size + item, mask=inside, other=0.0)

    # A row of NaN has no largest entry, but needs an index.
    ordered = tl.where(state == state, state, -FAR)
    top = tl.argmax(ordered, 1)
    is_top = item == top[:, None]
    from_top = state - tl.max(ordered, 1)[:, None]
    lowered = tl.where(is_top, -FAR, from_top)
    second_best = tl.max(lowered, 1)
    # The top may exceed all others by any factor, so that these are weighed among themselves.
    among = tl.where(item < size, tl.exp(lowered - second_best[:, None]), 0.0)
    total = tl.sum(among, 1)
    weight = tl.where(item < size, tl.exp(from_top), 0.0)
    others = tl.where(is_top, 0.0, weight)
    rest = 1.0 + (tl.sum(others, 1)[:, None] - others)
    odds = tl.where(is_top, -(second_best + tl.log(total))[:, None], from_top - tl.log(rest))

    tail = tl.exp(-tl.abs(odds))
    entropy = log_of_one_plus(tail) + wanted * tl.maximum(-odds, 0.0) + (1.0 - wanted) * tl.maximum(odds, 0.0)
    likely = tl.where(odds > 0, 1.0, tail) / (1.0 + tail)
    unlikely = tl.where(odds > 0, tail, 1.0) / (1.0 + tail)
    first = cell * ((1.0 - wanted) * likely - wanted * unlikely)
    inverse = tl.where(is_top, 0.0, 1.0 / rest)
    below = tl.where(is_top, 0.0, among / total[:, None])
    spread = first * inverse
    by_top = tl.sum(tl.where(is_top, first, 0.0), 1)[:, None]
    pull = weight * (tl.sum(spread, 1)[:, None] - spread) + below * by_top
    if HESSIAN:
        at = rows + i[:, None] * SIZE + item
        tl.store(at, weight)
        tl.store(at + SIZE * SIZE, inverse)
        tl.store(at + 2 * SIZE * SIZE, first)
        tl.store(at + 3 * SIZE * SIZE, cell * likely * unlikely)
        tl.store(at + 4 * SIZE * SIZE, pull)
        tl.store(at + 5 * SIZE * SIZE, below)
        tl.store(tops + i, top)
    return tl.sum(tl.sum(cell * entropy, 1), 0), first - pull


@_jit
def row_products(tangent, rows, tops, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """All rows' Hessians by their log-weights, each times its tangent T.

    With U_j = Σ_k π^j_k T_k, the mean of the tangents over the other items, ż = T − U and h = φ''ż − φ'U, this is
    φ''_k ż_k − pull_k T_k − Σ_{j≠k} π^j_k h_j.
    """
    i = tl.arange(0, SIZE)
    at = rows + i[:, None] * SIZE + i[None, :]
    weight = tl.load(at)
    inverse = tl.load(at + SIZE * SIZE)
    first = tl.load(at + 2 * SIZE * SIZE)
    second = tl.load(at + 3 * SIZE * SIZE)
    pull = tl.load(at + 4 * SIZE * SIZE)
    below = tl.load(at + 5 * SIZE * SIZE)
    is_top = i[None, :] == tl.load(tops + i)[:, None]

    # A constant of the row changes nothing; taking out the likeliest item's keeps the terms small.
    tangent -= tl.sum(tl.where(is_top, tangent, 0.0), 1)[:, None]
    mean = tl.sum(weight * tangent, 1)[:, None]
    mean_below = tl.sum(below * tangent, 1)[:, None]
    around = tl.where(is_top, mean_below, (mean - weight * tangent) * inverse)
    bend = second * (tangent - around)
    change = bend - first * around
    by_top = tl.sum(tl.where(is_top, change, 0.0), 1)[:, None]
    spread = change * inverse
    return bend - pull * tangent - weight * (tl.sum(spread, 1)[:, None] - spread) - below * by_top
