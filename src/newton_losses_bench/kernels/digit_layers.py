"""The large part of `DigitCNN` on a Hopper GPU, in bf16 and straight from bytes, with its gradients.

Here is what is differentiated. The kernels of both convolutions are called from `digit_layers_hopper.py`, that of the
linear layer is in `linear_triton.py`. On any other device torch does the same work.
"""

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@cache
def has_triton() -> bool:
    """Whether triton can be used here: it comes with torch, and before torch 2.10 it lacks parts of the language."""
    is_recent = torch.__version__ >= "2.10" and torch.version.hip is None
    return is_recent and importlib.util.find_spec("triton") is not None


def has_digit_kernels(image_size: tuple[int, int], count: int, device: torch.device) -> bool:
    """Whether there are kernels for `count` pictures of this size: on a Hopper GPU, where they fit.

    >>> has_digit_kernels((28, 112), 500, torch.device("cpu"))
    False
    """
    height, width = image_size
    in_fours = height % 4 == 0 and width % 4 == 0
    # The kernels keep rows in shared memory, and count the numbers behind the second convolution in 32 bits.
    fits = height <= 64 and width <= 112 and count * (height // 2) * (width // 2) * 64 < 2**31
    if not (device.type == "cuda" and in_fours and fits and has_triton()):
        return False
    from .digit_layers_hopper import is_hopper  # which imports torch's compiler

    hopper: bool = is_hopper(device)
    return hopper


def digit_features(pictures: Tensor, weight_1: Tensor, bias_1: Tensor, weight_2: Tensor, bias_2: Tensor) -> Tensor:
    """Two times convolution (5×5, padded), ReLU and 2×2 pooling: `(N, H, W)` uint8 → `(N, 64·H/4·W/4)` bf16.

    Pixels count from 0 to 1. Operands are rounded to bf16, sums are float32. The convolutions have 32 and 64 channels;
    `has_digit_kernels` says which pictures they take.
    """
    weights = (weight_1, bias_1, weight_2, bias_2)
    features: Tensor = _HopperLayers.apply(pictures.contiguous(), *weights)  # type: ignore[no-untyped-call]
    return features


def wide_linear(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A float32 linear layer, `(N, K)` bf16 → `(N, M)`; products and sums are float32's. M is a power of 2.

    What is not finite in torch's product is not finite here, but may be NaN instead of ±inf.
    """
    output: Tensor = _WideLinear.apply(features, weight, bias)  # type: ignore[no-untyped-call]
    return output


class _HopperLayers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, pictures: Tensor, weight_1: Tensor, bias_1: Tensor, weight_2: Tensor, bias_2: Tensor
    ) -> Tensor:
        from .digit_layers_hopper import first_layer, packed, second_layer

        # The kernels take these for float32, one after another, without looking.
        weight_1, bias_1, bias_2 = (x.float().contiguous() for x in (weight_1, bias_1, bias_2))
        pixels, codes_1 = first_layer(pictures, weight_1, bias_1)
        weight_2 = packed(weight_2)
        pooled, codes_2 = second_layer(pixels, weight_2, bias_2)
        ctx.save_for_backward(pictures, codes_1, pixels, weight_2, codes_2)
        features: Tensor = pooled.flatten(1)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from .digit_layers_hopper import first_layer_gradients, second_layer_gradients

        pictures, codes_1, pixels, weight_2, codes_2 = ctx.saved_tensors
        by_pixels, by_weight_2, by_bias_2 = second_layer_gradients(gradient.contiguous(), codes_2, pixels, weight_2)
        by_weight_1, by_bias_1 = first_layer_gradients(by_pixels, codes_1, pictures).split((800, 32))
        return None, by_weight_1.reshape(32, 1, 5, 5), by_bias_1, by_weight_2, by_bias_2


class _WideLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from .linear_triton import linear

        ctx.save_for_backward(features, weight)
        return linear(features, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from .linear_triton import linear_gradients

        return linear_gradients(gradient.contiguous(), *ctx.saved_tensors)
