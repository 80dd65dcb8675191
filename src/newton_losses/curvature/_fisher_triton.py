"""The step with the empirical Fisher as one kernel: Gram matrix, damping, elimination, length. Imports triton.

Every program reads all gradients, makes and inverts the small matrix again, and multiplies its own part of the
gradients with it: nothing to wait for. It computes in float64, since a small damping has to survive next to the
squares of large gradients; at these sizes that costs nothing beside the launch.
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from .._backends import launch, on_device, parts_of, power_of_two
from ._fisher import LARGEST_KERNEL, new_results
from ._small_solve_triton import absolute_of, bits_of
from ._solve import LOWEST, ROUNDS, STEEPEST

_Decorator = Callable[[Callable[..., Any]], Any]
_jit: _Decorator = triton.jit
# A kernel of its own for one sample, or for numbers with other factors, would not be faster.
_kernel: _Decorator = triton.jit(do_not_specialize=["number", "samples", "outputs"])

# Numbers of the gradients that are read at a time.
AT_A_TIME = 2048
# By the size of the matrix. With fewer, each lane holds so many values that loading the program takes longer than
# running it.
WARPS = {16: 4, 32: 4, 64: 8}
ROUNDING = tl.constexpr(2.0**-52)


def launch_fisher(
    gradient: Tensor,
    value: Tensor | None,
    damping: Tensor | None,
    number: float,
    factor: float,
    normalized: bool,
    mean: bool,
    counter: Tensor | None,
    matrix: Tensor | None = None,
    kind: str = "definite",
    unit: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, kept and (count, mean value); `counter`, if given, is increased by the samples that are not kept.

    With a `matrix` that is the curvature, in the place of the Fisher; `kind` says what becomes of its eigenvalues. The
    step is multiplied by `unit`.
    """
    samples, outputs = gradient.shape
    gradient = gradient.contiguous()
    few = samples < outputs and matrix is None
    unknowns = samples if few else outputs
    if unknowns > LARGEST_KERNEL:
        from ._fisher_conjugate_triton import launch_conjugate

        with on_device(gradient):
            value = None if value is None else value.contiguous()
            return launch_conjugate(gradient, value, factor, mean, counter, unit)
    # The units that multiply matrices know none below 16.
    size = max(16, power_of_two(unknowns))
    block = max(16, AT_A_TIME // size)
    blocks = parts_of(outputs if few else samples, block)
    rows, used, numbers = new_results(gradient)
    with on_device(gradient):
        given = (
            gradient, None if value is None else value.contiguous(), None if matrix is None else matrix.contiguous(),
            rows, used, numbers, counter, damping, unit, bits_of(factor or number), samples, outputs,
        )  # fmt: skip
        constants = {
            "RELATIVE": factor > 0, "NORMALIZED": normalized, "MEAN": mean, "FEW": few, "SIZE": size, "BLOCK": block,
            "BLOCKS": blocks, "VALUE_BLOCKS": parts_of(samples, block),
            "STEPS": min(size, 8 * parts_of(unknowns, 8)),
            "KIND": kind, "LOWEST": LOWEST, "STEEPEST": STEEPEST, "ROUNDS": ROUNDS,
        }  # fmt: skip
        launch(solve_fisher, blocks, given, constants, WARPS[size])
    return rows, used, numbers


@_kernel
def solve_fisher(  # type: ignore[no-untyped-def]
    gradient, value, matrix, rows, used, numbers, counter, damping, unit, number, samples, outputs,
    RELATIVE: tl.constexpr, NORMALIZED: tl.constexpr, MEAN: tl.constexpr, FEW: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, VALUE_BLOCKS: tl.constexpr, STEPS: tl.constexpr,
    KIND: tl.constexpr, LOWEST: tl.constexpr, STEEPEST: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) == 0
    i = tl.arange(0, SIZE)
    j = tl.arange(0, BLOCK)
    square = tl.zeros([SIZE, SIZE], tl.float64)
    if FEW:  # rows are samples, and columns come block by block
        finite = finite_values(value, i, samples)
        for block in range(BLOCKS):
            begin = block * BLOCK
            g = _load(gradient, i[:, None], begin + j[None, :], samples, outputs)
            good = tl.abs(g) < float("inf")
            finite = finite & (tl.min(good.to(tl.int32), 1) > 0)
            g = tl.where(good, g, 0.0)
            square = tl.dot(g, tl.trans(g), square, out_dtype=tl.float64)
        square = tl.where(finite[:, None] & finite[None, :], square, 0.0)
        count = tl.sum(finite.to(tl.int32), 0)
    else:  # rows come block by block, and all columns with them
        seen = tl.zeros([BLOCK], tl.int32)
        for block in range(BLOCKS):
            begin = block * BLOCK
            g = _load(gradient, begin + j[:, None], i[None, :], samples, outputs)
            good = finite_values(value, begin + j, samples)
            good = good & (tl.min((tl.abs(g) < float("inf")).to(tl.int32), 1) > 0)
            g = tl.where(good[:, None], g, 0.0)
            square = tl.dot(tl.trans(g), g, square, out_dtype=tl.float64)
            seen += good.to(tl.int32)
        count = tl.sum(seen, 0)
    count = tl.maximum(count, 1).to(tl.float64)
    unknowns = samples if FEW else outputs
    width = outputs.to(tl.float64)
    own = (i[:, None] == i[None, :]) & (i < unknowns)[:, None]
    square = square / count
    # N·m·ρ² is the sum of all squares, which is the trace of the Fisher as well.
    trace = tl.sum(tl.sum(tl.where(own, square, 0.0), 1), 0)
    if matrix is not None:
        inside = (i < outputs)[:, None] & (i < outputs)[None, :]
        square = tl.load(matrix + i[:, None] * outputs + i[None, :], mask=inside, other=0.0).to(tl.float64)
    # λ is relative to the eigenvalues as they are.
    largest = tl.max(tl.max(tl.abs(square), 1), 0)
    scale = tl.where(largest > 0, largest, 1.0)
    spread = scale * tl.sqrt(tl.sum(tl.sum((square / scale) * (square / scale), 1), 0) / width)
    if KIND == "absolute" or KIND == "clip":
        absolute = absolute_of(square, LOWEST, STEEPEST, ROUNDS)
        square = absolute if KIND == "absolute" else (absolute + square) * 0.5

    # Divide the system by its scale, and find λ in units of that.
    given = number.to(tl.int64).to(tl.float64, bitcast=True)
    if damping is not None:
        given = tl.load(damping).to(tl.float64)
    if RELATIVE:
        square = square / scale
        lam = given * (spread / scale)
        length = 1.0 / scale
        if NORMALIZED:
            lam = tl.where(spread == 0, 1.0, lam)
            length = tl.where(trace > 0, lam / tl.sqrt(trace / width), 1.0)
    else:
        scale = tl.maximum(scale, given)
        square = square / scale
        lam = given / scale
        length = 1.0 / scale
    # Without a solution everything is NaN, which keeps no sample.
    length = tl.where((lam > 0) & (lam < float("inf")), length, float("nan"))
    if MEAN:
        length = length / count
    if unit is not None:
        length = length * tl.load(unit).to(tl.float64)

    # Invert in place, together with ones below. F + λI is definite: no exchange of rows.
    square = tl.where(i[:, None] == i[None, :], tl.where(own, square + lam, 1.0), square)
    # A pivot that is only the rounding of its diagonal entry is none: as in `has_inverse`.
    rounding = tl.zeros([SIZE], tl.float64)
    if KIND == "definite":
        rounding = tl.sum(tl.where(own, square, 0.0), 1) * (unknowns.to(tl.float64) * ROUNDING)
    for p in range(STEPS):
        row = tl.sum(tl.where(i[:, None] == p, square, 0.0), 0)
        column = tl.sum(tl.where(i[None, :] == p, square, 0.0), 1)
        pivot = tl.sum(tl.where(i == p, row, 0.0), 0)
        least = tl.sum(tl.where(i == p, rounding, 0.0), 0)
        length = tl.where((pivot > least) & (pivot < float("inf")), length, float("nan"))
        reciprocal = 1.0 / pivot
        square = square - column[:, None] * (row * reciprocal)[None, :]
        square = tl.where(i[:, None] == p, (row * reciprocal)[None, :], square)
        square = tl.where(i[None, :] == p, -(column * reciprocal)[:, None], square)
        square = tl.where((i[:, None] == p) & (i[None, :] == p), reciprocal, square)

    # This program's part.
    begin = tl.program_id(0) * BLOCK
    element = rows.dtype.element_ty
    if FEW:
        g = _load(gradient, i[:, None], begin + j[None, :], samples, outputs)
        g = tl.where(finite[:, None] & (tl.abs(g) < float("inf")), g, 0.0)
        # A sample's row lies in several programs, which have to agree: a bound for all of it decides.
        bound = tl.zeros([SIZE], tl.float64)
        for block in range(BLOCKS):
            all_of_it = _load(gradient, i[:, None], block * BLOCK + j[None, :], samples, outputs)
            bound = tl.maximum(bound, tl.max(tl.where(finite[:, None], tl.abs(all_of_it), 0.0), 1))
        bound = tl.sum(tl.abs(square) * bound[None, :], 1) * length
        keep = finite & (bound.to(element) < float("inf"))
        out = (tl.dot(square, g, out_dtype=tl.float64) * length).to(element)
        _store(rows, i[:, None], begin + j[None, :], tl.where(keep[:, None], out, 0.0), samples, outputs)
        inside = i < samples
        tl.store(used + i, keep, mask=inside & first)
        left_out = tl.sum((inside & (keep == 0)).to(tl.int64), 0)
        if counter is not None:
            tl.atomic_add(counter, left_out, mask=first & (left_out > 0))
    else:
        g = _load(gradient, begin + j[:, None], i[None, :], samples, outputs)
        good = finite_values(value, begin + j, samples)
        good = good & (tl.min((tl.abs(g) < float("inf")).to(tl.int32), 1) > 0)
        out = (tl.dot(tl.where(good[:, None], g, 0.0), square, out_dtype=tl.float64) * length).to(element)
        fits = (tl.abs(out) < float("inf")) | (i >= outputs)[None, :]
        keep = good & (tl.min(fits.to(tl.int32), 1) > 0)
        _store(rows, begin + j[:, None], i[None, :], tl.where(keep[:, None], out, 0.0), samples, outputs)
        inside = begin + j < samples
        tl.store(used + begin + j, keep, mask=inside)
        left_out = tl.sum((inside & (keep == 0)).to(tl.int64), 0)
        if counter is not None:
            tl.atomic_add(counter, left_out, mask=left_out > 0)

    if first:
        tl.store(numbers, count.to(element))
        if value is None:
            tl.store(numbers + 1, 0.0)
        else:
            tl.store(numbers + 1, mean_of_finite(value, samples, BLOCK, VALUE_BLOCKS))


@_jit
def finite_values(value, n, samples):  # type: ignore[no-untyped-def]
    """Which samples exist and have a finite value."""
    finite = n < samples
    if value is not None:
        finite = finite & (tl.abs(tl.load(value + n, mask=n < samples, other=0.0)) < float("inf"))
    return finite


@_jit
def mean_of_finite(value, samples, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The mean of the values that are finite; 0/0, where there is none, is the NaN that it is then."""
    total = tl.zeros([BLOCK], tl.float64)
    number = tl.zeros([BLOCK], tl.int32)
    for block in range(BLOCKS):
        n = block * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(value + n, mask=n < samples, other=float("inf")).to(tl.float64)
        finite = tl.abs(v) < float("inf")
        total += tl.where(finite, v, 0.0)
        number += finite.to(tl.int32)
    return (tl.sum(total, 0) / tl.sum(number, 0).to(tl.float64)).to(value.dtype.element_ty)


@_jit
def _load(tensor, n, k, samples, outputs):  # type: ignore[no-untyped-def]
    inside = (n < samples) & (k < outputs)
    return tl.load(tensor + n * outputs + k, mask=inside, other=0.0).to(tl.float64)


@_jit
def _store(tensor, n, k, block, samples, outputs):  # type: ignore[no-untyped-def]
    tl.store(tensor + n * outputs + k, block, mask=(n < samples) & (k < outputs))
