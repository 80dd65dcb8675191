"""Batches of maps: every sample once an epoch, in an order that the generator alone decides."""

import pytest
import torch

from newton_losses.errors import ShapeError
from newton_losses_bench.data import PathMaps
from on_cuda import no_synchronisation


@pytest.fixture
def data():
    maps = torch.randint(0, 256, (10, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    weights = torch.arange(10).reshape(10, 1, 1).expand(10, 2, 2).half()
    return PathMaps(maps, weights, torch.ones(10, 2, 2, dtype=torch.uint8))


def test_an_epoch_holds_every_sample_once_and_keeps_the_last_batch(data):
    batches = list(data.batches(4, torch.Generator().manual_seed(1)))
    assert [len(batch.images) for batch in batches] == [4, 4, 2]
    seen = torch.cat([batch.weights[:, 0, 0] for batch in batches])
    assert seen.tolist() != list(range(10))
    assert sorted(seen.tolist()) == list(range(10))


def test_the_protocols_epoch_has_143_steps(data):
    many = PathMaps(*(part[:1].expand(10000, *part.shape[1:]) for part in (data.maps, data.weights, data.paths)))
    assert len(torch.split(many.order(None), 70)) == 143


def test_without_a_generator_the_order_is_that_of_the_files(data):
    seen = torch.cat([batch.weights[:, 0, 0] for batch in data.batches(3)])
    assert seen.tolist() == list(range(10))


def test_the_generator_alone_decides(data):
    source = torch.Generator().manual_seed(5)
    first, second = data.order(source), data.order(source)
    torch.manual_seed(0)
    assert torch.equal(first, data.order(torch.Generator().manual_seed(5)))
    assert not torch.equal(first, second)


def test_a_batch_is_float32_with_channels_first(data):
    batch = data.batch(torch.tensor([3, 1]))
    assert batch.images.shape == (2, 3, 16, 16)
    assert {part.dtype for part in batch} == {torch.float32}
    assert torch.equal(batch.images[1, 2], data.maps[1, :, :, 2].float())
    assert batch.images.is_contiguous(memory_format=torch.channels_last)


def test_statistics_against_torch(data):
    own = data.with_statistics()
    pixels = data.maps.reshape(-1, 3).double()
    torch.testing.assert_close(own.mean, pixels.mean(dim=0).float())
    torch.testing.assert_close(own.std, pixels.std(dim=0, correction=0).float())
    images = torch.cat([batch.images for batch in own.batches(5)])
    torch.testing.assert_close(images.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)


def test_a_channel_of_one_colour_does_not_divide_by_zero(data):
    flat = PathMaps(torch.full_like(data.maps, 7), data.weights, data.paths).with_statistics()
    assert torch.equal(flat.batch(torch.tensor([0])).images, torch.zeros(1, 3, 16, 16))


def test_statistics_move_along(data):
    moved = data.with_statistics().to("meta")
    assert {tensor.device.type for tensor in (moved.maps, moved.weights, moved.mean, moved.std)} == {"meta"}
    assert data.size == 2


def test_errors_teach(data):
    with pytest.raises(ShapeError, match=r"\(N, 8k, 8k, 3\)"):
        PathMaps(data.maps.permute(0, 3, 1, 2), data.weights, data.paths)
    with pytest.raises(ShapeError, match="N = 10"):
        PathMaps(data.maps, data.weights[:9], data.paths[:9])


@pytest.mark.gpu
def test_orders_and_batches_on_the_device(data):
    there = data.with_statistics().to("cuda")
    order = there.order(torch.Generator("cuda").manual_seed(0))
    assert order.sort().values.tolist() == list(range(10))
    with no_synchronisation():
        batch = there.batch(order[:4])
    torch.testing.assert_close(batch.images.cpu(), data.with_statistics().batch(order[:4].cpu()).images)
