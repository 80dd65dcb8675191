"""The kernels of the digits' network against the same network in float64, and against torch's own bf16."""

import pytest
import torch
from torch.nn import functional

from newton_losses.bench.data import LabeledImages, MultiDigit
from newton_losses.bench.kernels import digit_features
from newton_losses.bench.models import DigitCNN
from newton_losses.errors import ArgumentError


def plain_features(pixels, weight_1, bias_1, weight_2, bias_2):
    first = functional.max_pool2d(functional.conv2d(pixels, weight_1, bias_1, padding=2).relu(), 2)
    return functional.max_pool2d(functional.conv2d(first, weight_2, bias_2, padding=2).relu(), 2).flatten(1)


def difference(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()


@pytest.fixture
def fresh():
    """New inputs every time: a seed that nobody chose. It is in the message of a failure."""
    seed = int(torch.seed() % 2**31)
    print("seed", seed)
    return torch.Generator().manual_seed(seed)


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "size"), [(7, (28, 112)), (500, (28, 112)), (1, (8, 32)), (33, (28, 56))])
def test_features_and_gradients_are_as_good_as_bf16_operands_allow(count, size, fresh):
    pictures = torch.randint(0, 256, (count, *size), generator=fresh, dtype=torch.uint8).cuda()
    model = DigitCNN(size)
    weights = [p for name, p in model.named_parameters() if name.startswith("convolutions")]
    weights = [w.detach().double().cuda().requires_grad_() for w in weights]
    pixels = pictures[:, None].double() / 255
    wanted = plain_features(pixels, *weights)
    slope = torch.randn(wanted.shape, generator=fresh, dtype=torch.float64).cuda()
    wanted_gradients = torch.autograd.grad(wanted, weights, slope)

    single = [w.detach().float().requires_grad_() for w in weights]
    found = digit_features(pictures, *single)
    gradients = torch.autograd.grad(found, single, slope.float())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        usual = plain_features(pixels.float(), *single)
    usual_gradients = torch.autograd.grad(usual, single, slope.to(usual.dtype))

    assert found.dtype == torch.float32
    # Pixels are exact here and the bias is added in float32, so that it should be a little better than torch's bf16.
    assert difference(found, wanted) <= 1.05 * difference(usual, wanted)
    for one, other, true in zip(gradients, usual_gradients, wanted_gradients, strict=True):
        assert difference(one, true) <= 1.2 * difference(other, true)


@pytest.mark.gpu
def test_a_dark_picture_has_no_gradient_where_the_relu_is_off():
    pictures = torch.zeros(2, 8, 8, dtype=torch.uint8).cuda()
    weights = [torch.zeros(32, 1, 5, 5), -torch.ones(32), torch.zeros(64, 32, 5, 5), torch.ones(64)]
    weights = [w.cuda().requires_grad_() for w in weights]
    features = digit_features(pictures, *weights)
    assert torch.equal(features, torch.ones_like(features))
    gradients = torch.autograd.grad(features.sum(), weights)
    assert [g.abs().sum().item() for g in gradients] == [0, 0, 0, 2 * 4 * 64]


def test_bytes_are_the_same_pictures():
    data = LabeledImages(torch.randint(0, 256, (20, 8, 8), dtype=torch.uint8), torch.arange(20) % 10)
    draw = [MultiDigit(data, 3, as_bytes=b).sample(4, torch.Generator().manual_seed(1)) for b in (False, True)]
    assert draw[1].images.dtype == torch.uint8
    model = DigitCNN((8, 32))
    assert torch.equal(model(draw[0].images), model(draw[1].images))


def test_changed_pictures_are_no_bytes():
    from newton_losses.bench.data import Affine

    data = LabeledImages(torch.zeros(20, 8, 8, dtype=torch.uint8), torch.arange(20) % 10)
    with pytest.raises(ArgumentError, match="no bytes"):
        MultiDigit(data, 3, affine=Affine(), as_bytes=True)
