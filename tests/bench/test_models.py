"""The networks: parts, sizes and initialisation as in the protocol, and 32 bits for what they return."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from newton_losses.errors import ArgumentError, ShapeError
from newton_losses_bench.models import DigitCNN, MapCNN


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_digit_network_has_the_protocols_parameters():
    shapes = [tuple(parameter.shape) for parameter in DigitCNN().parameters()]
    assert shapes == [
        (32, 1, 5, 5),
        (32,),
        (64, 32, 5, 5),
        (64,),
        (64, 12544),
        (64,),
        (1, 64),
        (1,),
    ]


def test_the_digit_network_is_the_plain_sequence_of_the_protocol():
    torch.manual_seed(3)
    plain = nn.Sequential(
        nn.Conv2d(1, 32, 5, 1, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(32, 64, 5, 1, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Flatten(),
        nn.Linear(7 * 28 * 64, 64),
        nn.ReLU(),
        nn.Linear(64, 1),
    )
    torch.manual_seed(3)
    own = DigitCNN()
    images = torch.rand(2, 5, 1, 28, 112)
    assert torch.equal(own(images), plain(images.reshape(10, 1, 28, 112)).reshape(2, 5))


@pytest.mark.parametrize("size", [(8, 32), (28, 56), (9, 33)])
def test_other_picture_sizes(size):
    scores = DigitCNN(size)(torch.rand(2, 3, 1, *size))
    assert scores.shape == (2, 3)


def test_the_map_network_has_the_parameters_of_resnet18s_beginning():
    model = MapCNN()
    # conv1 7·7·3·64, bn1 2·64, and four 3×3 convolutions of 64 to 64 channels with their normalisations.
    assert count(model.trunk.conv1) == 9408
    assert count(model.trunk.bn1) == 128
    assert count(model.trunk.layer1) == 147968
    assert count(model) == 157504
    names = {name.removeprefix("trunk.") for name, _ in model.named_parameters()}
    wanted = {"conv1.weight", "bn1.weight", "bn1.bias"}
    for block in range(2):
        for part in (1, 2):
            wanted.add(f"layer1.{block}.conv{part}.weight")
            wanted |= {f"layer1.{block}.bn{part}.weight", f"layer1.{block}.bn{part}.bias"}
    assert names == wanted


def test_the_map_network_step_by_step():
    """Every layer written out with functions, from the protocol's sentence."""
    f = nn.functional
    model = MapCNN(12).double().eval()
    state = {name.removeprefix("trunk."): value for name, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    for name, value in state.items():
        if "bn" in name and value.is_floating_point():
            value.uniform_(0.5, 1.5, generator=generator)
    images = torch.randn(2, 3, 96, 96, dtype=torch.float64, generator=generator)

    def normalise(x, name):
        parts = (state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return f.batch_norm(x, *parts)

    x = f.conv2d(images, state["conv1.weight"], stride=2, padding=3)
    x = f.max_pool2d(f.relu(normalise(x, "bn1")), 3, stride=2, padding=1)
    for block in ("layer1.0", "layer1.1"):
        inside = f.relu(normalise(f.conv2d(x, state[f"{block}.conv1.weight"], padding=1), f"{block}.bn1"))
        inside = normalise(f.conv2d(inside, state[f"{block}.conv2.weight"], padding=1), f"{block}.bn2")
        x = f.relu(inside + x)
    assert x.shape == (2, 64, 24, 24)
    wanted = x.reshape(2, 64, 12, 2, 12, 2).amax(dim=(3, 5)).mean(dim=1)
    torch.testing.assert_close(model(images), wanted)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("size", [12, 7])
def test_the_largest_of_each_cell_is_that_of_adaptive_pooling_to_the_last_bit(size, precision):
    torch.manual_seed(0)
    model = MapCNN(size, precision)
    images = torch.randn(3, 3, 96, 96)
    weights = torch.randn(3, size, size)
    costs = model(images)
    own = torch.autograd.grad((costs * weights).sum(), list(model.parameters()))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        features = model.trunk[:-1](images)
    wanted = functional.adaptive_max_pool2d(features.float(), size).mean(dim=1)
    assert torch.equal(costs, wanted)
    plain = torch.autograd.grad((wanted * weights).sum(), list(model.parameters()))
    for one, other in zip(own, plain, strict=True):
        assert torch.equal(one, other)


def test_the_map_network_is_initialised_as_resnets_are():
    torch.manual_seed(0)
    model = MapCNN()
    first = model.trunk.conv1.weight
    assert abs(first.std().item() / (2 / (7 * 7 * 64)) ** 0.5 - 1) < 0.03
    second = model.trunk.layer1[1].conv2.weight
    assert abs(second.std().item() / (2 / (3 * 3 * 64)) ** 0.5 - 1) < 0.03
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


@pytest.mark.parametrize("size", [12, 24])
def test_costs_have_the_maps_size_and_are_not_negative(size):
    costs = MapCNN(size)(torch.randn(2, 3, 8 * size, 8 * size))
    assert costs.shape == (2, size, size)
    assert costs.min() >= 0


@pytest.mark.parametrize(
    ("network", "images"), [(DigitCNN, torch.rand(4, 5, 1, 28, 112)), (MapCNN, torch.randn(4, 3, 96, 96))]
)
def test_bf16_convolutions_return_values_with_more_than_16_bits(network, images):
    torch.manual_seed(0)
    precise = network()
    coarse = network(precision="bf16")
    coarse.load_state_dict(precise.state_dict())
    wanted, found = precise(images), coarse(images)
    assert found.dtype == torch.float32
    assert not torch.equal(found, wanted)
    # Bfloat16 has 8 significant bits, 0.4 % a rounding; a few layers of them stay within a few per cent.
    torch.testing.assert_close(found, wanted, rtol=0.03, atol=0.03 * wanted.abs().max().item())
    assert not torch.equal(found, found.bfloat16().float())
    found.sum().backward()
    assert {parameter.grad.dtype for parameter in coarse.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_an_autocast_outside_changes_nothing(precision):
    torch.manual_seed(0)
    for model, images in (
        (DigitCNN((8, 32), precision), torch.rand(4, 5, 1, 8, 32)),
        (MapCNN(4, precision).eval(), torch.randn(2, 3, 32, 32)),
    ):
        alone = model(images)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = model(images)
        assert inside.dtype == torch.float32
        assert torch.equal(alone, inside)


def test_training_twice_from_the_same_seed_is_bit_identical():
    def train():
        torch.manual_seed(0)
        model = DigitCNN((8, 32))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        images = torch.rand(8, 3, 1, 8, 32)
        for _ in range(3):
            optimizer.zero_grad()
            model(images).square().mean().backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(train(), train())


def test_errors_teach():
    with pytest.raises(ArgumentError, match="'fp16' is unknown"):
        DigitCNN(precision="fp16")
    with pytest.raises(ArgumentError, match="too small"):
        DigitCNN((3, 12))
    with pytest.raises(ShapeError, match=r"\(B, n, 1, 28, 112\), not \(2, 5, 1, 8, 32\)"):
        DigitCNN()(torch.zeros(2, 5, 1, 8, 32))
    with pytest.raises(ShapeError, match=r"\(B, 3, height, width\)"):
        MapCNN()(torch.zeros(2, 96, 96, 3))
