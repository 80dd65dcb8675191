"""A float32 linear layer behind bf16 features, on the matrix units. Importing this module imports triton.

Matrix units multiply bf16. A float32 number is the sum of three bf16 ones exactly (8 + 8 + 8 bits), so that
three products with a bf16 matrix, added up in float32, are the float32 product; a gradient that
will be rounded to bf16 needs only the three largest of the nine products of two such sums.

What is not finite stays so, at the same places as in torch's product, but it may be NaN where torch has ±inf: an
infinite weight or gradient leaves inf − inf behind in the sum of three, and an infinite feature meets parts of both
signs. To fix the former would cost a comparison and a choice per element, and the latter would still be there. A
number beyond bf16's largest, 3.39e38, counts as infinite.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

# Features are many and outputs few: the sum over the features is cut into this many parts.
PARTS = 28
BLOCK = 64


def linear(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`features` `(N, K)` bf16, `weight` `(M, K)` and `bias` `(M,)` float32 to `(N, M)` float32."""
    count, size = features.shape
    width = len(weight)
    parts = torch.empty((PARTS, count, width), dtype=torch.float32, device=features.device)
    with torch.cuda.device_of(features):  # type: ignore[no-untyped-call]
        linear_forward[(triton.cdiv(count, BLOCK), PARTS)](
            features, weight, parts, count, size, WIDTH=width, PARTS=PARTS, BLOCK=BLOCK, num_warps=4
        )
    return parts.sum(0) + bias


def linear_gradients(gradient: Tensor, features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the features, bf16, of the weight and of the bias, float32."""
    count, size = features.shape
    width = len(weight)
    by_features = torch.empty_like(features)
    by_weight = torch.empty_like(weight)
    by_bias = torch.empty(width, dtype=torch.float32, device=features.device)
    with torch.cuda.device_of(features):  # type: ignore[no-untyped-call]
        columns = triton.cdiv(size, BLOCK)
        linear_by_features[(triton.cdiv(count, BLOCK), columns)](
            gradient, weight, by_features, count, size, WIDTH=width, BLOCK=BLOCK, num_warps=4
        )
        linear_by_weight[(columns,)](gradient, features, by_weight, count, size, WIDTH=width, BLOCK=BLOCK, num_warps=4)
        linear_by_bias[(1,)](gradient, by_bias, count, WIDTH=width, BLOCK=BLOCK, num_warps=8)
    return by_features, by_weight, by_bias


@_jit
def in_three(x):  # type: ignore[no-untyped-def]
    """Three bf16 numbers that add up to a float32 one. Of ±inf they are ±inf, NaN and NaN, which add up to NaN."""
    large = x.to(tl.bfloat16)
    rest = x - large.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return large, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@_jit
def linear_forward(  # type: ignore[no-untyped-def]
    features, weight, parts, count, size, WIDTH: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = (row < count)[:, None]
    output = tl.arange(0, WIDTH)
    total = tl.zeros([BLOCK, WIDTH], tl.float32)
    for block in range(tl.program_id(1), tl.cdiv(size, BLOCK), PARTS):
        k = block * BLOCK + tl.arange(0, BLOCK)
        inside = (k < size)[None, :]
        x = tl.load(features + row[:, None] * size + k[None, :], mask=live & inside, other=0.0)
        large, middle, small = in_three(tl.load(weight + output[:, None] * size + k[None, :], mask=inside, other=0.0))
        total = tl.dot(x, tl.trans(small), total)
        total = tl.dot(x, tl.trans(middle), total)
        total = tl.dot(x, tl.trans(large), total)
    out = (tl.program_id(1) * count + row)[:, None] * WIDTH + output[None, :]
    tl.store(parts + out, total, mask=live)


@_jit
def linear_by_features(  # type: ignore[no-untyped-def]
    gradient, weight, by_features, count, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = (row < count)[:, None]
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (k < size)[None, :]
    output = tl.arange(0, WIDTH)
    slope, slope_rest, _ = in_three(tl.load(gradient + row[:, None] * WIDTH + output[None, :], mask=live, other=0.0))
    large, rest, _ = in_three(tl.load(weight + output[:, None] * size + k[None, :], mask=inside, other=0.0))
    total = tl.dot(slope_rest, large)
    total = tl.dot(slope, rest, total)
    total = tl.dot(slope, large, total)
    tl.store(by_features + row[:, None] * size + k[None, :], total.to(tl.bfloat16), mask=live & inside)


@_jit
def linear_by_weight(  # type: ignore[no-untyped-def]
    gradient, features, by_weight, count, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (k < size)[None, :]
    output = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH, BLOCK], tl.float32)
    for begin in range(0, count, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        live = (row < count)[:, None]
        x = tl.load(features + row[:, None] * size + k[None, :], mask=live & inside, other=0.0)
        slope = tl.load(gradient + row[:, None] * WIDTH + output[None, :], mask=live, other=0.0)
        large, middle, small = in_three(slope)
        total = tl.dot(tl.trans(small), x, total)
        total = tl.dot(tl.trans(middle), x, total)
        total = tl.dot(tl.trans(large), x, total)
    tl.store(by_weight + output[:, None] * size + k[None, :], total, mask=inside)


@_jit
def linear_by_bias(gradient, by_bias, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum over the rows; torch is slow at narrow ones."""
    output = tl.arange(0, WIDTH)
    total = tl.zeros([BLOCK, WIDTH], tl.float32)
    for begin in range(0, count, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        total += tl.load(gradient + row[:, None] * WIDTH + output[None, :], mask=(row < count)[:, None], other=0.0)
    tl.store(by_bias + output, tl.sum(total, 0))
