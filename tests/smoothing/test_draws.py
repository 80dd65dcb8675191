"""How draws depend on each other and on the generator."""

import pytest
import torch

from newton_losses import ArgumentError
from newton_losses.smoothing import Gaussian, SmoothedLoss, StudentT

Y = torch.zeros(5, 3, dtype=torch.float64)


def make_sampler(num_samples, antithetic=False, quasi=False, leave_one_out=False):
    reduction = "leave_one_out" if leave_one_out else "value"
    loss = SmoothedLoss(
        lambda y: y.sum(-1), 1.0, num_samples, antithetic=antithetic, quasi=quasi, variance_reduction=reduction
    )
    return loss.sampler


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_independent_draws_are_their_own_groups():
    assert make_sampler(8, antithetic=False, quasi=False, leave_one_out=True).groups == 8
    assert make_sampler(8, antithetic=True, quasi=False, leave_one_out=True).groups == 4
    assert make_sampler(8, antithetic=True, quasi=True, leave_one_out=True).groups == 2
    assert make_sampler(8, antithetic=True, quasi=True, leave_one_out=False).groups == 1


@pytest.mark.parametrize("quasi", [False, True])
def test_antithetic_draws_are_neighbours(quasi):
    sampler = make_sampler(8, antithetic=True, quasi=quasi, leave_one_out=False)
    noise = sampler.draw(Y, 0.1, Gaussian(), generator()).standard
    torch.testing.assert_close(noise[0::2], -noise[1::2])


@pytest.mark.parametrize("antithetic", [False, True])
def test_quasi_random_draws_are_evenly_spread(antithetic):
    """Every sample and dimension has one of 16 points in each 16th of the unit interval."""
    sampler = make_sampler(32 if antithetic else 16, antithetic=antithetic, quasi=True, leave_one_out=False)
    uniform = sampler.uniform(Y, 3, generator())
    if antithetic:
        uniform = uniform[0::2]
    cells = (uniform * 16).long().sort(0).values
    assert torch.equal(cells, torch.arange(16)[:, None, None].expand(16, 5, 3))


@pytest.mark.parametrize("quasi", [False, True])
@pytest.mark.parametrize("antithetic", [False, True])
def test_draws_are_uniform_and_samples_independent(quasi, antithetic):
    sampler = make_sampler(4, antithetic=antithetic, quasi=quasi, leave_one_out=False)
    uniform = sampler.uniform(torch.zeros(20_000, 1, dtype=torch.float64), 1, generator()).squeeze(-1)
    for draw in uniform:
        # The Kolmogorov-Smirnov distance of 20,000 uniforms exceeds 0.0138 once in a thousand.
        ranks = torch.arange(1, 20_001) / 20_000
        assert (draw.sort().values - ranks).abs().max() < 0.0138
        # Neighbours in the batch: a correlation of 0 ± 1/√20,000.
        assert torch.corrcoef(torch.stack([draw[1:], draw[:-1]]))[0, 1].abs() < 5 * 0.0071


@pytest.mark.parametrize("quasi", [False, True])
def test_the_generator_alone_decides(quasi):
    sampler = make_sampler(4, antithetic=False, quasi=quasi, leave_one_out=False)
    before = torch.get_rng_state()
    first = sampler.uniform(Y, 3, generator(1))
    again = sampler.uniform(Y, 3, generator(1))
    other = sampler.uniform(Y, 3, generator(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_uniforms_stay_inside_the_open_interval(dtype, edge, monkeypatch):
    """torch.rand gives 0 once in 16 million; the 1 stands for a rounding. The edges are its outermost other draws."""
    monkeypatch.setattr(torch, "rand", lambda shape, dtype, **_: torch.full(shape, edge, dtype=dtype))
    uniform = make_sampler(4, True, False, False).uniform(Y.to(dtype), 1, generator())
    assert uniform.dtype == dtype
    least = torch.finfo(dtype).eps / 2
    assert (uniform.min().item(), uniform.max().item()) == (least, 1 - least)


def test_a_distribution_may_ask_for_more_uniforms():
    noise = make_sampler(4, False, True, False).draw(Y, 0.1, StudentT(), generator())
    assert noise.standard.shape == (4, 5, 3)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ((5, True, False, False), "multiple of 2, at least 2"),
        ((1, False, False, True), "multiple of 1, at least 2"),
        ((2, True, False, True), "multiple of 2, at least 4"),
        ((6, True, True, True), "multiple of 4, at least 4"),
        ((0, False, False, False), "at least 1"),
    ],
)
def test_impossible_numbers_of_samples(settings, says):
    with pytest.raises(ArgumentError, match=says):
        make_sampler(*settings)


def test_too_many_dimensions_for_sobol():
    assert make_sampler(2, quasi=True).uniform(Y[:1], 21_201, generator()).shape == (2, 1, 21_201)
    with pytest.raises(ArgumentError, match="21201 dimensions"):
        make_sampler(4, False, True, False).uniform(Y, 30_000, generator())
