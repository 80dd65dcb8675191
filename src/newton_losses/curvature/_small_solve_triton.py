"""Small damped systems in registers, one warp each: elimination, |C|. Importing imports triton.

A tile `(SIZE, WIDTH)` holds the matrix in its first M columns and right-hand sides in the others. A lane has whole
columns: a row is at hand in all lanes, and a column reaches them by shuffles, without a barrier. Every program
makes and eliminates the matrix again, for its own right-hand sides: nothing to wait for.
"""

import struct
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._backends import parts_of, power_of_two
from ._solve import LOWEST, ROUNDS, STEEPEST

_Decorator = Callable[[Callable[..., Any]], Any]
_jit: _Decorator = triton.jit
# A kernel of its own for one sample, or for numbers with other factors, would not be faster.
_kernel: _Decorator = triton.jit(do_not_specialize=["number", "count"])

# Up to this many unknowns the pivots are unrolled, so that it is known where a row is; more take too long to compile.
UNROLLED = tl.constexpr(16)
ROUNDING = tl.constexpr(2.0**-52)


def solve_rows(matrix: Tensor, rows: Tensor, damping: Tensor | None, number: float, kind: str) -> Tensor:
    """(C + λI)⁻¹ for each row; `damping` is λ in a tensor, without it `number` is."""
    out = torch.empty_like(rows)
    grid, shape = _shape(rows, products=kind in ("absolute", "clip"))
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        solve[grid](
            matrix, rows, out, damping, bits_of(number), len(rows),
            KIND=kind, LOWEST=LOWEST, STEEPEST=STEEPEST, ROUNDS=ROUNDS, **shape,
        )  # fmt: skip
    return out


def _shape(rows: Tensor, products: bool) -> tuple[tuple[int], dict[str, int]]:
    """The grid, and what the tile looks like: as wide as a warp or two, for 16 right-hand sides at least."""
    count, unknowns = rows.shape
    # The units that multiply matrices know none below 16.
    size = max(16 if products else 8, power_of_two(unknowns))
    width = max(32, 2 * size)
    return (parts_of(count, width - unknowns),), {"M": unknowns, "SIZE": size, "WIDTH": width, "num_warps": 1}


def bits_of(number: float) -> int:
    """Triton takes a number as float32; its bits it takes as they are."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


@_kernel
def solve(  # type: ignore[no-untyped-def]
    matrix, rows, out, damping, number, count,
    KIND: tl.constexpr, LOWEST: tl.constexpr, STEEPEST: tl.constexpr, ROUNDS: tl.constexpr,
    M: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, SIZE)
    cells = i[:, None] * M + i[None, :]
    square = tl.load(matrix + cells, mask=(i < M)[:, None] & (i < M)[None, :], other=0.0).to(tl.float64)
    if KIND == "absolute" or KIND == "clip":
        absolute = absolute_of(square, LOWEST, STEEPEST, ROUNDS)
        square = absolute if KIND == "absolute" else (absolute + square) * 0.5
    _solve_sides(square, rows, out, _number(damping, number), count, KIND != "raw", M, SIZE, WIDTH)


@_jit
def _number(damping, bits):  # type: ignore[no-untyped-def]
    return bits.to(tl.int64).to(tl.float64, bitcast=True) if damping is None else tl.load(damping).to(tl.float64)


@_jit
def absolute_of(  # type: ignore[no-untyped-def]
    square, LOWEST: tl.constexpr, STEEPEST: tl.constexpr, ROUNDS: tl.constexpr
):  # fmt: skip
    """|C| = C sign(C), by the iteration of `_solve.py`."""
    scale = tl.sqrt(tl.sum(tl.sum(square * square, 1), 0))
    sign = tl.where(scale > 0, square / scale, 0.0)
    # How steep a round is need not be exact, and roots and quotients in float64 would take as long as the products.
    low = tl.full([], LOWEST, tl.float32)
    for _ in range(ROUNDS):
        steep = tl.minimum(tl.sqrt(3.0 / (1.0 + low + low * low)), STEEPEST)
        low = 0.5 * steep * low * (3.0 - steep * steep * low * low)
        factor = steep.to(tl.float64)
        cube = tl.dot(tl.dot(sign, sign, out_dtype=tl.float64), sign, out_dtype=tl.float64)
        sign = (1.5 * factor) * sign - (0.5 * factor * factor * factor) * cube
    absolute = tl.dot(square, sign, out_dtype=tl.float64)
    return (absolute + tl.trans(absolute)) * 0.5


@_jit
def _solve_sides(  # type: ignore[no-untyped-def]
    square, rows, out, damping, count,
    DEFINITE: tl.constexpr, M: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, SIZE)
    j = tl.arange(0, WIDTH)
    k = tl.program_id(0) * (WIDTH - M) + j - M
    live = (i < M)[:, None] & ((j >= M) & (k < count))[None, :]
    side = tl.load(rows + k[None, :] * M + i[:, None], mask=live, other=0.0).to(tl.float64)
    # The square again and again from left to right, of which the first one counts.
    tile = tl.broadcast_to(square[:, None, :], [SIZE, WIDTH // SIZE, SIZE]).reshape(SIZE, WIDTH)
    tile = tl.where(i[:, None] == j[None, :], tile + damping, tile)
    tile = tl.where((j < M)[None, :], tile, side)
    # A pivot that is only the rounding of its diagonal entry is none: as in `has_inverse`.
    rounding = tl.sum(tl.where(i[:, None] == j[None, :], tile, 0.0), 1) * (M * ROUNDING)
    good = tl.full([WIDTH], 1.0, tl.float64)
    # Which unknown a row has been solved for; none yet.
    solved = tl.full([SIZE, WIDTH], SIZE, tl.int32)
    if DEFINITE and M <= UNROLLED:
        for p in tl.static_range(M):
            tile, solved, good = _eliminate(tile, solved, good, rounding, p, DEFINITE, M, SIZE, WIDTH)
    else:
        for p in range(M):
            tile, solved, good = _eliminate(tile, solved, good, rounding, p, DEFINITE, M, SIZE, WIDTH)
    unknown = i[:, None] if DEFINITE else solved
    tl.store(out + k[None, :] * M + unknown, (tile * good[None, :]).to(out.dtype.element_ty), mask=live)


@_jit
def _eliminate(  # type: ignore[no-untyped-def]
    tile, solved, good, rounding, p, DEFINITE: tl.constexpr, M: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """One pivot. Rows stay where they are: the one with the largest entry is solved for unknown p."""
    i = tl.arange(0, SIZE)[:, None]
    column = tl.gather(tile, tl.full([SIZE, WIDTH], p, tl.int32), 1)
    if DEFINITE:
        at = i == p
    else:
        # A NaN is the largest of all, so that it reaches every row.
        large = tl.where(column == column, tl.abs(column), float("inf"))
        large = tl.where((solved == SIZE) & (i < M), large, -1.0)
        at = i == tl.argmax(large, 0)[None, :]
        solved = tl.where(at, p, solved)
    row = tl.sum(tl.where(at, tile, 0.0), 0)
    pivot = tl.sum(tl.where(at, column, 0.0), 0)
    # What is infinite would end as a step of zero.
    usable = tl.abs(pivot) < float("inf")
    if DEFINITE:
        usable = usable & (pivot > tl.sum(tl.where(at, rounding[:, None], 0.0), 0))
    good = tl.where(usable, good, float("nan"))
    row = row * (1.0 / pivot)
    return tl.where(at, row[None, :], tile - column * row[None, :]), solved, good
