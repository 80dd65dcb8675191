"""What `settle` does to a batch as one kernel: bound its gradients, and take it into the run's mean square.

One program reads all gradients three times; they are few, and beside a launch that takes no time. Imports triton.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._backends import launch, on_device, parts_of, power_of_two
from ._fisher_triton import _load, _store
from ._lists_triton import row_sums

_Decorator = Callable[[Callable[..., Any]], Any]
_kernel: _Decorator = triton.jit(do_not_specialize=["samples", "outputs"])

# Numbers of the gradients that are read at a time.
AT_A_TIME = 2048


def launch_settle(
    gradient: Tensor,
    value: Tensor | None,
    mask: Tensor | None,
    state: Tensor,
    update: bool,
    decay: float,
    limit: float,
    growth: float,
) -> tuple[Tensor, Tensor]:
    """The bounded gradients, and the factor of the step in the dtype of the gradients; `state` changes in place."""
    samples, outputs = gradient.shape
    gradient = gradient.contiguous()
    columns = min(power_of_two(outputs), 128)
    rows = AT_A_TIME // columns
    bounded = torch.empty_like(gradient)
    factor = torch.empty((), dtype=gradient.dtype, device=gradient.device)
    with on_device(gradient):
        value = None if value is None else value.contiguous()
        mask = None if mask is None else mask.contiguous().view(torch.uint8)
        constants = {
            "UPDATE": update, "DECAY": decay, "LIMIT": limit, "GROWTH": growth, "ROWS": rows, "COLUMNS": columns,
            "ROW_BLOCKS": parts_of(samples, rows), "COLUMN_BLOCKS": parts_of(outputs, columns),
        }  # fmt: skip
        given = (gradient, value, mask, state, bounded, factor, samples, outputs)
        launch(settle_batch, 1, given, constants, warps=8)
    return bounded, factor


@_kernel
def settle_batch(  # type: ignore[no-untyped-def]
    gradient, value, mask, state, bounded, factor, samples, outputs,
    UPDATE: tl.constexpr, DECAY: tl.constexpr, LIMIT: tl.constexpr, GROWTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROW_BLOCKS: tl.constexpr, COLUMN_BLOCKS: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, ROWS)
    j = tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS], tl.float64)
    items = tl.zeros([ROWS], tl.float64)
    for block in range(ROW_BLOCKS):
        n = block * ROWS + i
        squares, _, exist, good = row_sums(gradient, value, mask, n, j, samples, outputs, ROWS, COLUMNS, COLUMN_BLOCKS)
        total += tl.where(good, squares, 0.0)
        items += tl.where(good, exist, 0.0)
    size = outputs.to(tl.float64)
    # Of lists, a part of a sample counts as such.
    count = tl.sum(items, 0) / size
    count = tl.where(count > 0, count, 1.0)
    mean = tl.sum(total, 0) / (size * count)
    # Read before the next sum, which all threads wait for, and written after it.
    old_total = tl.load(state)
    old_weight = tl.load(state + 1)
    is_known = old_weight > 0
    old = old_total / tl.where(is_known, old_weight, 1.0)
    limit = LIMIT * count * size * old
    limit = tl.where(is_known & (limit > 0), limit, float("inf"))
    total = tl.zeros([ROWS], tl.float64)
    for block in range(ROW_BLOCKS):
        n = block * ROWS + i
        squares, _, exist, good = row_sums(gradient, value, mask, n, j, samples, outputs, ROWS, COLUMNS, COLUMN_BLOCKS)
        total += tl.where(good, tl.minimum(squares, limit), 0.0)
    own = tl.sum(total, 0) / (size * count)

    enters = (mean > 0) & (mean < float("inf"))
    weight = DECAY * old_weight + (1 - DECAY)
    run = tl.minimum((DECAY * old_total + (1 - DECAY) * mean) / weight, GROWTH * old)
    run = tl.where(is_known, run, own)
    ratio = own / tl.where(run > 0, run, 1.0)
    found = tl.where(enters & is_known, tl.sqrt(tl.minimum(ratio, LIMIT)), 1.0)
    tl.store(factor, found.to(factor.dtype.element_ty))
    if UPDATE:
        tl.store(state, tl.where(enters, run * weight, old_total))
        tl.store(state + 1, tl.where(enters, weight, old_weight))

    for block in range(ROW_BLOCKS):
        n = block * ROWS + i
        squares, _, exist, good = row_sums(gradient, value, mask, n, j, samples, outputs, ROWS, COLUMNS, COLUMN_BLOCKS)
        is_large = good & (squares > limit)
        share = tl.where(is_large, tl.sqrt(limit / tl.where(is_large, squares, 1.0)), 1.0)
        for part in range(COLUMN_BLOCKS):
            k = part * COLUMNS + j
            g = _load(gradient, n[:, None], k[None, :], samples, outputs)
            g = tl.where(is_large[:, None], g * share[:, None], g)
            _store(bounded, n[:, None], k[None, :], g.to(bounded.dtype.element_ty), samples, outputs)
