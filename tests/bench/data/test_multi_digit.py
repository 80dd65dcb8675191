"""Numbers of several digits: pictures are those of their values; draws are uniform and seeded."""

import numpy as np
import pytest
import torch

from bench.data.sources import mnist_root
from newton_losses.errors import ArgumentError, ShapeError
from newton_losses_bench.data import MNIST, Affine, Digits, LabeledImages, MultiDigit


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def coded():
    """Twelve pictures of 3×4 pixels, each with its own values; some digits have two pictures."""
    images = torch.arange(144, dtype=torch.uint8).reshape(12, 3, 4)
    return LabeledImages(images, torch.arange(12) % 10)


@pytest.mark.parametrize("num_digits", [1, 4])
def test_pictures_and_values_against_a_plain_loop(coded, num_digits):
    sets = MultiDigit(coded, n=3, num_digits=num_digits)
    indices, matrices = sets.draw(5, generator())
    assert matrices is None
    images, values = sets.assemble(indices)
    assert images.shape == (5, 3, 1, 3, 4 * num_digits)
    assert images.dtype == torch.float32
    assert sets.image_size == (3, 4 * num_digits)
    for batch in range(5):
        for item in range(3):
            chosen = indices[batch, item].tolist()
            side_by_side = np.concatenate([coded.images[index].numpy() for index in chosen], axis=1)
            assert np.array_equal(images[batch, item, 0], np.float32(side_by_side) / np.float32(255))
            text = "".join(str(int(coded.labels[index])) for index in chosen)
            assert values[batch, item] == int(text)


def test_draws_are_uniform_with_replacement(coded):
    indices, _ = MultiDigit(coded, n=5).draw(3000, generator())
    counts = torch.bincount(indices.flatten(), minlength=12)
    # 60,000 draws: 5,000 each, with a standard deviation of 68. Five of them is a chance of 1 in 10⁵.
    assert (counts - 5000).abs().max() < 5 * 68


@pytest.mark.parametrize("affine", [None, Affine()])
def test_the_generator_alone_decides(coded, affine):
    sets = MultiDigit(coded, affine=affine)
    torch.manual_seed(1)
    first = sets.sample(4, generator(7))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    source = generator(7)
    again, fresh = sets.sample(4, source), sets.sample(4, source)
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.values, again.values)
    assert not torch.equal(fresh.values, again.values)
    assert torch.equal(state, torch.get_rng_state())


def test_an_affine_of_width_zero_changes_nothing(coded):
    still = MultiDigit(coded, affine=Affine(0, 0, 0, 0))
    indices, matrices = still.draw(4, generator())
    changed = still.assemble(indices, matrices)
    plain = MultiDigit(coded).assemble(indices)
    torch.testing.assert_close(changed.images, plain.images, rtol=0, atol=1e-6)


def test_a_shift_by_one_pixel_moves_the_picture():
    picture = torch.zeros(1, 4, 4)
    picture[0, 1, 2] = 1
    # Half a unit of the range −1 to 1 is one of four pixels; places map from new to old.
    right = torch.tensor([[[1.0, 0.0, -0.5], [0.0, 1.0, 0.0]]])
    moved = Affine.apply(picture, right)
    assert moved[0, 1, 3] == 1
    assert moved.sum() == 1


def test_changes_stay_within_their_widths():
    affine = Affine(shift=0.1, rotation=30, scale=0.2, slant=0)
    matrices = affine.draw(2000, generator())
    assert matrices[:, :, 2].abs().max() <= 0.2
    sizes = 1 / matrices[:, :, :2].norm(dim=1)
    assert 0.8 - 1e-5 <= sizes.min() < 0.81
    assert 1.19 < sizes.max() <= 1.2 + 1e-5
    angles = torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0]).rad2deg()
    assert 29 < angles.abs().max() <= 30 + 1e-4
    assert angles.mean().abs() < 2


def test_changed_digits_are_still_themselves():
    # Correlation with the picture that was drawn: a turned digit is far nearer to it than another one.
    data = Digits("train")
    sets = MultiDigit(data, n=1, num_digits=1, affine=Affine())
    indices, matrices = sets.draw(500, generator())
    changed = sets.assemble(indices, matrices).images.reshape(500, -1)
    plain = data.images[indices.flatten()].reshape(500, -1).float()
    same = torch.cosine_similarity(changed, plain)
    other = torch.cosine_similarity(changed, plain.roll(1, dims=0))
    assert same.mean() > 0.75
    assert same.mean() > other.mean() + 0.15
    assert same.min() < 0.999


def test_draw_and_assemble_compile_as_one_graph(coded):
    sets = MultiDigit(coded)
    indices, _ = sets.draw(2, generator())
    compiled = torch.compile(sets.assemble, fullgraph=True, backend="eager")
    assert torch.equal(compiled(indices).images, sets.assemble(indices).images)


def test_digits_are_real_and_split_in_order():
    train, val, test = Digits.splits()
    assert (len(train), len(val), len(test)) == (1297, 200, 300)
    assert train.images.dtype == torch.uint8
    assert (int(train.images.min()), int(train.images.max())) == (0, 255)
    assert train.labels[:10].tolist() == list(range(10))
    with pytest.raises(ArgumentError, match="'tset' is not known"):
        Digits("tset")


def test_sets_of_the_real_mnist():
    data = MNIST(mnist_root(), train=False)
    sets = MultiDigit(data, n=5)
    indices, _ = sets.draw(3, generator())
    images, values = sets.assemble(indices)
    assert images.shape == (3, 5, 1, 28, 112)
    third = (values // 10) % 10
    assert torch.equal(third, data.labels[indices[..., 2]])
    assert torch.equal(images[1, 4, 0, :, 56:84] * 255, data.images[indices[1, 4, 2]].float())


def test_errors_teach(coded):
    with pytest.raises(ShapeError, match="uint8 tensor"):
        LabeledImages(torch.zeros(3, 8, 8), torch.zeros(3))
    with pytest.raises(ArgumentError, match="n=0"):
        MultiDigit(coded, n=0)
    with pytest.raises(ArgumentError, match="no pictures"):
        MultiDigit(coded.part(0, 0))
    with pytest.raises(ArgumentError, match="not negative"):
        Affine(rotation=-1)


@pytest.mark.gpu
@pytest.mark.parametrize("affine", [None, Affine()])
def test_a_cuda_graph_draws_fresh_sets_at_every_replay(affine):
    data = LabeledImages(torch.randint(0, 256, (50, 8, 8), dtype=torch.uint8), torch.arange(50) % 10)
    sets = MultiDigit(data.to("cuda"), affine=affine)
    source = torch.Generator("cuda").manual_seed(0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        sets.sample(6, source)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(source)
    with torch.cuda.graph(graph):
        batch = sets.sample(6, source)
    source.manual_seed(3)
    replayed = []
    for _ in range(2):
        graph.replay()
        replayed.append((batch.images.clone(), batch.values.clone()))
    source.manual_seed(3)
    for images, values in replayed:
        eager = sets.sample(6, source)
        assert torch.equal(eager.values, values)
        assert torch.equal(eager.images, images)
    assert not torch.equal(replayed[0][1], replayed[1][1])
