"""The second layer of the digits' network: this project's kernels against the library's convolutions and a pooling.

    PYTHONPATH=src python benchmarks/second_layer.py                # 500 pictures, n = 5
    PYTHONPATH=src python benchmarks/second_layer.py --pictures 1000

Needs a Hopper GPU. Times are those of the kernels, by torch's profiler, both arms in the same run; errors are relative
(in the 2-norm), against float64 with the same operands.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from newton_losses.bench.kernels._digit_triton import pool, pool_gradients
from newton_losses.bench.kernels._second_layer import packed, second_layer, second_layer_gradients

HEIGHT, WIDTH, IN, OUT = 14, 56, 32, 64
REPEATS = 20


def kernel_times(function: Callable[[], object]) -> dict[str, float]:
    """Microseconds a call of every kernel."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPEATS):
            function()
        torch.cuda.synchronize()
    return {kernel.key: kernel.self_device_time_total / REPEATS for kernel in profiler.key_averages()}


def library(pixels: Tensor, weight: Tensor, bias: Tensor, slope: Tensor) -> list[Tensor]:
    """Convolution, bias, ReLU, pooling by the library and the pooling's kernels: features and the three gradients."""
    first, kernel = pixels.permute(0, 3, 1, 2), weight.to(torch.bfloat16)
    second = functional.conv2d(first, kernel, padding=2)
    pooled, codes = pool(second.permute(0, 2, 3, 1).contiguous(), bias)
    before, by_bias = pool_gradients(slope.flatten(1), codes, HEIGHT, WIDTH)
    by_pixels, by_weight, _ = torch.ops.aten.convolution_backward(
        before.permute(0, 3, 1, 2), first, kernel, None, [1, 1], [2, 2], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return [pooled, by_pixels.permute(0, 2, 3, 1), by_weight, by_bias]


def own(pixels: Tensor, weight: Tensor, bias: Tensor, slope: Tensor) -> list[Tensor]:
    kernel = packed(weight)
    pooled, codes = second_layer(pixels, kernel, bias)
    return [pooled, *second_layer_gradients(slope, codes, pixels, kernel)]


def exact(pixels: Tensor, weight: Tensor, bias: Tensor, slope: Tensor) -> list[Tensor]:
    leaves = [pixels.double(), weight.bfloat16().double(), bias.double()]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    second = functional.conv2d(leaves[0].permute(0, 3, 1, 2), leaves[1], padding=2)
    pooled = (functional.max_pool2d(second, 2) + leaves[2][:, None, None]).relu().flatten(1)
    return [pooled, *torch.autograd.grad(pooled, leaves, slope.flatten(1).double())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=500)
    arguments = parser.parse_args()
    count = arguments.pictures
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    pixels = normal(count, HEIGHT, WIDTH, IN).relu().bfloat16()
    weight, bias = 0.05 * normal(OUT, IN, 5, 5), 0.1 * normal(OUT)
    slope = normal(count, OUT, HEIGHT // 2 * (WIDTH // 2)).bfloat16()
    inputs = (pixels, weight, bias, slope)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {count} pictures of {HEIGHT}×{WIDTH}")
    few = (pixels[:20], weight, bias, slope[:20].contiguous())
    names = ("features", "by pixels", "by weight", "by bias")
    for arm in (library, own):
        found = zip(names, arm(*few), exact(*few), strict=True)
        errors = [
            f"{name} {(one.double().flatten() - true.flatten()).norm() / true.norm():.1e}" for name, one, true in found
        ]
        print(f"{arm.__name__:8} errors: {', '.join(errors)}")
    operations = 2 * count * HEIGHT * WIDTH * 25 * IN * OUT
    for arm in (library, own):
        times = kernel_times(lambda arm=arm: arm(*inputs))  # type: ignore[misc]
        print(f"{arm.__name__:8} {sum(times.values()):8.1f} µs")
        for name, time in sorted(times.items(), key=lambda item: -item[1])[:8]:
            print(f"    {time:8.1f} µs {operations / time / 1e6:6.0f} TFLOP/s if a convolution  {name[:80]}")


if __name__ == "__main__":
    main()
