"""The step with the empirical Fisher for up to 128 unknowns as one kernel, by conjugate gradients. Imports triton.

A matrix of that size is too large to eliminate in registers, but with "auto" it is easy to iterate with: λ is no less
than a tenth of the root mean square of the m eigenvalues, so that the condition number of F + λI is at most 1 + 10√m
and most often below ten. Every program makes the small matrix again and solves for its own 16 right-hand sides.

Products are those of tensor cores in three parts, which together are as exact as float32; the residual falls to 1e-7
of the right-hand side.
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from .._backends import launch, parts_of, power_of_two
from ._fisher import new_results
from ._fisher_triton import finite_values, mean_of_finite

_Decorator = Callable[[Callable[..., Any]], Any]
_jit: _Decorator = triton.jit
# A kernel of its own for one sample, or for numbers with other factors, would not be faster.
_kernel: _Decorator = triton.jit(do_not_specialize=["factor", "samples", "outputs"])

# Right-hand sides of a program, and numbers along the longer side of the gradients that are read at a time.
SIDES = 16
PART = 32
# Far above what the condition number allows for.
MOST_TURNS = 128


def launch_conjugate(
    gradient: Tensor,
    value: Tensor | None,
    factor: float,
    mean: bool,
    counter: Tensor | None,
    unit: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, kept and (count, mean value), as `launch_fisher` returns them, in units of ρ."""
    samples, outputs = gradient.shape
    few = samples < outputs
    short, long = (samples, outputs) if few else (outputs, samples)
    rows, used, numbers = new_results(gradient)
    given = (gradient, value, rows, used, numbers, counter, unit, factor, samples, outputs)
    constants = {
        "MEAN": mean, "FEW": few, "SIZE": max(16, power_of_two(short)), "SIDES": SIDES, "PART": PART,
        "PARTS": parts_of(long, PART), "VALUE_PARTS": parts_of(samples, PART), "MOST_TURNS": MOST_TURNS,
    }  # fmt: skip
    launch(solve_conjugate, parts_of(long, SIDES), given, constants, warps=8)
    return rows, used, numbers


@_kernel
def solve_conjugate(  # type: ignore[no-untyped-def]
    gradient, value, rows, used, numbers, counter, unit, factor, samples, outputs,
    MEAN: tl.constexpr, FEW: tl.constexpr, SIZE: tl.constexpr, SIDES: tl.constexpr, PART: tl.constexpr,
    PARTS: tl.constexpr, VALUE_PARTS: tl.constexpr, MOST_TURNS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) == 0
    i = tl.arange(0, SIZE)  # along the unknowns
    k = tl.arange(0, PART)  # along the other side of the gradients
    largest = 0.0
    for part in range(PARTS):
        g = tl.abs(_load(gradient, i, part * PART + k, samples, outputs, 1.0, FEW))
        largest = tl.maximum(largest, tl.max(tl.max(tl.where(g < float("inf"), g, 0.0), 1), 0))
    scale = tl.where(largest > 0, 1.0 / largest, 1.0)
    # 1/largest is infinite for what lies below the least normal number, and the product with it not a step.
    scale = tl.minimum(scale, 1e38)

    # N·F, or the matrix of the samples' products, which has the same eigenvalues.
    square = tl.zeros([SIZE, SIZE], tl.float32)
    is_row = finite_values(value, i, samples)
    count = 0
    for part in range(PARTS):
        other = part * PART + k
        g = _load(gradient, i, other, samples, outputs, scale, FEW)
        is_number = tl.abs(g) < float("inf")
        if FEW:
            is_row = is_row & (tl.min(is_number.to(tl.int32), 1) > 0)
            g = tl.where(is_number, g, 0.0)
        else:
            good = finite_values(value, other, samples) & (tl.min(is_number.to(tl.int32), 0) > 0)
            g = tl.where(good[None, :], g, 0.0)
            count += tl.sum(good.to(tl.int32), 0)
        square = tl.dot(g, tl.trans(g), square, input_precision="tf32x3")
    if FEW:
        square = tl.where(is_row[:, None] & is_row[None, :], square, 0.0)
        count = tl.sum(is_row.to(tl.int32), 0)
    count = tl.maximum(count, 1).to(tl.float32)
    width = outputs.to(tl.float32)
    trace = tl.sum(tl.sum(tl.where(i[:, None] == i[None, :], square, 0.0), 1), 0)
    spread = tl.sqrt(tl.sum(tl.sum(square * square, 1), 0) / width)
    lam = tl.where(spread > 0, factor * spread, 1.0)
    length = tl.where(trace > 0, lam / tl.sqrt(count * trace / width), 1.0)
    length = length if MEAN else length * count
    if unit is not None:
        length = length * tl.load(unit)

    # This program's right-hand sides, each with its own conjugate gradients; one that is solved stands still.
    side = tl.program_id(0) * SIDES + tl.arange(0, SIDES)
    residual = _load(gradient, i, side, samples, outputs, scale, FEW)
    is_number = tl.abs(residual) < float("inf")
    if FEW:
        residual = tl.where(is_row[:, None], residual, 0.0)
    else:
        good = finite_values(value, side, samples) & (tl.min(is_number.to(tl.int32), 0) > 0)
        residual = tl.where(good[None, :], residual, 0.0)
    # Outputs that hardly matter may be so small that their squares are zero: each side in its own unit.
    own_unit = tl.max(tl.abs(residual), 0)
    residual = residual / tl.where(own_unit > 0, own_unit, 1.0)[None, :]
    solved = tl.zeros([SIZE, SIDES], tl.float32)
    along = residual
    squared = tl.sum(residual * residual, 0)
    enough = squared * 1e-14
    turn = 0
    while (turn < MOST_TURNS) & (tl.max(squared - enough, 0) > 0):
        product = tl.dot(square, along, input_precision="tf32x3") + lam * along
        goes_on = squared > enough
        far = tl.where(goes_on, squared / tl.sum(along * product, 0), 0.0)
        solved += far[None, :] * along
        residual -= far[None, :] * product
        left = tl.sum(residual * residual, 0)
        along = residual + tl.where(goes_on, left / squared, 0.0)[None, :] * along
        squared = tl.where(goes_on, left, squared)
        turn += 1

    out = solved * own_unit[None, :] * length
    if FEW:
        inside = (i < samples)[:, None] & (side < outputs)[None, :]
        tl.store(rows + i[:, None] * outputs + side[None, :], out, mask=inside)
        tl.store(used + i, is_row, mask=(i < samples) & first)
        left_out = tl.sum(((i < samples) & (is_row == 0)).to(tl.int64), 0)
        if counter is not None:
            tl.atomic_add(counter, left_out, mask=first & (left_out > 0))
    else:
        inside = (i < outputs)[:, None] & (side < samples)[None, :]
        tl.store(rows + side[None, :] * outputs + i[:, None], out, mask=inside)
        tl.store(used + side, good, mask=side < samples)
        left_out = tl.sum(((side < samples) & (good == 0)).to(tl.int64), 0)
        if counter is not None:
            tl.atomic_add(counter, left_out, mask=left_out > 0)
    if first:
        tl.store(numbers, count)
        if value is None:
            tl.store(numbers + 1, 0.0)
        else:
            tl.store(numbers + 1, mean_of_finite(value, samples, PART, VALUE_PARTS))


@_jit
def _load(gradient, i, other, samples, outputs, scale, FEW: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of the gradients times `scale`, with the unknowns along its rows."""
    if FEW:
        inside = (i < samples)[:, None] & (other < outputs)[None, :]
        block = tl.load(gradient + i[:, None] * outputs + other[None, :], mask=inside, other=0.0)
    else:
        inside = (i < outputs)[:, None] & (other < samples)[None, :]
        block = tl.load(gradient + other[None, :] * outputs + i[:, None], mask=inside, other=0.0)
    return block * scale
