"""What the CUDA kernels with a program a grid share: its size, and its vertices' neighbours. Importing this module
imports triton.

A program holds a whole grid, flattened and padded. A neighbour's value comes by `tl.gather`, from tensor to tensor.
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

# Beyond so many cells a grid does not fit into a program.
LARGEST = 32 * 32


def padded(cells: int) -> int:
    """So many cells as a power of two, and at least a warp."""
    return max(32, 1 << (cells - 1).bit_length())


@_jit
def neighbors(height, width, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each vertex's eight neighbours `(8, SIZE)`, row by row, and whether they are on the grid; k is opposite 7 − k."""
    k = tl.arange(0, 8)[:, None]
    vertex = tl.arange(0, SIZE)[None, :]
    cell = k + (k >= 4).to(tl.int32)  # of the 3×3 around, without the middle
    row = vertex // width + cell // 3 - 1
    column = vertex % width + cell % 3 - 1
    inside = (vertex < height * width) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return tl.where(inside, row * width + column, vertex), inside


@_jit
def of_neighbors(values, others, inside, outside, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The values `(SIZE,)` of each vertex's neighbours, `(8, SIZE)`: all in one gather."""
    found = tl.gather(values, tl.reshape(others, [8 * SIZE]), 0)
    return tl.where(inside, tl.reshape(found, [8, SIZE]), outside)
