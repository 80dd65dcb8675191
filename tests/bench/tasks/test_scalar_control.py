"""The control that divides a batch's gradients by one number: against its closed form, with bad samples, damped."""

from dataclasses import replace

import pytest
import torch

import newton_losses as nl
from newton_losses.sorting import SortingLoss
from newton_losses_bench.config import PathsConfig, SortingConfig
from newton_losses_bench.tasks import EnergyCurvature, training_loss

N, M = 7, 4
ENERGY = SortingConfig(algorithm="softsort", curvature="energy", n=M, device="cpu").resolved()


def quartic(y, weight):
    return (weight * y.pow(4)).sum(1)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    y, weight = torch.randn(2, N, M, generator=generator, dtype=torch.float64)
    return y.requires_grad_(), weight


def gradient_of(config, loss, y, *targets):
    y.grad = None
    module = training_loss(loss, config)
    value = module(y, *targets)
    value.backward()
    return value, y.grad, module


@pytest.mark.parametrize("damping", [0.1, 10.0])
def test_the_gradient_is_the_closed_form(batch, damping):
    y, weight = batch
    value, found, _ = gradient_of(replace(ENERGY, damping=damping), quartic, y, weight)
    plain = 4 * weight * y.detach() ** 3
    energy = plain.square().sum() / (N * M)
    torch.testing.assert_close(found, plain / N / (energy + damping))
    torch.testing.assert_close(value, quartic(y.detach(), weight).mean())


def test_the_energy_is_the_mean_eigenvalue_of_the_empirical_fisher(batch):
    y, weight = batch
    fisher = nl.expand(quartic, y.detach(), weight, curvature="fisher").curvature.dense()
    energy = EnergyCurvature(quartic).expand(y.detach(), weight, curvature="fisher").curvature.dense()
    torch.testing.assert_close(energy, fisher.trace() / M * torch.eye(M, dtype=torch.float64))


def test_a_damping_relative_to_the_energy(batch):
    y, weight = batch
    relative = replace(ENERGY, damping=None, relative_damping=2.0)
    _, found, _ = gradient_of(relative, quartic, y, weight)
    plain = 4 * weight * y.detach() ** 3
    torch.testing.assert_close(found, plain / N / (3 * plain.square().mean()))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_sample_that_is_not_finite_is_as_if_it_were_not_there(batch, bad):
    y, weight = batch
    weight = weight.clone()
    weight[2, 1] = bad
    others = [i for i in range(N) if i != 2]
    _, found, module = gradient_of(ENERGY, quartic, y, weight)
    rest = y.detach()[others].requires_grad_()
    _, wanted, _ = gradient_of(ENERGY, quartic, rest, weight[others])
    torch.testing.assert_close(found[others], wanted)
    assert not found[2].any()
    assert module.skipped == 1


def test_gradients_that_explode_stay_within_bounds():
    """The largest gradients of the cross-entropy on probabilities are about 1e12, and 1e24 fits into no float16."""
    y = torch.zeros(2, 2, requires_grad=True)
    _, found, _ = gradient_of(ENERGY, lambda y: (1e30 * y).sum(1), y)
    torch.testing.assert_close(found, torch.full((2, 2), 0.5e-30), rtol=1e-5, atol=0)


def test_a_sorting_loss_with_its_own_derivatives(batch):
    y, values = batch
    loss = SortingLoss("softsort", temperature=0.1, numerics="reference")
    config = replace(ENERGY, damping=0.5)
    _, found, _ = gradient_of(config, loss, y, values)
    plain = nl.expand(loss, y.detach(), values, curvature=None).gradient
    torch.testing.assert_close(found, plain / N / (plain.square().mean() + 0.5))


def test_its_damping_is_that_of_the_fisher():
    for algorithm in ("neuralsort", "softsort", "logistic", "cauchy"):
        for n in (5, 10):
            arms = [SortingConfig(algorithm=algorithm, curvature=c, n=n, device="cpu") for c in ("energy", "fisher")]
            assert arms[0].resolved().damping == arms[1].resolved().damping
    paths = PathsConfig(algorithm="smoothed-loss", curvature="energy", device="cpu").resolved()
    assert paths.damping == 0.1
