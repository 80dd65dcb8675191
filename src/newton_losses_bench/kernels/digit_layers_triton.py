"""The kernels around the convolutions of `DigitCNN`. Importing this module imports triton.

What the first layer computes before its pooling, 100 MB per step, is never written: a program reads a patch
of 6×6 pixels per pooled place, multiplies it by the weights of the four places that are pooled, and keeps the
largest and which one it was, its code. The backward pass reads the patch again. The second convolution is the
library's; bias, ReLU and pooling behind it are one kernel, and their backward pass is another.

A code is the number of the pooled place, 0 to 3 in reading order, or 4 where the ReLU is off. NaN is larger than any
number and not negative, as for torch: it comes through, and of several the last one is the largest.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

SIDE = tl.constexpr(6)
PATCH = tl.constexpr(64)
OFF = tl.constexpr(4)
# Enough programs for every multiprocessor to have a few; each loads the weights once and then many patches.
PROGRAMS = 264


def first_layer(padded: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels `(N, H+4, W+4)` uint8 to pooled features `(N, H/2, W/2, C)` bf16 and their codes, uint8."""
    count, height, width = padded.shape[0], padded.shape[1] - 4, padded.shape[2] - 4
    shape = (count, height // 2, width // 2, len(bias))
    pooled = torch.empty(shape, dtype=torch.bfloat16, device=padded.device)
    codes = torch.empty(shape, dtype=torch.uint8, device=padded.device)
    places = count * shape[1] * shape[2]
    with torch.cuda.device_of(padded):  # type: ignore[no-untyped-call]
        first_layer_forward[(PROGRAMS,)](
            padded, weight, bias, pooled, codes, places,
            HEIGHT=height, WIDTH=width, CHANNELS=len(bias), BLOCK=128, num_warps=4,
        )  # fmt: skip
    return pooled, codes


def first_layer_gradients(padded: Tensor, gradient: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the first layer's weight `(C, 1, 5, 5)` and bias `(C,)`, float32."""
    count, rows, columns, channels = gradient.shape
    places = count * rows * columns
    parts = torch.empty((PROGRAMS, 4, PATCH.value, channels), dtype=torch.float32, device=padded.device)
    bias_parts = torch.empty((PROGRAMS, channels), dtype=torch.float32, device=padded.device)
    weight = torch.empty((channels, 1, 5, 5), dtype=torch.float32, device=padded.device)
    with torch.cuda.device_of(padded):  # type: ignore[no-untyped-call]
        first_layer_backward[(PROGRAMS,)](
            padded, gradient, codes, parts, bias_parts, places,
            HEIGHT=2 * rows, WIDTH=2 * columns, CHANNELS=channels, BLOCK=128, num_warps=4,
        )  # fmt: skip
        add_parts[(25,)](parts, weight, PROGRAMS=PROGRAMS, CHANNELS=channels, BLOCK=32, num_warps=4)
    return weight, add_rows(bias_parts)


def add_rows(parts: Tensor) -> Tensor:
    """The sum over the rows of `(R, C)` float32; torch is slow at narrow ones."""
    total = torch.empty(parts.shape[1], dtype=torch.float32, device=parts.device)
    with torch.cuda.device_of(parts):  # type: ignore[no-untyped-call]
        add_all_rows[(1,)](parts, total, len(parts), COLUMNS=parts.shape[1], BLOCK=64, num_warps=8)
    return total


def pool(features: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Bias, ReLU, 2×2 pooling: `(N, H, W, C)` bf16 to `(N, C·H/2·W/2)` bf16 in torch's order, and codes."""
    count, height, width, channels = features.shape
    places = height // 2 * (width // 2)
    pooled = torch.empty((count, channels * places), dtype=torch.bfloat16, device=features.device)
    codes = torch.empty((count, places, channels), dtype=torch.uint8, device=features.device)
    with torch.cuda.device_of(features):  # type: ignore[no-untyped-call]
        pool_forward[(count, triton.cdiv(places, 32))](
            features, bias, pooled, codes, places, WIDTH=width, CHANNELS=channels, BLOCK=32, num_warps=4
        )
    return pooled, codes


def pool_gradients(gradient: Tensor, codes: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The gradients of the features before `pool`, `(N, H, W, C)` bf16, and of its bias, float32."""
    count, places, channels = codes.shape
    features = torch.empty((count, height, width, channels), dtype=torch.bfloat16, device=gradient.device)
    bias_parts = torch.empty((count, channels), dtype=torch.float32, device=gradient.device)
    with torch.cuda.device_of(gradient):  # type: ignore[no-untyped-call]
        pool_backward[(count,)](
            gradient, codes, features, bias_parts, places, WIDTH=width, CHANNELS=channels, BLOCK=32, num_warps=4
        )
    return features, add_rows(bias_parts)


@_jit
def patch_offsets(WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    k = tl.arange(0, PATCH)
    return k // SIDE * (WIDTH + 4) + k % SIDE


@_jit
def patch_corners(place, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the patch of a pooled place begins among the padded pixels."""
    columns: tl.constexpr = WIDTH // 2
    per_picture: tl.constexpr = HEIGHT // 2 * columns
    picture = place // per_picture
    within = place % per_picture
    row = within // columns
    column = within % columns
    return picture * ((HEIGHT + 4) * (WIDTH + 4)) + 2 * row * (WIDTH + 4) + 2 * column


@_jit
def load_patches(padded, place, live, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """`(BLOCK, PATCH)` pixels, 0 to 255, which bf16 holds exactly; what is beyond the 36 is 0."""
    corners = patch_corners(place, HEIGHT, WIDTH)
    mask = live[:, None] & (tl.arange(0, PATCH) < SIDE * SIDE)[None, :]
    return tl.load(padded + corners[:, None] + patch_offsets(WIDTH)[None, :], mask=mask, other=0).to(tl.bfloat16)


@_jit
def load_weights(weight, row: tl.constexpr, column: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """`(PATCH, CHANNELS)`: the 5×5 weights at their place in the patch, for one of the four pooled places."""
    k = tl.arange(0, PATCH)
    y = k // SIDE - row
    x = k % SIDE - column
    inside = (y >= 0) & (y < 5) & (x >= 0) & (x < 5)
    channel = tl.arange(0, CHANNELS)
    found = tl.load(weight + channel[None, :] * 25 + (y * 5 + x)[:, None], mask=inside[:, None], other=0.0)
    return found.to(tl.bfloat16)


@_jit
def larger(best, code, candidate, number: tl.constexpr):  # type: ignore[no-untyped-def]
    # A comparison with NaN is false: where the best so far is NaN, it stays unless the candidate is NaN as well.
    is_larger = (candidate > best) | (candidate != candidate)
    return tl.maximum(best, candidate, propagate_nan=tl.PropagateNan.ALL), tl.where(is_larger, number, code)


@_jit
def rectified(best, code):  # type: ignore[no-untyped-def]
    """The ReLU of a pooled value, and its code: off at 0 and below, where NaN is not."""
    return tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL), tl.where(best <= 0, OFF, code)


@_jit
def first_layer_forward(  # type: ignore[no-untyped-def]
    padded, weight, bias, pooled, codes, places,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    weight_0 = load_weights(weight, 0, 0, CHANNELS)
    weight_1 = load_weights(weight, 0, 1, CHANNELS)
    weight_2 = load_weights(weight, 1, 0, CHANNELS)
    weight_3 = load_weights(weight, 1, 1, CHANNELS)
    channel = tl.arange(0, CHANNELS)
    offset = tl.load(bias + channel)[None, :]
    for block in range(tl.program_id(0), tl.cdiv(places, BLOCK), tl.num_programs(0)):
        place = block * BLOCK + tl.arange(0, BLOCK)
        live = place < places
        patches = load_patches(padded, place, live, HEIGHT, WIDTH)
        best = tl.dot(patches, weight_0)
        code = tl.zeros([BLOCK, CHANNELS], tl.int32)
        best, code = larger(best, code, tl.dot(patches, weight_1), 1)
        best, code = larger(best, code, tl.dot(patches, weight_2), 2)
        best, code = larger(best, code, tl.dot(patches, weight_3), 3)
        best, code = rectified(best * (1.0 / 255.0) + offset, code)
        out = place[:, None] * CHANNELS + channel[None, :]
        tl.store(pooled + out, best.to(tl.bfloat16), mask=live[:, None])
        tl.store(codes + out, code.to(tl.uint8), mask=live[:, None])


@_jit
def first_layer_backward(  # type: ignore[no-untyped-def]
    padded, gradient, codes, parts, bias_parts, places,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, CHANNELS)
    part_0 = tl.zeros([PATCH, CHANNELS], tl.float32)
    part_1 = tl.zeros([PATCH, CHANNELS], tl.float32)
    part_2 = tl.zeros([PATCH, CHANNELS], tl.float32)
    part_3 = tl.zeros([PATCH, CHANNELS], tl.float32)
    bias = tl.zeros([CHANNELS], tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(places, BLOCK), tl.num_programs(0)):
        place = block * BLOCK + tl.arange(0, BLOCK)
        live = place < places
        patches = tl.trans(load_patches(padded, place, live, HEIGHT, WIDTH))
        at = place[:, None] * CHANNELS + channel[None, :]
        code = tl.load(codes + at, mask=live[:, None], other=OFF).to(tl.int32)
        slope = tl.load(gradient + at, mask=live[:, None], other=0.0)
        none = tl.zeros_like(slope)
        part_0 = tl.dot(patches, tl.where(code == 0, slope, none), part_0)
        part_1 = tl.dot(patches, tl.where(code == 1, slope, none), part_1)
        part_2 = tl.dot(patches, tl.where(code == 2, slope, none), part_2)
        part_3 = tl.dot(patches, tl.where(code == 3, slope, none), part_3)
        bias += tl.sum(tl.where(code < OFF, slope, none).to(tl.float32), 0)
    tl.store(bias_parts + tl.program_id(0) * CHANNELS + channel, bias)
    at = tl.arange(0, PATCH)[:, None] * CHANNELS + channel[None, :]
    size: tl.constexpr = PATCH * CHANNELS
    parts += tl.program_id(0) * 4 * size
    tl.store(parts + at, part_0)
    tl.store(parts + size + at, part_1)
    tl.store(parts + 2 * size + at, part_2)
    tl.store(parts + 3 * size + at, part_3)


@_jit
def add_parts(parts, weight, PROGRAMS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One of the 25 weights of every channel: its sum over the programs and the four pooled places."""
    tap = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    total = tl.zeros([BLOCK, CHANNELS], tl.float32)
    for begin in range(0, PROGRAMS, BLOCK):
        program = begin + tl.arange(0, BLOCK)
        for number in tl.static_range(4):
            k = (tap // 5 + number // 2) * SIDE + tap % 5 + number % 2
            at = ((program[:, None] * 4 + number) * PATCH + k) * CHANNELS + channel[None, :]
            total += tl.load(parts + at, mask=(program < PROGRAMS)[:, None], other=0.0)
    tl.store(weight + channel * 25 + tap, tl.sum(total, 0) * (1.0 / 255.0))


@_jit
def add_all_rows(parts, total, rows, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.arange(0, COLUMNS)
    found = tl.zeros([BLOCK, COLUMNS], tl.float32)
    for begin in range(0, rows, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        found += tl.load(parts + row[:, None] * COLUMNS + column[None, :], mask=(row < rows)[:, None], other=0.0)
    tl.store(total + column, tl.sum(found, 0))


@_jit
def pool_forward(  # type: ignore[no-untyped-def]
    features, bias, pooled, codes, places, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    picture = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = (place < places)[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    columns: tl.constexpr = WIDTH // 2
    corner = (picture * 4 * places + place // columns * (2 * WIDTH) + 2 * (place % columns))[:, None]
    first = features + corner * CHANNELS + channel
    best = tl.load(first, mask=live).to(tl.float32)
    code = tl.zeros([BLOCK, CHANNELS], tl.int32)
    best, code = larger(best, code, tl.load(first + CHANNELS, mask=live).to(tl.float32), 1)
    best, code = larger(best, code, tl.load(first + WIDTH * CHANNELS, mask=live).to(tl.float32), 2)
    best, code = larger(best, code, tl.load(first + (WIDTH + 1) * CHANNELS, mask=live).to(tl.float32), 3)
    best, code = rectified(best + tl.load(bias + channel), code)
    tl.store(codes + (picture * places + place)[:, None] * CHANNELS + channel, code.to(tl.uint8), mask=live)
    out = (picture * CHANNELS + channel) * places + place[:, None]
    tl.store(pooled + out, best.to(tl.bfloat16), mask=live)


@_jit
def pool_backward(  # type: ignore[no-untyped-def]
    gradient, codes, features, bias_parts, places, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    picture = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)[None, :]
    columns: tl.constexpr = WIDTH // 2
    bias = tl.zeros([CHANNELS], tl.float32)
    for begin in range(0, places, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        live = (place < places)[:, None]
        slope = tl.load(gradient + (picture * CHANNELS + channel) * places + place[:, None], mask=live, other=0.0)
        code = tl.load(codes + (picture * places + place)[:, None] * CHANNELS + channel, mask=live, other=OFF)
        code = code.to(tl.int32)
        bias += tl.sum(tl.where(code < OFF, slope, 0.0).to(tl.float32), 0)
        none = tl.zeros_like(slope)
        corner = (picture * 4 * places + place // columns * (2 * WIDTH) + 2 * (place % columns))[:, None]
        first = features + corner * CHANNELS + channel
        tl.store(first, tl.where(code == 0, slope, none), mask=live)
        tl.store(first + CHANNELS, tl.where(code == 1, slope, none), mask=live)
        tl.store(first + WIDTH * CHANNELS, tl.where(code == 2, slope, none), mask=live)
        tl.store(first + (WIDTH + 1) * CHANNELS, tl.where(code == 3, slope, none), mask=live)
    tl.store(bias_parts + picture * CHANNELS + tl.arange(0, CHANNELS), bias)
