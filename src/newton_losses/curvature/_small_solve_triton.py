"""Gauss-Jordan elimination in registers. Importing this module imports triton."""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

# Few rows a program: what takes the time is the chain of reductions, which is as long for one row as for many.
BLOCK = 8


def eliminate_rows(matrix: Tensor, rows: Tensor, definite: bool) -> Tensor:
    """Every program eliminates the whole matrix again, for a block of right-hand sides: nothing to wait for."""
    count, size = rows.shape
    out = torch.empty_like(rows)
    padded = max(4, triton.next_power_of_2(size))
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        eliminate[(triton.cdiv(count, BLOCK),)](
            matrix, rows, out, count, size,
            DEFINITE=definite, SIZE=padded, BLOCK=BLOCK, num_warps=1 if padded <= 16 else 4,
        )  # fmt: skip
    return out


@_jit
def eliminate(  # type: ignore[no-untyped-def]
    matrix, rows, out, count, size, DEFINITE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    i = tl.arange(0, SIZE)
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (i < size)[:, None] & (i < size)[None, :]
    live = (i < size)[:, None] & (k < count)[None, :]
    a = tl.load(matrix + i[:, None] * size + i[None, :], mask=inside, other=0.0)
    x = tl.load(rows + k[None, :] * size + i[:, None], mask=live, other=0.0)
    good = tl.sum(tl.zeros([SIZE], tl.float64), 0) + 1.0
    for p in range(size):
        at = i == p
        column = tl.sum(tl.where(at[None, :], a, 0.0), 1)
        if DEFINITE:
            row = tl.sum(tl.where(at[:, None], a, 0.0), 0)
            side = tl.sum(tl.where(at[:, None], x, 0.0), 0)
        else:
            q = tl.argmax(tl.where((i >= p) & (i < size), tl.abs(column), -1.0), 0)
            other = i == q
            row = tl.sum(tl.where(other[:, None], a, 0.0), 0)
            side = tl.sum(tl.where(other[:, None], x, 0.0), 0)
            # Row p goes where row q was; row q becomes row p below.
            a = tl.where(other[:, None], tl.sum(tl.where(at[:, None], a, 0.0), 0)[None, :], a)
            x = tl.where(other[:, None], tl.sum(tl.where(at[:, None], x, 0.0), 0)[None, :], x)
            column = tl.where(other, tl.sum(tl.where(at, column, 0.0), 0), column)
        pivot = tl.sum(tl.where(at, row, 0.0), 0)
        if DEFINITE:
            good = tl.where(pivot > 0, good, float("nan"))
        row = row / pivot
        side = side / pivot
        a = tl.where(at[:, None], row[None, :], a - column[:, None] * row[None, :])
        x = tl.where(at[:, None], side[None, :], x - column[:, None] * side[None, :])
    tl.store(out + k[None, :] * size + i[:, None], x * good, mask=live)
