"""Both layers of the digits' network, forward and backward: the kernels for Hopper against torch's own.

    PYTHONPATH=src python benchmarks/digit_layers.py                # 500 pictures, n = 5
    PYTHONPATH=src python benchmarks/digit_layers.py --pictures 1000

Needs a Hopper GPU. Times are those of the kernels, by torch's profiler, both arms in the same run. Errors are relative
(in the 2-norm), against float64 with the operands of the second layer rounded as the kernels round them: where two of
four pooled places are nearly equal, the other arm's rounding before the pooling sends a gradient to the wrong one.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from newton_losses_bench.kernels import digit_features

HEIGHT, WIDTH = 28, 112
REPEATS = 20
NAMES = ("features", "weight 1", "bias 1", "weight 2", "bias 2")


def kernel_times(function: Callable[[], object]) -> dict[str, float]:
    """Microseconds a call of every kernel."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(REPEATS):
            function()
        torch.cuda.synchronize()
    return {kernel.key: kernel.self_device_time_total / REPEATS for kernel in profiler.key_averages()}


Layers = Callable[..., Tensor]


def torchs_features(pictures: Tensor, weight_1: Tensor, bias_1: Tensor, weight_2: Tensor, bias_2: Tensor) -> Tensor:
    """What `DigitCNN` does in bf16 without the kernels."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        first = functional.conv2d(pictures[:, None].float() / 255, weight_1, bias_1, padding=2)
        second = functional.conv2d(functional.max_pool2d(first.relu(), 2), weight_2, bias_2, padding=2)
        return functional.max_pool2d(second.relu(), 2).flatten(1)


def layers(features_of: Layers, pictures: Tensor, weights: list[Tensor], slope: Tensor) -> list[Tensor]:
    """Features and the gradients of the weights."""
    features = features_of(pictures, *weights)
    return [features, *torch.autograd.grad(features, weights, slope)]


def exact(pictures: Tensor, weights: list[Tensor], slope: Tensor) -> list[Tensor]:
    def rounded(x: Tensor) -> Tensor:
        return x + (x.bfloat16().double() - x).detach()

    leaves = [weight.detach().double().requires_grad_() for weight in weights]
    first = functional.conv2d(pictures[:, None].double() / 255, rounded(leaves[0]), leaves[1], padding=2)
    first = rounded(functional.max_pool2d(first.relu(), 2))
    first.register_hook(lambda gradient: gradient.bfloat16().double())
    second = functional.conv2d(first, rounded(leaves[2]), leaves[3], padding=2)
    features = functional.max_pool2d(second.relu(), 2).flatten(1)
    return [features, *torch.autograd.grad(features, leaves, slope.double())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=500)
    count = parser.parse_args().pictures
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        parser.error("there is no Hopper GPU here, and these kernels are for no other.")
    generator = torch.Generator("cuda").manual_seed(0)
    pictures = torch.randint(0, 256, (count, HEIGHT, WIDTH), generator=generator, device="cuda", dtype=torch.uint8)
    shapes = ((32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,))
    weights = [0.1 * torch.randn(shape, generator=generator, device="cuda") for shape in shapes]
    weights = [weight.requires_grad_() for weight in weights]
    slope = torch.randn(count, 64 * 7 * 28, generator=generator, device="cuda").bfloat16()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {count} pictures of {HEIGHT}×{WIDTH}")
    few = (pictures[:20], weights, slope[:20])
    true = exact(*few)
    arms = {"torch": partial(layers, torchs_features), "hopper": partial(layers, digit_features)}
    for name, arm in arms.items():
        found = zip(NAMES, arm(*few), true, strict=True)
        errors = [f"{what} {(one.double() - right).norm() / right.norm():.1e}" for what, one, right in found]
        print(f"{name}: errors: {', '.join(errors)}")
    for name, arm in arms.items():
        times = kernel_times(partial(arm, pictures, weights, slope))
        print(f"{name}: {sum(times.values()):8.1f} µs")
        for kernel, time in sorted(times.items(), key=lambda item: -item[1])[:12]:
            print(f"    {time:8.1f} µs  {kernel[:90]}")


if __name__ == "__main__":
    main()
