"""The CUDA kernels of a sorting network's cross-entropy and of its rows. Importing this module imports triton.

Three launches take the place of the chain over the layers: one for the differences that the comparators see, one for
value and gradient with one program per sample, one for the Hessian with one per sample and score. Between the
first two the comparators are torch's, for any distribution. The steps are those of `_network_derivatives.py`; for the
Hessian, those of the CPU kernel (`_network_numba.py`): forward and back once more along each score.

A program holds a sample's whole matrix, wires × items in float64, with n padded to a power of two; a wire's partner is
fetched by `tl.gather`. The formulas of the rows are those of `_log_space.py`. What the way back needs is kept in
scratch memory. Each Hessian is stored on its own and summed by torch, always in the same order. Nothing is read back
to the host.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._network_triton_values import sort_values

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

FAR = tl.constexpr(1e30)
# Samples of one launch of `sort_values`: neighbours in memory.
SAMPLES = 8
# Bytes of scratch memory; larger batches go in parts.
SCRATCH = 1 << 29


def network_differences(values: Tensor, partners: Tensor, scale: Tensor, law: str) -> Tensor:
    """The differences that the comparators see, `(layers, n, N)`; see `differences_operator`."""
    (layers, size), count = partners.shape, values.shape[1]
    differences = values.new_empty(layers, size, count)
    if count:
        with torch.cuda.device_of(values):  # type: ignore[no-untyped-call]
            sort_values[(triton.cdiv(count, SAMPLES),)](
                values, partners.contiguous(), scale.contiguous(), differences, size, count, *values.stride(),
                LAYERS=layers, LAW=law, SIZE=_padded(size), SAMPLES=SAMPLES, num_warps=4,
            )  # fmt: skip
    return differences


def losses_by_triton(
    partners: Tensor, logs: Tensor, firsts: Tensor, seconds: Tensor, target: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What `network_losses` promises."""
    (layers, size), count = partners.shape, target.shape[0]
    with_gradient, with_hessian = firsts.shape[0] > 0, seconds.shape[0] > 0
    padded = _padded(size)
    value = target.new_empty(count)
    gradient = target.new_empty(count, size if with_gradient else 0)
    hessians = target.new_empty((count, size, size) if with_hessian else (count, 0, 0))
    inputs = [tensor.contiguous() for tensor in (partners, logs, firsts, seconds, target, cells)]
    tiles = layers * with_gradient + (layers + 6 + size * layers) * with_hessian
    part = max(1, SCRATCH // (8 * padded * padded * max(tiles, 1)))
    # The layers are a constant, known with n: older interpreters of Triton cannot loop over a number from the host.
    options = {"LAYERS": layers, "SIZE": padded, "num_warps": max(1, min(16, padded * padded // 256)), "num_stages": 1}
    with torch.cuda.device_of(target):  # type: ignore[no-untyped-call]
        for start in range(0, count, part):
            stop = min(start + part, count)
            scratch = _scratch(target, stop - start, layers, size, padded, with_gradient, with_hessian)
            common = (size, count, start)
            value_and_gradient[(stop - start,)](
                *inputs, value, gradient, *scratch[:5], *common,
                GRADIENT=with_gradient, HESSIAN=with_hessian, **options,
            )  # fmt: skip
            if with_hessian:
                hessian_rows[(stop - start, size)](inputs[0], inputs[2], hessians, *scratch, *common, **options)
    return value, gradient, hessians.sum(0)


def _padded(size: int) -> int:
    """A power of two. Below 8 most threads of a warp would only hold copies."""
    return max(8, 1 << (size - 1).bit_length())


def _scratch(
    like: Tensor, samples: int, layers: int, size: int, padded: int, gradient: bool, hessian: bool
) -> tuple[Tensor, ...]:
    """Shares, bents, curves, what the rows' Hessians need and their tops; and of each score gaps and steps."""
    back, twice = samples * gradient, samples * hessian
    return (
        like.new_empty(back, layers, padded, padded),
        like.new_empty(twice, layers, padded, padded),
        like.new_empty(twice, layers, padded),
        like.new_empty(twice, 6, padded, padded),
        like.new_empty(twice, padded, dtype=torch.int32),
        like.new_empty(twice, size, layers, padded, padded),
        like.new_empty(twice, size, layers, padded),
    )


@_jit
def value_and_gradient(  # type: ignore[no-untyped-def]
    partners, logs, firsts, seconds, target, cells, value, gradient, shares, bents, curves, rows, tops,
    size, count, start, LAYERS: tl.constexpr, GRADIENT: tl.constexpr, HESSIAN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One sample. In 64 bits wherever the number of samples is a factor: offsets may be beyond 32."""
    place = tl.program_id(0).to(tl.int64)
    sample = place + start
    i = tl.arange(0, SIZE)
    inside = i < size
    square = i[:, None] * SIZE + i[None, :]
    shares += place * LAYERS * SIZE * SIZE
    which = tl.zeros([SIZE], tl.int64) + LAYERS * size  # from one kind of a comparator's numbers to the next

    state = tl.where(i[:, None] == i[None, :], tl.zeros([SIZE, SIZE], tl.float64), -FAR)
    for layer in range(LAYERS):
        partner = tl.load(partners + layer * size + i, mask=inside, other=0).to(tl.int32)
        partner = tl.where(inside, partner, i)
        at = (which * 0 + layer * size + i) * count + sample
        keep = tl.load(logs + at, mask=inside, other=0.0)
        swap = tl.load(logs + at + which * count, mask=inside, other=0.0)
        kept = state + keep[:, None]
        swapped = exchange(state, partner, SIZE) + swap[:, None]
        smaller = tl.exp(-tl.abs(kept - swapped))
        if GRADIENT:
            share = tl.where(kept > swapped, 1.0, smaller) / (1.0 + smaller)
            tl.store(shares + layer * SIZE * SIZE + square, share)
        state = tl.maximum(kept, swapped) + log_of_one_plus(smaller)

    loss, adjoint = row_losses(
        state, target + sample * size * size, cells + sample * size * size,
        rows + place * 6 * SIZE * SIZE, tops + place * SIZE, size, HESSIAN, SIZE,
    )  # fmt: skip
    tl.store(value + sample, loss)
    if GRADIENT:
        # The shares were stored by other threads of this program.
        tl.debug_barrier()
        by_value = tl.zeros([SIZE], tl.float64)
        for back in range(LAYERS):
            layer = LAYERS - 1 - back
            partner = tl.load(partners + layer * size + i, mask=inside, other=0).to(tl.int32)
            partner = tl.where(inside, partner, i)
            at = (which * 0 + layer * size + i) * count + sample
            share = tl.load(shares + layer * SIZE * SIZE + square)
            through = adjoint * share
            beside = adjoint - through
            kept = tl.sum(through, 1)
            swapped = tl.sum(beside, 1)
            if HESSIAN:
                tl.store(bents + (place * LAYERS + layer) * SIZE * SIZE + square, through * (1.0 - share))
                curve = weighted(seconds, at, which * count, inside, kept, swapped, by_value)
                tl.store(curves + (place * LAYERS + layer) * SIZE + i, curve)
            push = weighted(firsts, at, which * count, inside, kept, swapped, by_value)
            adjoint = through + exchange(beside, partner, SIZE)
            by_value = by_value - push + tl.gather(push, partner, 0)
        tl.store(gradient + sample * size + i, by_value, mask=inside)


@_jit
def weighted(numbers, at, which, inside, kept, swapped, moved):  # type: ignore[no-untyped-def]
    """The derivatives of k, s and q, each times its adjoint, summed."""
    result = tl.load(numbers + at, mask=inside, other=0.0) * kept
    result += tl.load(numbers + at + which, mask=inside, other=0.0) * swapped
    return result + tl.load(numbers + at + 2 * which, mask=inside, other=0.0) * moved


@_jit
def hessian_rows(  # type: ignore[no-untyped-def]
    partners, firsts, hessians, shares, bents, curves, rows, tops, gaps, steps,
    size, count, start, LAYERS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The derivative of one sample's gradient along one score: tangents forward, then those of the adjoints back."""
    place = tl.program_id(0).to(tl.int64)
    direction = tl.program_id(1)
    sample = place + start
    i = tl.arange(0, SIZE)
    inside = i < size
    square = i[:, None] * SIZE + i[None, :]
    shares += place * LAYERS * SIZE * SIZE
    bents += place * LAYERS * SIZE * SIZE
    curves += place * LAYERS * SIZE
    gaps += (place * size + direction) * LAYERS * SIZE * SIZE
    steps += (place * size + direction) * LAYERS * SIZE
    which = tl.zeros([SIZE], tl.int64) + LAYERS * size

    values = tl.where(i == direction, tl.zeros([SIZE], tl.float64) + 1.0, 0.0)
    tangent = tl.zeros([SIZE, SIZE], tl.float64)
    for layer in range(LAYERS):
        partner = tl.load(partners + layer * size + i, mask=inside, other=0).to(tl.int32)
        partner = tl.where(inside, partner, i)
        at = firsts + (which * 0 + layer * size + i) * count + sample
        step = tl.gather(values, partner, 0) - values
        keep = tl.load(at, mask=inside, other=0.0) * step
        swap = tl.load(at + which * count, mask=inside, other=0.0) * step
        values += tl.load(at + 2 * which * count, mask=inside, other=0.0) * step
        other = exchange(tangent, partner, SIZE)
        gap = tangent - other + (keep - swap)[:, None]
        tangent = other + swap[:, None] + tl.load(shares + layer * SIZE * SIZE + square) * gap
        tl.store(gaps + layer * SIZE * SIZE + square, gap)
        tl.store(steps + layer * SIZE + i, step)

    adjoint = row_products(tangent, rows + place * 6 * SIZE * SIZE, tops + place * SIZE, SIZE)
    # The gaps and steps were stored by other threads of this program.
    tl.debug_barrier()
    by_value = tl.zeros([SIZE], tl.float64)
    for back in range(LAYERS):
        layer = LAYERS - 1 - back
        partner = tl.load(partners + layer * size + i, mask=inside, other=0).to(tl.int32)
        partner = tl.where(inside, partner, i)
        at = (which * 0 + layer * size + i) * count + sample
        bent = tl.load(bents + layer * SIZE * SIZE + square) * tl.load(gaps + layer * SIZE * SIZE + square)
        through = adjoint * tl.load(shares + layer * SIZE * SIZE + square) + bent
        beside = adjoint - through
        push = weighted(firsts, at, which * count, inside, tl.sum(through, 1), tl.sum(beside, 1), by_value)
        push += tl.load(curves + layer * SIZE + i) * tl.load(steps + layer * SIZE + i)
        adjoint = through + exchange(beside, partner, SIZE)
        by_value = by_value - push + tl.gather(push, partner, 0)
    tl.store(hessians + (sample * size + direction) * size + i, by_value, mask=inside)


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
