"""The second layer of `DigitCNN` on a Hopper GPU. The kernels are in second_layer.cu, their sizes are repeated here."""

from functools import cache

import torch
from torch import Tensor

from ._cuda_c import Kernels

IN, OUT, TAPS = 32, 64, 25
WEIGHT_BYTES = TAPS * 4 * (OUT + 1) * 16
# Two slabs of pixels with their margins; two of slopes; two of both.
FORWARD_BYTES = WEIGHT_BYTES + 2 * 4 * (12 * 64 + 9) * 16
BY_PIXELS_BYTES = WEIGHT_BYTES + 2 * 8 * (8 * 60 + 1) * 16 + 128
BY_WEIGHT_BYTES = 2 * (10 * 4 * (64 + 5) + 6 * 8 * (64 + 1)) * 16


@cache
def _kernels(device: int) -> Kernels:
    return Kernels(device, "hopper.cu", "second_layer.cu")


def _blocks(kernels: Kernels, count: int, height: int, rows: int) -> int:
    """One block of threads a multiprocessor, but none without a job."""
    return min(kernels.multiprocessors, count * -(-height // rows))


@torch.library.custom_op("newton_losses::second_layer", mutates_args=(), device_types="cuda")
def second_layer(pixels: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels `(N, H, W, 32)` bf16 to pooled features `(N, 64, H/2·W/2)` bf16 and their codes, uint8.

    The weight is `packed`. H and W are even, W is at most 56.
    """
    count, height, width, _ = pixels.shape
    pooled, codes = _results(pixels)
    with torch.cuda.device_of(pixels):  # type: ignore[no-untyped-call]
        kernels = _kernels(pixels.device.index)
        blocks = _blocks(kernels, count, height, 8)
        kernels.launch(
            "second_layer_forward", blocks, 256, FORWARD_BYTES,
            pixels, weight, bias, pooled, codes, count, height, width,
        )  # fmt: skip
    return pooled, codes


@second_layer.register_fake
def _results(pixels: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    count, height, width, _ = pixels.shape
    pooled = pixels.new_empty((count, OUT, height // 2 * (width // 2)))
    return pooled, torch.empty_like(pooled, dtype=torch.uint8)


@torch.library.custom_op("newton_losses::second_layer_gradients", mutates_args=(), device_types="cuda")
def second_layer_gradients(
    gradient: Tensor, codes: Tensor, pixels: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the pixels, bf16, of the weight `(64, 32, 5, 5)` and of the bias, both float32."""
    count, height, width, _ = pixels.shape
    by_pixels, by_weight, by_bias = _gradients(gradient, codes, pixels, weight)
    with torch.cuda.device_of(pixels):  # type: ignore[no-untyped-call]
        kernels = _kernels(pixels.device.index)
        kernels.launch(
            "second_layer_by_pixels", _blocks(kernels, count, height, 4), 384, BY_PIXELS_BYTES,
            gradient, codes, weight, by_pixels, count, height, width,
        )  # fmt: skip
        # Two blocks share a part.
        number = min(kernels.multiprocessors // 2, _blocks(kernels, count, height, 6))
        parts, bias_parts = by_weight.new_empty((number, TAPS * OUT * IN)), by_weight.new_empty((number, OUT))
        kernels.launch(
            "second_layer_by_weight", 2 * number, 384, BY_WEIGHT_BYTES,
            pixels, gradient, codes, parts, bias_parts, count, height, width,
        )  # fmt: skip
        blocks = -(-(TAPS * OUT * IN + OUT) // 256)
        kernels.launch("second_layer_sum", blocks, 256, 0, parts, bias_parts, by_weight, by_bias, number)
    return by_pixels, by_weight, by_bias


@second_layer_gradients.register_fake
def _gradients(gradient: Tensor, codes: Tensor, pixels: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    by_weight = torch.empty((OUT, IN, 5, 5), dtype=torch.float32, device=pixels.device)
    return torch.empty_like(pixels), by_weight, by_weight.new_empty(OUT)


def packed(weight: Tensor) -> Tensor:
    """`(64, 32, 5, 5)` to bf16 in the kernels' order: tap, by columns; eight input channels; output channel; channel."""
    order = weight.detach().reshape(OUT, IN // 8, 8, 5, 5).permute(4, 3, 1, 0, 2)
    return torch.empty(order.shape, dtype=torch.bfloat16, device=weight.device).copy_(order)
