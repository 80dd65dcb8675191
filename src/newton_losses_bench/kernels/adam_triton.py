"""One Adam step of one tensor. Importing this module imports triton."""

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

BLOCK = 1024


def adam_step(
    weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, step: Tensor, rate: Tensor,
    beta_1: float, beta_2: float, epsilon: float,
) -> None:  # fmt: skip
    """Change `weight`, `mean` and `square` in place. `step` counts from 1 and, like `rate`, is on the device."""
    with torch.cuda.device_of(weight):  # type: ignore[no-untyped-call]
        adam[(triton.cdiv(weight.numel(), BLOCK),)](
            weight, gradient, mean, square, step, rate, weight.numel(), 1 - beta_1, 1 - beta_2, epsilon,
            LOG_BETA_1=math.log2(beta_1), LOG_BETA_2=math.log2(beta_2), BLOCK=BLOCK,
        )  # fmt: skip


@_jit
def adam(  # type: ignore[no-untyped-def]
    weight, gradient, mean, square, step, rate, count, new_1, new_2, epsilon,
    LOG_BETA_1: tl.constexpr, LOG_BETA_2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    # 1 − βᵗ in float64: at the first steps it is the difference of two nearly equal numbers.
    steps = tl.load(step).to(tl.float64)
    correction_1 = (1 - tl.exp2(steps * LOG_BETA_1)).to(tl.float32)
    correction_2 = (1 - tl.exp2(steps * LOG_BETA_2)).to(tl.float32)
    g = tl.load(gradient + at, mask=live, other=0.0)
    m = tl.load(mean + at, mask=live, other=0.0)
    v = tl.load(square + at, mask=live, other=0.0)
    w = tl.load(weight + at, mask=live, other=0.0)
    m += new_1 * (g - m)
    v += new_2 * (g * g - v)
    size = tl.sqrt(v) / tl.sqrt(correction_2) + epsilon
    tl.store(weight + at, w - tl.load(rate) / correction_1 * m / size, mask=live)
    tl.store(mean + at, m, mask=live)
    tl.store(square + at, v, mask=live)
