"""The step with the Fisher of lists as one kernel: two eigenvalues, damping, length. Imports triton.

One program reads all gradients twice; they are few, and beside a launch that takes no time. In float64, as the
operators that do the same.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._backends import launch, on_device, parts_of, power_of_two
from ._fisher import new_results
from ._fisher_triton import _load, _store, finite_values, mean_of_finite
from ._small_solve_triton import bits_of

_Decorator = Callable[[Callable[..., Any]], Any]
_jit: _Decorator = triton.jit
_kernel: _Decorator = triton.jit(do_not_specialize=["number", "samples", "outputs"])

# Numbers of the gradients that are read at a time.
AT_A_TIME = 2048


def launch_lists(
    gradient: Tensor,
    value: Tensor | None,
    mask: Tensor | None,
    damping: Tensor | None,
    number: float,
    factor: float,
    normalized: bool,
    mean: bool,
    counter: Tensor | None,
    unit: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, kept and (count, mean value), as `launch_fisher` returns them."""
    samples, outputs = gradient.shape
    gradient = gradient.contiguous()
    columns = min(power_of_two(outputs), 128)
    block = AT_A_TIME // columns
    rows, used, numbers = new_results(gradient)
    with on_device(gradient):
        given = (
            gradient, None if value is None else value.contiguous(),
            None if mask is None else mask.contiguous().view(torch.uint8),
            rows, used, numbers, counter, damping, unit, bits_of(factor or number), samples, outputs,
        )  # fmt: skip
        constants = {
            "RELATIVE": factor > 0, "NORMALIZED": normalized, "MEAN": mean, "ROWS": block, "COLUMNS": columns,
            "ROW_BLOCKS": parts_of(samples, block), "COLUMN_BLOCKS": parts_of(outputs, columns),
        }  # fmt: skip
        launch(solve_lists, 1, given, constants, warps=8)
    return rows, used, numbers


@_kernel
def solve_lists(  # type: ignore[no-untyped-def]
    gradient, value, mask, rows, used, numbers, counter, damping, unit, number, samples, outputs,
    RELATIVE: tl.constexpr, NORMALIZED: tl.constexpr, MEAN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROW_BLOCKS: tl.constexpr, COLUMN_BLOCKS: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, ROWS)
    j = tl.arange(0, COLUMNS)
    energies = tl.zeros([ROWS], tl.float64)
    shares = tl.zeros([ROWS], tl.float64)
    lengths = tl.zeros([ROWS], tl.float64)
    seen = tl.zeros([ROWS], tl.int32)
    whole = tl.zeros([ROWS], tl.int32)
    for block in range(ROW_BLOCKS):
        n = block * ROWS + i
        squares, total, exist, good = row_sums(
            gradient, value, mask, n, j, samples, outputs, ROWS, COLUMNS, COLUMN_BLOCKS
        )
        energies += tl.where(good, squares, 0.0)
        shares += tl.where(good, total * total / tl.maximum(exist, 1.0), 0.0)
        lengths += tl.where(good, exist, 0.0)
        seen += good.to(tl.int32)
        whole += (good & (exist > 0)).to(tl.int32)
    energy = tl.sum(energies, 0)
    shared = tl.sum(shares, 0)
    items = tl.sum(lengths, 0)
    count = tl.maximum(tl.sum(seen, 0), 1).to(tl.float64)
    lists = tl.sum(whole, 0).to(tl.float64)
    among = tl.maximum(energy - shared, 0.0) / tl.maximum(items - lists, 1.0)
    common = shared / tl.maximum(lists, 1.0)
    # By the larger one, whose square may be out of range.
    scale = tl.maximum(among, common)
    scale = tl.where(scale > 0, scale, 1.0)
    a = among / scale
    b = common / scale
    spread = scale * tl.sqrt(((items - lists) * a * a + lists * b * b) / tl.maximum(items, 1.0))

    lam = number.to(tl.int64).to(tl.float64, bitcast=True)
    if damping is not None:
        lam = tl.load(damping).to(tl.float64)
    length = tl.full([], 1.0, tl.float64)
    if RELATIVE:
        lam = lam * spread
        if NORMALIZED:
            lam = tl.where(spread == 0, 1.0, lam)
            length = tl.where(energy > 0, lam / tl.sqrt(energy / tl.maximum(items, 1.0)), 1.0)
    # Without a solution everything is NaN, which keeps no sample.
    length = tl.where((lam > 0) & (lam < float("inf")), length, float("nan"))
    if MEAN:
        length = length / count
    if unit is not None:
        length = length * tl.load(unit).to(tl.float64)
    along_differences = length / (among + lam)
    along_means = length / (common + lam)

    element = rows.dtype.element_ty
    left_out = tl.zeros([ROWS], tl.int64)
    for block in range(ROW_BLOCKS):
        n = block * ROWS + i
        squares, total, exist, good = row_sums(
            gradient, value, mask, n, j, samples, outputs, ROWS, COLUMNS, COLUMN_BLOCKS
        )
        middle = total / tl.maximum(exist, 1.0)
        keep = good
        for part in range(COLUMN_BLOCKS):
            out, exists = _step_of(
                gradient, mask, n, part * COLUMNS + j, middle, samples, outputs, along_differences, along_means
            )
            fits = (tl.abs(out.to(element)) < float("inf")) | (exists == 0)
            keep = keep & (tl.min(fits.to(tl.int32), 1) > 0)
        for part in range(COLUMN_BLOCKS):
            k = part * COLUMNS + j
            out, exists = _step_of(gradient, mask, n, k, middle, samples, outputs, along_differences, along_means)
            out = tl.where(keep[:, None] & exists, out, 0.0)
            _store(rows, n[:, None], k[None, :], out.to(element), samples, outputs)
        tl.store(used + n, keep, mask=n < samples)
        left_out += ((n < samples) & (keep == 0)).to(tl.int64)
    if counter is not None:
        tl.atomic_add(counter, tl.sum(left_out, 0))
    tl.store(numbers, count.to(element))
    if value is None:
        tl.store(numbers + 1, 0.0)
    else:
        tl.store(numbers + 1, mean_of_finite(value, samples, ROWS, ROW_BLOCKS))


@_jit
def row_sums(  # type: ignore[no-untyped-def]
    gradient, value, mask, n, j, samples, outputs,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, COLUMN_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Of each of these rows the sums of squares and of entries, how many exist, and whether the row counts."""
    squares = tl.zeros([ROWS], tl.float64)
    total = tl.zeros([ROWS], tl.float64)
    exist = tl.zeros([ROWS], tl.float64)
    worst = tl.zeros([ROWS], tl.int32)
    for part in range(COLUMN_BLOCKS):
        k = part * COLUMNS + j
        g = _load(gradient, n[:, None], k[None, :], samples, outputs)
        is_finite = tl.abs(g) < float("inf")
        worst = tl.maximum(worst, tl.max((is_finite == 0).to(tl.int32), 1))
        g = tl.where(is_finite, g, 0.0)
        squares += tl.sum(g * g, 1)
        total += tl.sum(g, 1)
        exist += tl.sum(_exists(mask, n, k, samples, outputs).to(tl.float64), 1)
    return squares, total, exist, finite_values(value, n, samples) & (worst == 0)


@_jit
def _exists(mask, n, k, samples, outputs):  # type: ignore[no-untyped-def]
    inside = (n < samples)[:, None] & (k < outputs)[None, :]
    if mask is not None:
        given = tl.load(mask + n[:, None] * outputs + k[None, :], mask=inside, other=0)
        inside = inside & (given != 0)
    return inside


@_jit
def _step_of(  # type: ignore[no-untyped-def]
    gradient, mask, n, k, middle, samples, outputs, along_differences, along_means
):  # fmt: skip
    g = _load(gradient, n[:, None], k[None, :], samples, outputs)
    out = (g - middle[:, None]) * along_differences + (middle * along_means)[:, None]
    return out, _exists(mask, n, k, samples, outputs)
