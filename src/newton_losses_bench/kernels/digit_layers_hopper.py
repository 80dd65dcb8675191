"""The two layers of `DigitCNN` on a Hopper GPU. The kernels are in the files named after the layers.

Their shared memory is counted here once more, in slabs of 16 bytes: the kernels lay it out, a launch has to ask for it.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from newton_losses.nvrtc import Kernels, compiler

FILES = ("hopper.cu", "pooling.cu", "first_layer.cu", "second_layer.cu", "second_layer_backward.cu")
FIRST, SECOND, TAPS = 32, 64, 25
CHUNK = 8  # channels whose codes are in one word
FIRST_WEIGHTS = 6 * 4 * FIRST
FIRST_SLOPES = 2 * 16 * 65
WEIGHTS = TAPS * 4 * (SECOND + 1)
FORWARD = WEIGHTS + 2 * 4 * (12 * 64 + 9)
# The windows of the last row end 8 places beyond the last slab.
BY_PIXELS = WEIGHTS + 2 * 8 * (8 * 60 + 1) + 8
BY_WEIGHT = 2 * (10 * 4 * (64 + 5) + 6 * 8 * (64 + 1))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_hopper(device: torch.device) -> bool:
    """Whether a device is a Hopper GPU for which there is a compiler, and the kernels, which the wheel leaves out."""
    has_kernels = torch.version.hip is None and Path(__file__).with_name(FILES[0]).exists()
    return has_kernels and torch.cuda.get_device_capability(device) == (9, 0) and compiler() is not None


@cache
def _kernels(device: int) -> Kernels:
    return Kernels(device, *(Path(__file__).with_name(name) for name in FILES), architecture="sm_90a")


@torch.library.custom_op("newton_losses::first_layer", mutates_args=(), device_types="cuda")
def first_layer(pictures: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures `(N, H, W)` uint8 to pooled features `(N, H/2, W/2, 32)` bf16 and their codes `(N, H/2, W/2, 4)`.

    H and W are multiples of 4, W is at most 112.
    """
    count, height, width = pictures.shape
    pooled, codes = _first_results(pictures)
    with torch.cuda.device_of(pictures):  # type: ignore[no-untyped-call]
        kernels = _kernels(pictures.device.index)
        shared = 16 * (FIRST_WEIGHTS + strips(height))
        blocks = min(count, 4 * kernels.multiprocessors)
        kernels.launch(
            "first_layer_forward", blocks, 128, shared,
            _at_even_address(pictures), weight, bias, pooled, codes, count, height, width,
        )  # fmt: skip
    return pooled, codes


@first_layer.register_fake
def _first_results(pictures: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    count, height, width = pictures.shape
    size, device = (count, height // 2, width // 2), pictures.device
    pooled = torch.empty((*size, FIRST), dtype=torch.bfloat16, device=device)
    return pooled, torch.empty((*size, FIRST // CHUNK), dtype=torch.int32, device=device)


@torch.library.custom_op("newton_losses::first_layer_gradients", mutates_args=(), device_types="cuda")
def first_layer_gradients(gradient: Tensor, codes: Tensor, pictures: Tensor) -> Tensor:
    """The gradients of the weight `(32, 1, 5, 5)` and behind it the bias `(32,)`, float32, in one row."""
    count, height, width = pictures.shape
    result: Tensor = _first_gradients(gradient, codes, pictures)
    with torch.cuda.device_of(pictures):  # type: ignore[no-untyped-call]
        kernels = _kernels(pictures.device.index)
        # A job is half a picture.
        shared = 16 * (FIRST_SLOPES + strips(height // 2))
        blocks = min(2 * count, 4 * kernels.multiprocessors)
        parts = result.new_empty((blocks, len(result)))
        kernels.launch(
            "first_layer_backward", blocks, 128, shared,
            _at_even_address(pictures), gradient, codes, parts, count, height, width,
        )  # fmt: skip
        kernels.launch("first_layer_sum", len(result) // 32, 256, 1024, parts, result, blocks)
    return result


@first_layer_gradients.register_fake
def _first_gradients(gradient: Tensor, codes: Tensor, pictures: Tensor) -> Tensor:
    return torch.empty(FIRST * (TAPS + 1), dtype=torch.float32, device=pictures.device)


@torch.library.custom_op("newton_losses::second_layer", mutates_args=(), device_types="cuda")
def second_layer(pixels: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels `(N, H, W, 32)` bf16 to pooled features `(N, 64, H/2·W/2)` bf16 and their codes `(N, 8, H/2·W/2)`.

    The weight is `packed`. H and W are even, W is at most 56.
    """
    count, height, width, _ = pixels.shape
    pooled, codes = _second_results(pixels)
    with torch.cuda.device_of(pixels):  # type: ignore[no-untyped-call]
        kernels = _kernels(pixels.device.index)
        kernels.launch(
            "second_layer_forward", _blocks(kernels, count, height, 8), 256, 16 * FORWARD,
            pixels, weight, bias, pooled, codes, count, height, width,
        )  # fmt: skip
    return pooled, codes


@second_layer.register_fake
def _second_results(pixels: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    count, height, width, _ = pixels.shape
    places = height // 2 * (width // 2)
    codes = torch.empty((count, SECOND // CHUNK, places), dtype=torch.int32, device=pixels.device)
    return pixels.new_empty((count, SECOND, places)), codes


@torch.library.custom_op("newton_losses::second_layer_gradients", mutates_args=(), device_types="cuda")
def second_layer_gradients(
    gradient: Tensor, codes: Tensor, pixels: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the pixels, bf16, of the weight `(64, 32, 5, 5)` and of the bias, both float32."""
    count, height, width, _ = pixels.shape
    by_pixels, by_weight, by_bias = _second_gradients(gradient, codes, pixels, weight)
    with torch.cuda.device_of(pixels):  # type: ignore[no-untyped-call]
        kernels = _kernels(pixels.device.index)
        kernels.launch(
            "second_layer_by_pixels", _blocks(kernels, count, height, 4), 768, 16 * BY_PIXELS,
            gradient, codes, weight, by_pixels, count, height, width,
        )  # fmt: skip
        # Two blocks share a part.
        number = min(kernels.multiprocessors // 2, _blocks(kernels, count, height, 6))
        parts, bias_parts = by_weight.new_empty((number, by_weight.numel())), by_weight.new_empty((number, SECOND))
        kernels.launch(
            "second_layer_by_weight", 2 * number, 512, 16 * BY_WEIGHT,
            pixels, gradient, codes, parts, bias_parts, count, height, width,
        )  # fmt: skip
        blocks = -(-(by_weight.numel() + SECOND) // 256)
        kernels.launch("second_layer_sum", blocks, 256, 0, parts, bias_parts, by_weight, by_bias, number)
    return by_pixels, by_weight, by_bias


@second_layer_gradients.register_fake
def _second_gradients(gradient: Tensor, codes: Tensor, pixels: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    by_weight = torch.empty((SECOND, FIRST, 5, 5), dtype=torch.float32, device=pixels.device)
    return torch.empty_like(pixels), by_weight, by_weight.new_empty(SECOND)


def strips(height: int) -> int:
    """The places of `height` rows with a margin of two above and below: 64 per row, and one more."""
    return (height + 4) * 65


def _at_even_address(pictures: Tensor) -> Tensor:
    """The kernels read two pixels at once; a part of a larger buffer can begin anywhere."""
    return pictures if pictures.data_ptr() % 2 == 0 else pictures.clone()


def _blocks(kernels: Kernels, count: int, height: int, rows: int) -> int:
    """One block of threads per multiprocessor, but no more than there are jobs of `rows` rows."""
    return min(kernels.multiprocessors, count * -(-height // rows))


def packed(weight: Tensor) -> Tensor:
    """`(64, 32, 5, 5)` to bf16 in the kernels' order: tap, by columns; eight inputs; output channel; input channel."""
    order = weight.detach().reshape(SECOND, FIRST // 8, 8, 5, 5).permute(4, 3, 1, 0, 2)
    return torch.empty(order.shape, dtype=torch.bfloat16, device=weight.device).copy_(order)
