"""The kernels of the second layer against float64: on a CPU, with Hopper's instructions emulated, and on a GPU."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import newton_losses.bench.kernels as kernels

HERE = Path(__file__).parent
SIZES = [(1, 4, 16), (2, 14, 56), (3, 14, 28), (1, 10, 40), (2, 2, 2)]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """The kernels as a library of the host."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("emulated") / "second_layer.so"
    command = [compiler, "-std=c++20", "-O2", "-shared", "-fPIC", "-pthread", "-w", "-I", Path(kernels.__file__).parent]
    subprocess.run([*command, HERE / "emulated_second_layer.cpp", "-o", library], check=True)
    return ctypes.CDLL(str(library))


def random_layer(count, height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(count, height, width, 32, generator=generator).bfloat16()
    weight, bias = 0.05 * torch.randn(64, 32, 5, 5, generator=generator), 0.3 * torch.randn(64, generator=generator)
    slope = torch.randn(count, 64, height // 2 * (width // 2), generator=generator).bfloat16()
    return pixels, weight, bias, slope


def exact(pixels, weight, bias, slope):
    """Features and gradients in float64 of what bf16 makes of the operands."""
    leaves = [x.double().requires_grad_() for x in (pixels, weight.bfloat16(), bias)]
    second = functional.conv2d(leaves[0].permute(0, 3, 1, 2), leaves[1], padding=2)
    pooled = functional.max_pool2d((second + leaves[2][:, None, None]).relu(), 2).flatten(2)
    return [pooled.detach(), *torch.autograd.grad(pooled, leaves, slope.double())]


def call(function, blocks, *arguments):
    function(blocks, *(ctypes.c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else x for x in arguments))


def by_emulation(library, blocks, pixels, weight, bias, slope):
    from newton_losses.bench.kernels._second_layer import packed

    size = pixels.shape[:3]
    weight = packed(weight)
    pooled, codes = torch.full_like(slope, torch.nan), torch.full(slope.shape, 9, dtype=torch.uint8)
    call(library.forward, blocks, pixels, weight, bias, pooled, codes, *size)
    by_pixels = torch.full_like(pixels, torch.nan)
    call(library.by_pixels, blocks, slope, codes, weight, by_pixels, *size)
    parts, bias_parts = torch.full((blocks, 25 * 64 * 32), torch.nan), torch.full((blocks, 64), torch.nan)
    call(library.by_weight, 2 * blocks, pixels, slope, codes, parts, bias_parts, *size)
    by_weight, by_bias = torch.full((64, 32, 5, 5), torch.nan), torch.full((64,), torch.nan)
    call(library.sum_parts, 201, parts, bias_parts, by_weight, by_bias, blocks)
    return [pooled, by_pixels, by_weight, by_bias]


def by_gpu(*inputs):
    from newton_losses.bench.kernels._second_layer import packed, second_layer, second_layer_gradients

    pixels, weight, bias, slope = (x.cuda() for x in inputs)
    weight = packed(weight)
    pooled, codes = second_layer(pixels, weight, bias)
    return [x.cpu() for x in (pooled, *second_layer_gradients(slope, codes, pixels, weight))]


def assert_right(found, wanted):
    """bf16 results to their rounding, float32 ones to that of sums of many terms."""
    for one, true in zip(found, wanted, strict=True):
        bound = 2**-8 if one.dtype == torch.bfloat16 else 1e-5
        assert (one.double() - true).norm() <= bound * true.norm()


def assert_nan_goes_where_it_goes_in_torch(compute):
    """A picture with a NaN leaves the others alone; its gradient goes to the last NaN of each four places."""
    pixels, weight, bias, slope = random_layer(2, 4, 16)
    pixels[1, 2, 7, 5] = torch.nan
    pooled, by_pixels, by_weight, by_bias = compute(pixels, weight, bias, slope)
    wanted = exact(pixels, weight, bias, slope)
    assert torch.equal(pooled.isnan(), wanted[0].isnan())
    assert pooled.isnan().any()
    assert_right([by_pixels, by_bias], [wanted[1], wanted[3]])
    assert torch.equal(by_weight.isnan(), wanted[2].isnan())
    assert by_weight[:, 5].isnan().any()


@pytest.mark.parametrize("size", SIZES)
def test_features_and_gradients_are_those_of_float64(emulated, size):
    inputs = random_layer(*size)
    assert_right(by_emulation(emulated, 1 + size[0] // 2, *inputs), exact(*inputs))


def test_nan(emulated):
    assert_nan_goes_where_it_goes_in_torch(lambda *inputs: by_emulation(emulated, 1, *inputs))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [*SIZES, (133, 14, 56), (500, 14, 56)])
def test_features_and_gradients_on_a_gpu_are_those_of_float64(size):
    inputs = random_layer(*size)
    assert_right(by_gpu(*inputs), exact(*inputs))


@pytest.mark.gpu
def test_nan_on_a_gpu():
    assert_nan_goes_where_it_goes_in_torch(by_gpu)


@pytest.mark.gpu
def test_the_kernels_are_chosen_on_a_hopper_gpu_and_can_be_captured_and_compiled():
    from newton_losses.bench.kernels import digit_features
    from newton_losses.bench.kernels._digits import has_second_layer

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("not a Hopper GPU")
    shapes = ((32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,))
    weights = [(0.1 * torch.randn(shape, device="cuda")).requires_grad_() for shape in shapes]
    assert has_second_layer(56, weights[2], torch.device("cuda", 0))
    pictures = torch.randint(0, 256, (7, 28, 112), dtype=torch.uint8, device="cuda")

    def step():
        features = digit_features(pictures, *weights)
        return [features, *torch.autograd.grad(features.float().square().sum(), weights)]

    wanted = step()
    for one, true in zip(torch.compile(step)(), wanted, strict=True):
        torch.testing.assert_close(one, true, rtol=2e-3, atol=1e-3 * true.abs().max().item())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    for one, true in zip(captured, wanted, strict=True):
        assert torch.equal(one, true)
