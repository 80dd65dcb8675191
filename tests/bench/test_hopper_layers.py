"""The kernels of the digits' network for Hopper GPUs: on a CPU, with the GPU's instructions emulated, and on a GPU.

Operands are small whole numbers, so that every sum is exact in float32: results have to be equal to float64's, to the
bit of their rounding, and of several equal places in a pooled four the first has to be the largest, as for torch.
"""

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

import newton_losses_bench.kernels as kernels
from newton_losses.errors import ArgumentError
from newton_losses.nvrtc import Kernels, compiler
from newton_losses_bench.kernels.digit_layers_hopper import (
    BY_PIXELS,
    BY_WEIGHT,
    FIRST_SLOPES,
    FIRST_WEIGHTS,
    FORWARD,
    first_layer,
    first_layer_gradients,
    packed,
    second_layer,
    second_layer_gradients,
    strips,
)

HERE = Path(__file__).parent
FIRST_SIZES = [(1, 4, 8), (2, 28, 112), (3, 8, 56), (1, 64, 112), (2, 4, 4)]
SECOND_SIZES = [(1, 4, 16), (2, 14, 56), (3, 14, 28), (1, 10, 40), (2, 2, 2), (3, 6, 4)]
# Emulated, five seconds each.
LONG_SIZES = [(2, 14, 56), (3, 14, 28), (3, 6, 4)]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """The kernels as a library of the host."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("emulated") / "layers.so"
    command = [compiler, "-std=c++20", "-O2", "-shared", "-fPIC", "-pthread", "-w", "-I", Path(kernels.__file__).parent]
    subprocess.run([*command, HERE / "emulated_layers.cpp", "-o", library], check=True)
    return ctypes.CDLL(str(library))


def call(function, blocks, *arguments):
    function(blocks, *(ctypes.c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else x for x in arguments))


class Emulated:
    """The layers by the library of the host, with everything that is to be written full of other things before.

    `places`: how many times 16 bytes of shared memory a kernel is launched with.
    """

    def __init__(self, library, blocks):
        self.library, self.blocks = library, blocks

    def launch(self, name, blocks, places, *arguments):
        call(getattr(self.library, name), blocks, *arguments)
        assert self.library.used_by_the_last() <= 16 * places

    def first(self, pictures, weight, bias, slope):
        size, parts = pictures.shape, torch.full((self.blocks, 832), torch.nan)
        pooled, codes = torch.full_like(slope, torch.nan), torch.full((*slope.shape[:3], 4), -1, dtype=torch.int32)
        places = FIRST_WEIGHTS + strips(size[1]), FIRST_SLOPES + strips(size[1] // 2)
        self.launch("first_forward", self.blocks, places[0], pictures, weight, bias, pooled, codes, *size)
        self.launch("first_backward", self.blocks, places[1], pictures, slope, codes, parts, *size)
        result = torch.full((832,), torch.nan)
        self.launch("first_sum", 26, 64, parts, result, self.blocks)
        return [pooled, *result.split((800, 32))]

    def second(self, pixels, weight, bias, slope):
        size, weight = pixels.shape[:3], packed(weight)
        shape = (size[0], 8, slope.shape[2])
        pooled, codes = torch.full_like(slope, torch.nan), torch.full(shape, -1, dtype=torch.int32)
        self.launch("second_forward", self.blocks, FORWARD, pixels, weight, bias, pooled, codes, *size)
        by_pixels = torch.full_like(pixels, torch.nan)
        self.launch("second_by_pixels", self.blocks, BY_PIXELS, slope, codes, weight, by_pixels, *size)
        parts, bias_parts = torch.full((self.blocks, 51200), torch.nan), torch.full((self.blocks, 64), torch.nan)
        many = 2 * self.blocks
        self.launch("second_by_weight", many, BY_WEIGHT, pixels, slope, codes, parts, bias_parts, *size)
        by_weight, by_bias = torch.full((64, 32, 5, 5), torch.nan), torch.full((64,), torch.nan)
        self.launch("second_sum", 201, 0, parts, bias_parts, by_weight, by_bias, self.blocks)
        return [pooled, by_pixels, by_weight, by_bias]


class OnGpu:
    def first(self, *inputs):
        pictures, weight, bias, slope = (x.cuda() for x in inputs)
        pooled, codes = first_layer(pictures, weight, bias)
        gradients = first_layer_gradients(slope, codes, pictures).split((800, 32))
        return [x.cpu() for x in (pooled, *gradients)]

    def second(self, *inputs):
        pixels, weight, bias, slope = (x.cuda() for x in inputs)
        weight = packed(weight)
        pooled, codes = second_layer(pixels, weight, bias)
        return [x.cpu() for x in (pooled, *second_layer_gradients(slope, codes, pixels, weight))]


def whole(generator, *shape):
    return torch.randint(-2, 3, shape, generator=generator).float()


def assert_first_layer_is_exact(layers, count, height, width):
    generator = torch.Generator().manual_seed(count)
    pictures = torch.randint(0, 256, (count, height, width), generator=generator, dtype=torch.uint8)
    # No sum of whole 255th parts and such a bias is 0, where the ReLU would hang on the last bit.
    weight, bias = whole(generator, 32, 1, 5, 5), whole(generator, 32) + 0.3
    slope = whole(generator, count, height // 2, width // 2, 32).bfloat16()
    leaves = [x.double().requires_grad_() for x in (weight, bias)]
    before = functional.conv2d(pictures[:, None].double(), leaves[0], padding=2) / 255 + leaves[1][:, None, None]
    true = functional.max_pool2d(before.relu(), 2).permute(0, 2, 3, 1)
    by_weight, by_bias = torch.autograd.grad(true, leaves, slope.double())
    pooled, *gradients = layers.first(pictures, weight, bias, slope)
    # The sums are whole numbers, but their 255th parts are rounded, and then the features to bf16.
    torch.testing.assert_close(pooled.double(), true.detach(), rtol=2**-8 + 1e-6, atol=1e-5)
    torch.testing.assert_close(gradients[0].double(), by_weight.flatten(), rtol=2e-7, atol=1e-12)
    assert torch.equal(gradients[1].double(), by_bias)


def assert_second_layer_is_exact(layers, count, height, width):
    generator = torch.Generator().manual_seed(count)
    pixels, bias = whole(generator, count, height, width, 32).bfloat16(), whole(generator, 64)
    weight = whole(generator, 64, 32, 5, 5)
    slope = whole(generator, count, 64, height // 2 * (width // 2)).bfloat16()
    wanted = second_layer_in_double(pixels, weight, bias, slope)
    for found, true in zip(layers.second(pixels, weight, bias, slope), wanted, strict=True):
        assert torch.equal(found, true.to(found.dtype))


def second_layer_in_double(pixels, weight, bias, slope):
    leaves = [x.double().requires_grad_() for x in (pixels, weight, bias)]
    before = functional.conv2d(leaves[0].permute(0, 3, 1, 2), leaves[1], padding=2) + leaves[2][:, None, None]
    pooled = functional.max_pool2d(before.relu(), 2).flatten(2)
    return [pooled.detach(), *torch.autograd.grad(pooled, leaves, slope.double())]


def assert_nan_goes_where_it_goes_in_torch(layers):
    """A picture with a NaN leaves the others alone; its gradient goes to the last NaN of each four places."""
    generator = torch.Generator().manual_seed(0)
    pixels, weight, bias = whole(generator, 2, 4, 16, 32).bfloat16(), whole(generator, 64, 32, 5, 5), torch.zeros(64)
    slope = whole(generator, 2, 64, 16).bfloat16()
    pixels[1, 2, 7, 5] = torch.nan
    wanted = second_layer_in_double(pixels, weight, bias, slope)
    assert wanted[0].isnan().any()
    assert wanted[2].isnan().any()
    for found, true in zip(layers.second(pixels, weight, bias, slope), wanted, strict=True):
        torch.testing.assert_close(found, true.to(found.dtype), rtol=0, atol=0, equal_nan=True)


def assert_nan_stays_in_its_channel(layers):
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (1, 8, 16), generator=generator, dtype=torch.uint8)
    weight, bias = whole(generator, 32, 1, 5, 5), whole(generator, 32)
    slope = whole(generator, 1, 4, 8, 32).bfloat16()
    weight[3, 0, 2, 4], bias[9] = torch.nan, torch.nan
    pooled, by_weight, by_bias = layers.first(pictures, weight, bias, slope)
    is_nan = torch.arange(32) == 3
    is_nan[9] = True
    assert torch.equal(pooled.isnan(), is_nan.expand(pooled.shape))
    # The ReLU is on where its argument is NaN.
    assert torch.equal(by_bias[is_nan], slope[..., is_nan].float().sum((0, 1, 2)))
    assert by_weight.isfinite().all()


@pytest.mark.parametrize("size", FIRST_SIZES)
def test_the_first_layer(emulated, size):
    assert_first_layer_is_exact(Emulated(emulated, 1 + size[0] // 2), *size)


@pytest.mark.parametrize(
    "size", [pytest.param(size, marks=pytest.mark.slow if size in LONG_SIZES else ()) for size in SECOND_SIZES]
)
def test_the_second_layer(emulated, size):
    assert_second_layer_is_exact(Emulated(emulated, 1 + size[0] // 2), *size)


def test_nan(emulated):
    assert_nan_stays_in_its_channel(Emulated(emulated, 1))
    assert_nan_goes_where_it_goes_in_torch(Emulated(emulated, 1))


@pytest.fixture
def without_a_driver():
    """Kernels on a GPU that is not here: whatever asks the driver fails."""
    found = object.__new__(Kernels)
    found.device = torch.device("cuda", 0)
    return found


def test_a_compiler_that_cannot_be_loaded_is_none(tmp_path, monkeypatch):
    """Other kernels then do the work; an error would stop the training."""
    library = tmp_path / "cu13" / "lib" / "libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    library.write_text("no library")
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: found)
        patch.setattr(torch.version, "cuda", "13.0")
        assert compiler.__wrapped__() is None


def test_no_block_is_not_launched(without_a_driver):
    without_a_driver.launch("first_layer_forward", 0, 128, 0, 0, 28, 112)


def test_a_tensor_of_another_device_is_refused(without_a_driver):
    with pytest.raises(ArgumentError, match="on one device, not cuda:0 and cpu"):
        without_a_driver.launch("first_layer_forward", 1, 128, 0, torch.zeros(1))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [*FIRST_SIZES, (600, 28, 112)])
def test_the_first_layer_on_a_gpu(size):
    assert_first_layer_is_exact(OnGpu(), *size)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [*SECOND_SIZES, (133, 14, 56), (300, 14, 56)])
def test_the_second_layer_on_a_gpu(size):
    assert_second_layer_is_exact(OnGpu(), *size)


@pytest.mark.gpu
def test_nan_on_a_gpu():
    assert_nan_stays_in_its_channel(OnGpu())
    assert_nan_goes_where_it_goes_in_torch(OnGpu())


@pytest.mark.gpu
def test_the_layers_are_chosen_on_a_hopper_gpu_and_can_be_captured_and_compiled():
    from newton_losses_bench.kernels import digit_features, has_digit_kernels

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("not a Hopper GPU")
    shapes = ((32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,))
    weights = [0.1 * torch.randn(shape, device="cuda") for shape in shapes]
    pictures = torch.randint(0, 256, (7, 28, 112), dtype=torch.uint8, device="cuda")
    assert has_digit_kernels((28, 112), len(pictures), pictures.device)

    def step(function):
        # Leaves of the stream that it runs on: gradients go back to that of their leaves, which is not captured.
        leaves = [weight.detach().requires_grad_() for weight in weights]
        features = function(pictures, *leaves)
        return [features, *torch.autograd.grad(features.float().square().sum(), leaves)]

    wanted = step(digit_features)
    found = step(torch.compile(digit_features, fullgraph=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(digit_features)
    graph.replay()
    for once, again, replayed in zip(wanted, found, captured, strict=True):
        assert torch.equal(once, again)
        assert torch.equal(once, replayed)


def inputs_of_features(count):
    """Pictures and weights of the network on the GPU, if it is one that has the kernels."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("not a Hopper GPU")
    generator = torch.Generator().manual_seed(count)
    pictures = torch.randint(0, 256, (count, 8, 16), generator=generator, dtype=torch.uint8).cuda()
    weights = [0.1 * torch.randn(shape, generator=generator) for shape in ((32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,))]
    return pictures, [weight.cuda().requires_grad_() for weight in weights]


def features_and_gradients(pictures, weights):
    features = kernels.digit_features(pictures, *weights)
    return [features, *torch.autograd.grad(features.float().square().sum(), weights)]


@pytest.mark.gpu
def test_no_picture_has_no_features_and_gradients_of_zero():
    pictures, weights = inputs_of_features(0)
    features, *gradients = features_and_gradients(pictures, weights)
    assert features.shape == (0, 64 * 2 * 4)
    for gradient, weight in zip(gradients, weights, strict=True):
        assert torch.equal(gradient, torch.zeros_like(weight))


@pytest.mark.gpu
def test_weights_may_be_float64_and_pictures_begin_anywhere():
    pictures, weights = inputs_of_features(2)
    wanted = features_and_gradients(pictures, weights)
    buffer = torch.zeros(pictures.numel() + 1, dtype=torch.uint8, device="cuda")
    at_odd_address = buffer[1:].view(pictures.shape).copy_(pictures)
    wide = [weight.detach().double().requires_grad_() for weight in weights]
    for found, true in zip(features_and_gradients(at_odd_address, wide), wanted, strict=True):
        assert torch.equal(found, true.to(found.dtype))
