"""The kernels of the digits' network against the same network in float64, and against torch's own bf16."""

import pytest
import torch
from torch.nn import functional

from newton_losses.errors import ArgumentError
from newton_losses_bench.data import LabeledImages, MultiDigit
from newton_losses_bench.kernels import digit_features, make_adam, wide_linear
from newton_losses_bench.models import DigitCNN


def rounded(x):
    """To bf16, with the gradient going through as it is."""
    return x + (x.to(torch.bfloat16).to(x.dtype) - x).detach()


def features_by_bf16_operands(pixels, weight_1, bias_1, weight_2, bias_2):
    """The layers in the precision of the inputs, but every operand that the kernels hold in bf16 rounded to it.

    Beside the features, which of them hang on a rounding.
    """
    first = functional.conv2d(pixels, rounded(weight_1), bias_1, padding=2)
    first = rounded(functional.max_pool2d(first.relu(), 2))
    first.register_hook(lambda gradient: gradient.to(torch.bfloat16).to(gradient.dtype))
    second = functional.conv2d(first, rounded(weight_2), padding=2)
    pooled = functional.max_pool2d(second, 2) + bias_2[:, None, None]
    return rounded(pooled.relu()).flatten(1), hangs_on_rounding(second.detach(), bias_2.detach()).flatten(1)


def two_largest(before):
    """The largest and the next of each four places that are pooled, `(N, C, H/2, W/2)` both."""
    fours = before.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).movedim(-3, -2).flatten(-2)
    return fours.topk(2).values.unbind(-1)


def hangs_on_rounding(before, bias):
    """Features whose gradient would go to another place, or none, after two roundings to bf16 and as much again."""
    largest, other = two_largest(before)
    margin = 2**-6 * (largest.abs() + before.square().mean().sqrt())
    return (largest - other < margin) | ((largest + bias[:, None, None]).abs() < margin)


def network(size):
    """Weights and biases of both layers in float64, those of the first layer whole 1024th parts, which bf16 holds."""
    parameters = [p.detach().double() for name, p in DigitCNN(size).named_parameters() if "convolutions" in name]
    parameters[0] = (1024 * parameters[0]).round() / 1024
    return [p.cuda() for p in parameters]


def pictures_without_ties(count, size, weight, bias, generator):
    """Random bytes for which no pool of the first layer hangs on a rounding.

    Sums of bytes and whole 1024th parts are exact in float32, in any order. So only equal ones can be taken for one
    another, and the ReLU of a sum that the bias all but cancels. Half of the pictures have none; the others are drawn
    again.
    """
    pictures = torch.zeros((count, *size), dtype=torch.uint8)
    missing = torch.ones(count, dtype=torch.bool)
    for _ in range(100):
        drawn = torch.randint(0, 256, (int(missing.sum()), *size), generator=generator, dtype=torch.uint8)
        pictures[missing] = drawn
        sums = functional.conv2d(drawn[:, None].double().to(weight), 1024 * weight, padding=2).round()
        largest, other = two_largest(sums)
        height = largest / 1024 / 255 + bias[:, None, None]
        unclear = (height.abs() < 1e-5) | ((height > 0) & (largest == other))
        missing[missing.clone()] = unclear.flatten(1).any(1).cpu()
        if not missing.any():
            return pictures.to(weight.device)
    raise AssertionError("every picture has a tie")


def difference(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).detach().item()


@pytest.fixture
def hopper():
    """The convolutions have kernels on no other GPU."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("not a Hopper GPU")


@pytest.fixture
def fresh():
    """New inputs every time: a seed that nobody chose. It is in the message of a failure."""
    seed = int(torch.seed() % 2**31)
    print("seed", seed)
    return torch.Generator().manual_seed(seed)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("count", "size"), [(7, (28, 112)), (500, (28, 112)), (1, (8, 32)), (33, (28, 56))])
def test_features_and_gradients_differ_from_float64_by_the_rounding_of_operands_alone(count, size, fresh):
    """In one draw: no gradient goes back where a sum that is rounded the other way could send it elsewhere."""
    weights = network(size)
    pictures = pictures_without_ties(count, size, *weights[:2], fresh)
    weights = [w.requires_grad_() for w in weights]
    wanted, unclear = features_by_bf16_operands(pictures[:, None].double() / 255, *weights)
    slope = torch.randn(wanted.shape, generator=fresh).bfloat16().cuda()
    slope = torch.where(unclear, 0, slope)
    assert unclear.double().mean() < 0.2
    wanted_gradients = torch.autograd.grad(wanted, weights, slope.double())

    single = [w.detach().float().requires_grad_() for w in weights]
    found = digit_features(pictures, *single)
    gradients = torch.autograd.grad(found, single, slope)

    assert found.dtype == torch.bfloat16
    # A value now and then falls on the other side of a rounding; the gradient of weight 2 is itself a bf16 one.
    assert difference(found, wanted) < 1e-3
    for one, true in zip(gradients, wanted_gradients, strict=True):
        assert difference(one, true) < 5e-3


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
def test_a_dark_picture_has_no_gradient_where_the_relu_is_off():
    pictures = torch.zeros(2, 8, 8, dtype=torch.uint8).cuda()
    weights = [torch.zeros(32, 1, 5, 5), -torch.ones(32), torch.zeros(64, 32, 5, 5), torch.ones(64)]
    weights = [w.cuda().requires_grad_() for w in weights]
    features = digit_features(pictures, *weights)
    assert torch.equal(features, torch.ones_like(features))
    gradients = torch.autograd.grad(features.sum(), weights)
    assert [g.abs().sum().item() for g in gradients] == [0, 0, 0, 2 * 4 * 64]


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
def test_nan_comes_through_the_layers_and_their_gradients_as_in_torch(fresh):
    """A NaN in the first layer makes all features NaN. Gradients still go to one pooled place each, the last NaN."""
    weights = network((8, 8))
    pictures = pictures_without_ties(5, (8, 8), *weights[:2], fresh)
    weights[0][3] = torch.nan
    weights = [w.requires_grad_() for w in weights]
    wanted, _ = features_by_bf16_operands(pictures[:, None].double() / 255, *weights)
    slope = torch.randn(wanted.shape, generator=fresh).bfloat16().cuda()
    wanted_gradients = torch.autograd.grad(wanted, weights, slope.double())
    assert wanted.isnan().all()

    single = [w.detach().float().requires_grad_() for w in weights]
    found = digit_features(pictures, *single)
    gradients = torch.autograd.grad(found, single, slope)

    assert found.isnan().all()
    for place in (0, 1, 3):
        assert difference(gradients[place], wanted_gradients[place]) < 5e-3
    assert gradients[2][:, 3].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "size"), [(1, 64), (500, 12544), (70, 200)])
def test_the_wide_linear_layer_is_a_float32_one(count, size, fresh):
    features = torch.randn(count, size, generator=fresh).bfloat16().cuda().requires_grad_()
    weight, bias = (torch.randn(*shape, generator=fresh).cuda().requires_grad_() for shape in ((64, size), (64,)))
    inputs = [features, weight, bias]
    found = wide_linear(*inputs)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    wanted = functional.linear(*exact)
    slope = torch.randn(count, 64, generator=fresh).cuda()
    gradients = torch.autograd.grad(found, inputs, slope)
    true = torch.autograd.grad(wanted, exact, slope.double())
    # What float32 sums of so many terms lose: a random walk of roundings.
    assert difference(found, wanted) < 2**-23 * size**0.5
    assert difference(gradients[0], true[0]) < 2**-8  # it comes in bf16
    assert difference(gradients[1], true[1]) < 2**-23 * max(count, 4) ** 0.5
    assert difference(gradients[2], true[2]) < 2**-23 * max(count, 4) ** 0.5


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["features", "weight", "slope"])
def test_infinity_in_the_wide_linear_layer_is_not_finite_where_torch_has_it(place, fresh):
    features = torch.randn(70, 200, generator=fresh).bfloat16().cuda()
    tensors = {
        "features": features,
        "weight": torch.randn(64, 200, generator=fresh).cuda(),
        "bias": torch.randn(64, generator=fresh).cuda(),
        "slope": torch.randn(70, 64, generator=fresh).cuda(),
    }
    tensors[place][3, 5] = torch.inf
    slope = tensors.pop("slope")
    inputs = [tensor.requires_grad_() for tensor in tensors.values()]
    found = wide_linear(*inputs)
    wanted = functional.linear(inputs[0].float(), *inputs[1:])
    gradients = torch.autograd.grad(found, inputs, slope), torch.autograd.grad(wanted, inputs, slope)
    for one, true in zip((found, *gradients[0]), (wanted, *gradients[1]), strict=True):
        assert torch.equal(one.isfinite(), true.isfinite())
        # Wherever there is no infinity near, nothing has changed.
        finite = true.isfinite()
        torch.testing.assert_close(one[finite], true[finite], rtol=2**-7, atol=1e-3)


@pytest.mark.gpu
def test_the_wide_adam_is_adam(fresh):
    start = [torch.randn(64, 12544, generator=fresh), torch.randn(8, 4, 5, 5, generator=fresh), torch.randn(1)]
    start[1] = start[1].to(memory_format=torch.channels_last)
    ours, torchs = ([torch.nn.Parameter(p.cuda()) for p in start] for _ in range(2))
    rate = torch.tensor(0.01, device="cuda")
    one, other = make_adam(ours, rate), torch.optim.Adam(torchs, lr=0.01)
    assert type(one) is not torch.optim.Adam
    for _ in range(20):
        for left, right in zip(ours, torchs, strict=True):
            left.grad = torch.randn(left.shape, generator=fresh).cuda()
            right.grad = left.grad.clone()
        one.step()
        other.step()
    for left, right in zip(ours, torchs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def test_bytes_are_the_same_pictures():
    data = LabeledImages(torch.randint(0, 256, (20, 8, 8), dtype=torch.uint8), torch.arange(20) % 10)
    draw = [MultiDigit(data, 3, as_bytes=b).sample(4, torch.Generator().manual_seed(1)) for b in (False, True)]
    assert draw[1].images.dtype == torch.uint8
    model = DigitCNN((8, 32))
    assert torch.equal(model(draw[0].images), model(draw[1].images))


def test_changed_pictures_are_no_bytes():
    from newton_losses_bench.data import Affine

    data = LabeledImages(torch.zeros(20, 8, 8, dtype=torch.uint8), torch.arange(20) % 10)
    with pytest.raises(ArgumentError, match="are floats"):
        MultiDigit(data, 3, affine=Affine(), as_bytes=True)
