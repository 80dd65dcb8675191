"""The estimators of SmoothedLoss against closed forms, in every combination of their choices."""

import itertools

import pytest
import scipy.stats
import torch

from newton_losses.smoothing import Cauchy, Gaussian, Gumbel, Laplace, Logistic, SmoothedLoss, StudentT
from smoothing.standard_errors import assert_unbiased

DISTRIBUTIONS = {
    "gaussian": (Gaussian(), scipy.stats.norm),
    "laplace": (Laplace(), scipy.stats.laplace),
    "logistic": (Logistic(), scipy.stats.logistic),
    "gumbel": (Gumbel(), scipy.stats.gumbel_r),
    "cauchy": (Cauchy(), scipy.stats.cauchy),
    "student_t": (StudentT(3.0), scipy.stats.t(3.0)),
}
CHOICES = list(itertools.product(["none", "value", "leave_one_out"], [False, True], [False, True]))
SCALE = 0.8
POINT = torch.tensor([0.3, -0.2], dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def both_positive(y):
    """A step in two coordinates: a boolean, so that the cast is tested on the way."""
    return (y > 0).all(-1)


def closed_form(density):
    """Value, gradient and Hessian of E[step(y₁+ε₁)·step(y₂+ε₂)] at POINT, from scipy's density."""
    at, step = (-POINT / SCALE).numpy(), 1e-4
    survival = torch.from_numpy(density.sf(at))
    slope = torch.from_numpy(density.pdf(at)) / SCALE
    bend = -torch.from_numpy(density.pdf(at + step) - density.pdf(at - step)) / (2 * step) / SCALE**2
    others = survival.flip(0)
    hessian = torch.full((2, 2), float(slope.prod()), dtype=torch.float64)
    hessian.diagonal().copy_(bend * others)
    return survival.prod(), slope * others, hessian


def expansions(loss, repetitions, batch, curvature):
    y = POINT.expand(batch, 2)
    return [loss.expand(y, curvature=curvature) for _ in range(repetitions)]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("reduction", "antithetic", "quasi"), CHOICES)
def test_a_smoothed_step_is_unbiased(name, reduction, antithetic, quasi):
    distribution, density = DISTRIBUTIONS[name]
    value, gradient, hessian = closed_form(density)
    loss = SmoothedLoss(
        both_positive,
        SCALE,
        8,
        distribution=distribution,
        variance_reduction=reduction,
        antithetic=antithetic,
        quasi=quasi,
        generator=generator(1),
    )
    curvature = None if isinstance(distribution, Laplace) else "hessian"
    found = expansions(loss, 50, 1000, curvature)
    # The samples of a batch are independent repetitions; for the Hessian, batches are.
    assert_unbiased(torch.cat([e.value for e in found]), value, 0.02, "value")
    assert_unbiased(torch.cat([e.gradient for e in found]), gradient, 0.008, "gradient")
    if curvature is not None:
        assert_unbiased(torch.stack([e.curvature for e in found]), hessian, 0.02, "hessian")


@pytest.mark.parametrize(("reduction", "antithetic", "quasi"), CHOICES)
def test_a_smoothed_quadratic_under_gaussian_noise(reduction, antithetic, quasi):
    matrix = torch.tensor([[2.0, 0.5, 0.0], [0.5, -1.0, 0.3], [0.0, 0.3, 1.5]], dtype=torch.float64)
    slope = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    point = torch.tensor([0.4, -0.3, 0.8], dtype=torch.float64)

    def quadratic(y):
        return torch.einsum("ni,ij,nj->n", y, matrix, y) / 2 + y @ slope

    loss = SmoothedLoss(
        quadratic,
        0.5,
        8,
        variance_reduction=reduction,
        antithetic=antithetic,
        quasi=quasi,
        generator=generator(2),
    )
    found = [loss.expand(point.expand(1000, 3)) for _ in range(50)]
    value = quadratic(point[None])[0] + 0.5**2 * matrix.trace() / 2
    assert_unbiased(torch.cat([e.value for e in found]), value, 0.05, "value")
    assert_unbiased(torch.cat([e.gradient for e in found]), matrix @ point + slope, 0.06, "gradient")
    assert_unbiased(torch.stack([e.curvature for e in found]), matrix, 0.3, "hessian")


def variances(reduction, antithetic=False, quasi=False, offset=3.0):
    """Of the gradient's norm and the Hessian's, for a step on top of a constant, as a loss mostly is."""
    loss = SmoothedLoss(
        lambda y: both_positive(y) + offset,
        SCALE,
        8,
        variance_reduction=reduction,
        antithetic=antithetic,
        quasi=quasi,
        generator=generator(3),
    )
    found = expansions(loss, 200, 50, "hessian")
    gradient = torch.cat([e.gradient for e in found]).var(0).sum()
    hessian = torch.stack([e.curvature for e in found]).var(0).sum()
    return gradient, hessian


def test_variance_reduction_reduces_variance():
    none = variances("none")
    for reduction in ("value", "leave_one_out"):
        for before, after in zip(none, variances(reduction), strict=True):
            assert after < before / 5, reduction


def test_quasi_random_draws_reduce_the_variance_further():
    for before, after in zip(variances("value"), variances("value", quasi=True), strict=True):
        assert after < before


def test_antithetic_pairs_remove_a_constant_from_the_gradient_without_a_baseline():
    assert variances("none", antithetic=True)[0] < variances("none")[0] / 5


def test_leave_one_out_within_a_quasi_random_set_would_be_biased(monkeypatch):
    """Why the draws are split into independent groups: the points of one set repel each other."""
    _, gradient, _ = closed_form(scipy.stats.norm)
    loss = SmoothedLoss(both_positive, SCALE, 4, variance_reduction="leave_one_out", quasi=True, generator=generator(4))
    y = POINT.expand(50_000, 2)
    assert_unbiased(loss.expand(y, curvature=None).gradient, gradient, 0.008)
    monkeypatch.setattr(SmoothedLoss, "_draw", _one_set)
    monkeypatch.setattr(SmoothedLoss, "_weights", lambda self, v, centred: (v - v.mean(0)) * 4 / 3)
    with pytest.raises(AssertionError, match="not tensor"):
        assert_unbiased(loss.expand(y, curvature=None).gradient, gradient, 0.008)


def _one_set(self, y):
    from newton_losses.smoothing._draws import Sampler

    return Sampler(4, False, True, False).draw(y, self.scale, self.distribution, self.generator)


def test_a_users_own_distribution():
    """Two methods are all it takes: a hyperbolic secant, against scipy's."""

    class HyperbolicSecant:
        def sample(self, uniform):
            return torch.log(torch.tan(torch.pi / 2 * uniform))

        def derivatives(self, noise):
            slope = torch.tanh(noise)
            return slope, 1 - slope**2

    value, gradient, hessian = closed_form(scipy.stats.hypsecant)
    loss = SmoothedLoss(both_positive, SCALE, 8, distribution=HyperbolicSecant(), generator=generator(25))
    found = expansions(loss, 50, 1000, "hessian")
    assert_unbiased(torch.cat([e.value for e in found]), value, 0.02)
    assert_unbiased(torch.cat([e.gradient for e in found]), gradient, 0.008)
    assert_unbiased(torch.stack([e.curvature for e in found]), hessian, 0.02)
