"""The mean of the Hessians of the samples in which everything is finite, as two kernels. Imports triton.

The first finds these samples, one program per sample; the second sums over them, one program per tile of the mean, to
which it adds the tile's mirror image.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._backends import launch, on_device, parts_of, power_of_two

_Decorator = Callable[[Callable[..., Any]], Any]
_kernel: _Decorator = triton.jit(do_not_specialize=["samples", "outputs"])

# The side of a tile, how many samples are read at a time, and how many numbers of one sample.
TILE = 8
SAMPLES = 32
NUMBERS = 2048


def mean_of_finite_hessians(second: Tensor, value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The symmetric mean `(m, m)` of `second` `(m, N, m)`, and of how many samples it is, a whole number."""
    samples, outputs = gradient.shape
    second, value, gradient = second.contiguous(), value.contiguous(), gradient.contiguous()
    kept = torch.empty(samples, dtype=torch.int32, device=second.device)
    matrix = torch.empty(outputs, outputs, dtype=second.dtype, device=second.device)
    count = torch.empty((), dtype=torch.int64, device=second.device)
    tiles = parts_of(outputs, TILE)
    with on_device(second):
        width = min(128, max(16, power_of_two(outputs)))
        constants = {"ROWS": max(1, NUMBERS // width), "WIDTH": width}
        launch(find_finite, samples, (second, value, gradient, kept, samples, outputs), constants, warps=4)
        sizes = {"TILE": TILE, "SAMPLES": SAMPLES}
        launch(sum_finite, tiles * tiles, (second, kept, matrix, count, samples, outputs), sizes, warps=4)
    return matrix, count


@_kernel
def find_finite(  # type: ignore[no-untyped-def]
    second, value, gradient, kept, samples, outputs, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    good = tl.zeros([ROWS, WIDTH], tl.int32) == 0
    begin = 0
    while begin < outputs:
        j = begin + column
        g = tl.load(gradient + n.to(tl.int64) * outputs + j, mask=j < outputs, other=0.0)
        good = good & (tl.abs(g) < float("inf"))[None, :]
        top = 0
        while top < outputs:
            k = top + row
            inside = (k < outputs)[:, None] & (j < outputs)[None, :]
            cells = (k[:, None].to(tl.int64) * samples + n) * outputs + j[None, :]
            good = good & (tl.abs(tl.load(second + cells, mask=inside, other=0.0)) < float("inf"))
            top += ROWS
        begin += WIDTH
    is_good = tl.min(tl.min(good.to(tl.int32), 1), 0)
    is_good = tl.where(tl.abs(tl.load(value + n)) < float("inf"), is_good, 0)
    tl.store(kept + n, is_good)


@_kernel
def sum_finite(  # type: ignore[no-untyped-def]
    second, kept, matrix, count, samples, outputs, TILE: tl.constexpr, SAMPLES: tl.constexpr
):  # fmt: skip
    tiles = (outputs + TILE - 1) // TILE
    k = (tl.program_id(0) // tiles) * TILE + tl.arange(0, TILE)
    j = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
    inside = (k < outputs)[:, None] & (j < outputs)[None, :]
    total = tl.zeros([SAMPLES, TILE, TILE], tl.float64)
    number = tl.zeros([SAMPLES], tl.int64)
    begin = 0
    while begin < samples:  # a `while`, so that the batch size is not compiled in
        n = begin + tl.arange(0, SAMPLES)
        good = tl.load(kept + n, mask=n < samples, other=0) > 0
        number += good.to(tl.int64)
        mask = good[:, None, None] & inside[None, :, :]
        wide, high, across = n.to(tl.int64)[:, None, None], k[None, :, None], j[None, None, :]
        one = tl.load(second + (high.to(tl.int64) * samples + wide) * outputs + across, mask=mask, other=0.0)
        mirrored = tl.load(second + (across.to(tl.int64) * samples + wide) * outputs + high, mask=mask, other=0.0)
        total += one.to(tl.float64) + mirrored.to(tl.float64)
        begin += SAMPLES
    found = tl.sum(number, 0)
    mean = tl.sum(total, 0) / (2 * tl.maximum(found, 1)).to(tl.float64)
    cells = matrix + k[:, None].to(tl.int64) * outputs + j[None, :]
    tl.store(cells, mean.to(matrix.dtype.element_ty), mask=inside)
    tl.store(count, found, mask=tl.program_id(0) == 0)
