"""The large part of `DigitCNN` in bf16, straight from bytes, with its gradients.

Here is what is differentiated, and which kernels do it. Those of both convolutions for Hopper GPUs are called from
`digit_layers_hopper.py`; all others are in the modules named after triton.
"""

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


@cache
def has_triton() -> bool:
    """Whether triton can be used here: it comes with torch, and before torch 2.10 it lacks parts of the language."""
    is_recent = torch.__version__ >= "2.10" and torch.version.hip is None
    return is_recent and importlib.util.find_spec("triton") is not None


def has_digit_kernels(image_size: tuple[int, int], count: int) -> bool:
    """Whether `digit_features` can do so many pictures of this size here, given a CUDA device.

    >>> has_digit_kernels((27, 27), 1), has_digit_kernels((28, 112), 50_000)
    (False, False)
    """
    height, width = image_size
    # The kernels count the numbers behind the second convolution, 64 a place, in 32 bits.
    fits = count * (height // 2) * (width // 2) * 64 < 2**31
    return height % 4 == 0 and width % 4 == 0 and fits and has_triton()


def digit_features(pictures: Tensor, weight_1: Tensor, bias_1: Tensor, weight_2: Tensor, bias_2: Tensor) -> Tensor:
    """Two times convolution (5×5, padded), ReLU and 2×2 pooling: `(N, H, W)` uint8 → `(N, C·H/4·W/4)` bf16.

    Pixels count from 0 to 1. Operands are rounded to bf16, sums are float32. H and W are multiples of 4, the
    numbers of channels powers of 2.
    """
    if has_hopper_layers(pictures, weight_1, weight_2):
        weights = (weight_1, bias_1, weight_2, bias_2)
        features: Tensor = _HopperLayers.apply(pictures.contiguous(), *weights)  # type: ignore[no-untyped-call]
    else:
        padded = functional.pad(pictures, (2, 2, 2, 2))
        first = _FirstLayer.apply(padded, weight_1, bias_1).permute(0, 3, 1, 2)  # type: ignore[no-untyped-call]
        second = functional.conv2d(first, weight_2.to(torch.bfloat16), padding=2)
        features = _Pool.apply(second.permute(0, 2, 3, 1), bias_2)  # type: ignore[no-untyped-call]
    return features


def has_hopper_layers(pictures: Tensor, weight_1: Tensor, weight_2: Tensor) -> bool:
    """Whether both layers have kernels of their own for these pictures: on a Hopper GPU, for the network's channels."""
    height, width = pictures.shape[-2:]
    fit = height <= 64 and width <= 112 and weight_1.shape == (32, 1, 5, 5) and weight_2.shape == (64, 32, 5, 5)
    if not fit:
        return False
    from .nvrtc import is_hopper  # which imports torch's compiler

    hopper: bool = is_hopper(pictures.device)
    return hopper


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


class _FirstLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from .digit_layers_triton import first_layer

        pooled, codes = first_layer(padded, weight.contiguous(), bias)
        ctx.save_for_backward(padded, codes)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        from .digit_layers_triton import first_layer_gradients

        padded, codes = ctx.saved_tensors
        return None, *first_layer_gradients(padded, gradient.contiguous(), codes)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, bias: Tensor) -> Tensor:
        from .digit_layers_triton import pool

        pooled, codes = pool(features.contiguous(), bias)
        ctx.save_for_backward(codes)
        ctx.size = features.shape[1:3]
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        from .digit_layers_triton import pool_gradients

        (codes,) = ctx.saved_tensors
        return pool_gradients(gradient.contiguous(), codes, *ctx.size)


class _WideLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from .linear_triton import linear

        ctx.save_for_backward(features, weight)
        return linear(features, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from .digit_layers_triton import add_rows
        from .linear_triton import linear_gradients

        gradient = gradient.contiguous()
        return *linear_gradients(gradient, *ctx.saved_tensors), add_rows(gradient)
