"""The CPU kernel of a sorting network's cross-entropy, compiled by numba when first used. Importing this imports numba.

It takes the comparators of a batch, computed by torch for any distribution, and walks through each sample alone:
forward through the matrix, back for the gradient and, for the Hessian, forward and back once more along each score.
The steps are those of `_network_derivatives.py`, with one difference. Weights are not logarithms but pairs (m, c) that
stand for m · 2⁻⁴⁰⁰ᶜ with 2⁻⁴⁰⁰ ≤ m: they reach as far as logarithms do, and adding two takes neither exp nor log.

A comparator of the wires w < v is computed once for both: with d = x_v − x_w it moves x_w by q(d) and x_v by −q(d),
and keeps or swaps both with the same probabilities e^k and e^s.

All kernels are in this one file: numba's cache on disk sees changes of the file of the function that is called, and
of no other.
"""

import math
from typing import Any

import numpy as np

from .._backends import compiled
from ._log_space import FAR

Array = Any  # numpy arrays, as numba sees them

TINY = 2.0**-400
HUGE = 2.0**400
LOG_HUGE = 400 * math.log(2.0)
# The chunk of a 0: below all others.
NOWHERE = 1e300


@compiled
def network_samples(
    partners: Array,
    logs: Array,
    firsts: Array,
    seconds: Array,
    target: Array,
    cells: Array,
    value: Array,
    gradient: Array,
    total: Array,
    start: int,
    stop: int,
) -> None:
    """Of the samples from `start` to `stop`: values, gradients and the sum of Hessians.

    Written to `value` `(N,)`, to `gradient` `(N, n)` unless it is empty, and added to `total` `(n, n)` unless it is
    empty.

    `logs` `(2, layers, n, N)` are the logarithms k and s of a comparator; `firsts` and `seconds` `(3, layers, n, N)`
    the derivatives by d of k, s and of the move q; `seconds` is empty where no Hessian is wanted.
    """
    layers, size = partners.shape
    cube, square, line = (layers, size, size), (size, size), (layers, size)
    log, first, second = np.empty((2, layers, size)), np.empty((3, layers, size)), np.empty((3, layers, size))
    # Without a gradient no layer's shares are looked at again: the next layer's may take their place.
    shares = np.empty((layers if gradient.size > 0 else min(layers, 1), size, size))
    bent, gaps = np.empty(cube), np.empty(cube)
    mantissa, chunk, adjoint, tangent = np.empty(square), np.empty(square), np.empty(square), np.empty(square)
    curve, steps, values = np.empty(line), np.empty(line), np.empty(size)
    rows, top = np.empty((size, 8, size)), np.empty(size, np.int64)
    hessian = total.size > 0
    spans = item_spans(partners)
    for sample in range(start, stop):
        log[:] = logs[..., sample]
        forward(partners, spans, log, mantissa, chunk, shares)
        loss = 0.0
        for row in range(size):
            loss += row_loss(
                mantissa[row], chunk[row], target[sample, row], cells[sample, row], adjoint[row], rows[row], top, row
            )
        value[sample] = loss
        if gradient.size == 0:
            continue
        first[:] = firsts[..., sample]
        if hessian:
            second[:] = seconds[..., sample]
        backward(partners, spans, first, second, hessian, shares, adjoint, bent, curve, values)
        gradient[sample] = values
        if hessian:
            for direction in range(size):
                tangent_forward(partners, spans, first, shares, direction, values, tangent, gaps, steps)
                for row in range(size):
                    row_product(tangent[row], rows[row], top[row])
                tangent_backward(partners, spans, first, shares, bent, curve, gaps, steps, tangent, values)
                total[direction] += values


@compiled
def item_spans(partners: Array) -> Array:
    """Which items can be on a wire after each layer: from the first to before the second, `(layers, n, 2)`.

    Elsewhere the matrix is 0, and so is every derivative of it.
    """
    layers, size = partners.shape
    spans = np.empty((layers, size, 2), np.int64)
    low, high = np.arange(size), np.arange(size) + 1
    for layer in range(layers):
        for wire in range(size):
            other = partners[layer, wire]
            spans[layer, wire, 0] = min(low[wire], low[other])
            spans[layer, wire, 1] = max(high[wire], high[other])
        low, high = spans[layer, :, 0].copy(), spans[layer, :, 1].copy()
    return spans


@compiled
def extend(logarithm: float) -> tuple[float, float]:
    """e^logarithm as a pair (m, c)."""
    # As far as the logarithms of the torch path go, so that sums of them stay finite.
    if logarithm < -FAR:
        logarithm = -FAR
    # Not math.floor: compiled, it is a 64-bit integer, which wraps round beyond 2⁶³ and for infinities.
    chunk = np.floor(-logarithm / LOG_HUGE)
    remainder = logarithm + chunk * LOG_HUGE
    # Of a logarithm of −10¹⁷ it is rounding only, and may be on either side of where it should be.
    if remainder > 0.0:
        remainder = 0.0
    elif remainder < -LOG_HUGE:
        remainder = -LOG_HUGE
    return math.exp(remainder), chunk


@compiled
def forward(partners: Array, spans: Array, logs: Array, mantissa: Array, chunk: Array, shares: Array) -> None:
    """The matrix in pairs, and each layer's shares r of the kept path."""
    layers, size = partners.shape
    mantissa[:] = 0.0
    chunk[:] = NOWHERE
    for wire in range(size):
        mantissa[wire, wire] = 1.0
        chunk[wire, wire] = 0.0
    for layer in range(layers):
        kept = shares[layer % shares.shape[0]]
        for wire in range(size):
            other = partners[layer, wire]
            if other <= wire:
                continue
            keep, keep_chunk = extend(logs[0, layer, wire])
            swap, swap_chunk = extend(logs[1, layer, wire])
            mine, mine_chunk, mine_share = mantissa[wire], chunk[wire], kept[wire]
            theirs, theirs_chunk, theirs_share = mantissa[other], chunk[other], kept[other]
            for item in range(spans[layer, wire, 0], spans[layer, wire, 1]):
                a, p = mine[item], mine_chunk[item]
                b, q = theirs[item], theirs_chunk[item]
                mine[item], mine_chunk[item], mine_share[item] = mixed(
                    a * keep, p + keep_chunk, b * swap, q + swap_chunk
                )
                theirs[item], theirs_chunk[item], theirs_share[item] = mixed(
                    b * keep, q + keep_chunk, a * swap, p + swap_chunk
                )


@compiled
def mixed(a: float, p: float, b: float, q: float) -> tuple[float, float, float]:
    """The sum of the pairs (a, p) and (b, q) and the share of the first; both products of two mantissas, or 0.

    Which of them is the larger is as good as random, so that a processor would guess wrong at every other branch:
    all choices are between two numbers that are there already.
    """
    a, p = (a * HUGE, p + 1.0) if a < TINY else (a, p)
    b, q = (b * HUGE, q + 1.0) if b < TINY else (b, q)
    chunk = p if p < q else q
    a *= 1.0 if p == chunk else (TINY if p == chunk + 1.0 else 0.0)
    b *= 1.0 if q == chunk else (TINY if q == chunk + 1.0 else 0.0)
    weight = a + b
    return weight, chunk, a / weight if weight > 0.0 else 0.0


@compiled
def row_loss(
    mantissa: Array, chunk: Array, target: Array, cells: Array, adjoint: Array, kept: Array, tops: Array, row: int
) -> float:
    """The cross-entropy of one row, its derivatives by the log-weights, and in `kept` what `row_product` needs.

    With p the weights relative to the largest one, `inverse` is 1 / Σ_{k≠j} p_k. At the top that sum may be far below
    all rounding, so there the others are weighed among themselves, in `below`, and `inverse` is 0.
    """
    size = mantissa.size
    weights, inverse, first, second, pull, below, spread, _ = kept
    top, runner = 0, -1
    for item in range(1, size):
        if chunk[item] < chunk[top] or (chunk[item] == chunk[top] and mantissa[item] > mantissa[top]):
            top = item
    for item in range(size):
        if item != top and (runner < 0 or chunk[item] < chunk[runner]):
            runner = item
    tops[row] = top
    others = among = 0.0
    for item in range(size):
        weights[item] = relative(mantissa[item], chunk[item] - chunk[top]) / mantissa[top]
        below[item] = 0.0
        if item != top:
            below[item] = relative(mantissa[item], chunk[item] - chunk[runner])
            others += weights[item]
            among += below[item]
    whole, log_whole = 1.0 + others, math.log1p(others)
    loss = pulled = 0.0
    for item in range(size):
        wanted, cell = target[item], cells[item]
        if item == top:
            likely, unlikely = 1.0 / whole, others / whole
            inverse[item] = 0.0
            entropy = wanted * log_whole
            if wanted != 1.0:
                far = math.log(among / mantissa[top]) - LOG_HUGE * (chunk[runner] - chunk[top])
                entropy += (1.0 - wanted) * (log_whole - far)
        else:
            rest = whole - weights[item]
            inverse[item] = 1.0 / rest
            likely, unlikely = weights[item] / whole, rest / whole
            entropy = (1.0 - wanted) * math.log1p(weights[item] * inverse[item])
            if wanted != 0.0:
                far = math.log(mantissa[item] / mantissa[top]) - LOG_HUGE * (chunk[item] - chunk[top])
                entropy += wanted * (log_whole - far)
            # Beside an item that is alone in its list, all others have no weight at all.
            below[item] = below[item] / among if among > 0.0 else 0.0
        loss += cell * entropy
        first[item] = cell * ((1.0 - wanted) * likely - wanted * unlikely)
        second[item] = cell * likely * unlikely
        spread[item] = first[item] * inverse[item]
        pulled += spread[item]
    for item in range(size):
        pull[item] = weights[item] * (pulled - spread[item]) + below[item] * first[top]
        adjoint[item] = first[item] - pull[item]
    return loss


@compiled
def relative(mantissa: float, chunks: float) -> float:
    """A pair's mantissa seen from `chunks` chunks above."""
    if chunks == 0.0:
        return mantissa
    return mantissa * TINY if chunks == 1.0 else 0.0 * mantissa


@compiled
def backward(
    partners: Array,
    spans: Array,
    firsts: Array,
    seconds: Array,
    hessian: bool,
    shares: Array,
    adjoint: Array,
    bent: Array,
    curve: Array,
    values: Array,
) -> None:
    """The gradient by the scores in `values`, from the adjoint of the last matrix, which is used up.

    For the Hessian, `bent` becomes (adjoint) · r(1−r) of every cell and `curve`
    Σ (adjoint) · (second derivative by d) of a comparator.
    """
    layers, size = partners.shape
    values[:] = 0.0
    for back in range(layers):
        layer = layers - 1 - back
        for wire in range(size):
            other = partners[layer, wire]
            if other <= wire:
                continue
            mine, mine_share, mine_bent = adjoint[wire], shares[layer, wire], bent[layer, wire]
            theirs, theirs_share, theirs_bent = adjoint[other], shares[layer, other], bent[layer, other]
            kept = swapped = 0.0
            for item in range(spans[layer, wire, 0], spans[layer, wire, 1]):
                a, r = mine[item], mine_share[item]
                b, s = theirs[item], theirs_share[item]
                if hessian:
                    mine_bent[item] = a * r * (1.0 - r)
                    theirs_bent[item] = b * s * (1.0 - s)
                a_kept, b_kept = a * r, b * s
                a_swapped, b_swapped = a * (1.0 - r), b * (1.0 - s)
                kept += a_kept + b_kept
                swapped += a_swapped + b_swapped
                mine[item] = a_kept + b_swapped
                theirs[item] = b_kept + a_swapped
            moved = values[wire] - values[other]
            push = firsts[0, layer, wire] * kept + firsts[1, layer, wire] * swapped
            push += firsts[2, layer, wire] * moved
            if hessian:
                bend = seconds[0, layer, wire] * kept + seconds[1, layer, wire] * swapped
                curve[layer, wire] = bend + seconds[2, layer, wire] * moved
            values[wire] -= push
            values[other] += push


@compiled
def tangent_forward(
    partners: Array,
    spans: Array,
    firsts: Array,
    shares: Array,
    direction: int,
    values: Array,
    tangent: Array,
    gaps: Array,
    steps: Array,
) -> None:
    """Derivatives along one score: of the log-matrix, of every d in `steps`, of two wires' difference in `gaps`."""
    layers, size = partners.shape
    values[:] = 0.0
    values[direction] = 1.0
    tangent[:] = 0.0
    for layer in range(layers):
        for wire in range(size):
            other = partners[layer, wire]
            if other <= wire:
                continue
            step = values[other] - values[wire]
            steps[layer, wire] = step
            moved = firsts[2, layer, wire] * step
            values[wire] += moved
            values[other] -= moved
            swap = firsts[1, layer, wire] * step
            odds = firsts[0, layer, wire] * step - swap
            mine, mine_share, gap = tangent[wire], shares[layer, wire], gaps[layer, wire]
            theirs, theirs_share = tangent[other], shares[layer, other]
            for item in range(spans[layer, wire, 0], spans[layer, wire, 1]):
                a, b = mine[item], theirs[item]
                apart = a - b
                gap[item] = apart
                mine[item] = b + swap + mine_share[item] * (odds + apart)
                theirs[item] = a + swap + theirs_share[item] * (odds - apart)


@compiled
def row_product(tangent: Array, kept: Array, top: int) -> None:
    """A row's Hessian by its log-weights times the tangent, in place of the tangent.

    With U_j = Σ_k π^j_k T_k, the mean of the tangents over the other items, ż = T − U and h = φ''ż − φ'U, this is
    φ''_k ż_k − pull_k T_k − Σ_{j≠k} π^j_k h_j.
    """
    size = tangent.size
    weights, inverse, first, second, pull, below, _, change = kept
    # A constant of the row changes nothing; taking out the likeliest item's keeps the terms small.
    constant = tangent[top]
    mean = mean_below = 0.0
    for item in range(size):
        tangent[item] -= constant
        mean += weights[item] * tangent[item]
        mean_below += below[item] * tangent[item]
    spread = 0.0
    for item in range(size):
        around = (mean - weights[item] * tangent[item]) * inverse[item]
        bend = second[item] * (tangent[item] - around)
        change[item] = (bend - first[item] * around) * inverse[item]
        spread += change[item]
        tangent[item] = bend - pull[item] * tangent[item]
    # The top's own tangent is 0, and what is around it is the mean over the others.
    tangent[top] = -second[top] * mean_below
    by_top = tangent[top] - first[top] * mean_below
    for item in range(size):
        tangent[item] -= weights[item] * (spread - change[item]) + below[item] * by_top


@compiled
def tangent_backward(
    partners: Array,
    spans: Array,
    firsts: Array,
    shares: Array,
    bent: Array,
    curve: Array,
    gaps: Array,
    steps: Array,
    tangent: Array,
    values: Array,
) -> None:
    """The derivative of the whole of `backward` along one score: a row of the Hessian, in `values`."""
    layers, size = partners.shape
    values[:] = 0.0
    for back in range(layers):
        layer = layers - 1 - back
        for wire in range(size):
            other = partners[layer, wire]
            if other <= wire:
                continue
            step = steps[layer, wire]
            odds = (firsts[0, layer, wire] - firsts[1, layer, wire]) * step
            mine, mine_share, mine_bent = tangent[wire], shares[layer, wire], bent[layer, wire]
            theirs, theirs_share, theirs_bent = tangent[other], shares[layer, other], bent[layer, other]
            gap = gaps[layer, wire]
            kept = swapped = 0.0
            for item in range(spans[layer, wire, 0], spans[layer, wire, 1]):
                a, b = mine[item], theirs[item]
                a_kept = a * mine_share[item] + mine_bent[item] * (odds + gap[item])
                b_kept = b * theirs_share[item] + theirs_bent[item] * (odds - gap[item])
                kept += a_kept + b_kept
                swapped += (a - a_kept) + (b - b_kept)
                mine[item] = a_kept + (b - b_kept)
                theirs[item] = b_kept + (a - a_kept)
            push = firsts[0, layer, wire] * kept + firsts[1, layer, wire] * swapped
            push += firsts[2, layer, wire] * (values[wire] - values[other])
            push += curve[layer, wire] * step
            values[wire] -= push
            values[other] += push
