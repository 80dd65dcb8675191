"""The estimators of SmoothedLoss against closed forms, in every combination of their choices."""

import itertools

import pytest
import scipy.stats
import torch

from newton_losses.smoothing import (
    Cauchy,
    Gaussian,
    Gumbel,
    Laplace,
    Logistic,
    SmoothedAlgorithm,
    SmoothedLoss,
    StudentT,
)
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
        assert_unbiased(torch.stack([e.curvature.dense() for e in found]), hessian, 0.02, "hessian")


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
    assert_unbiased(torch.stack([e.curvature.dense() for e in found]), matrix, 0.3, "hessian")


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
    hessian = torch.stack([e.curvature.dense() for e in found]).var(0).sum()
    return gradient, hessian


def test_variance_reduction_reduces_variance():
    none = variances("none")
    for reduction in ("value", "leave_one_out"):
        for before, after in zip(none, variances(reduction), strict=True):
            assert after < before / 5, reduction


# At y = 0 under standard Gaussian noise, f(y) = y² and f(y) = y have estimates whose variances are known. With S draws
# and x = ε², leave-one-out makes the Hessian of y² the sample variance of x, and the gradient of y that of ε.
MOMENTS = {
    "leave_one_out": {
        "gradient of y²": lambda s: (10 + 2 / (s - 1)) / s,
        "gradient of y": lambda s: 2 / (s - 1),
        "hessian of y²": lambda s: 60 / s - 4 * (s - 3) / (s * (s - 1)),
    },
    "value": {
        "gradient of y²": lambda s: 15 / s,
        "gradient of y": lambda s: 2 / s,
        "hessian of y²": lambda s: 74 / s,
    },
}


@pytest.mark.parametrize("draws", [3, 10, 30])
@pytest.mark.parametrize("reduction", ["auto", "value"])
def test_variances_are_those_of_the_closed_forms(reduction, draws):
    """Below the paper's baseline wherever f(y) is not the mean of f(y + ε); a little above it for a linear function."""
    moments = MOMENTS["value" if reduction == "value" else "leave_one_out"]
    settings = {"scale": 1.0, "num_samples": draws, "variance_reduction": reduction, "generator": generator(5)}
    y = torch.zeros(600_000 // draws, 1, dtype=torch.float64)

    square = SmoothedLoss(lambda y: y.square().sum(-1), **settings)
    gradient = square.expand(y, curvature=None).gradient
    assert_unbiased(gradient, torch.zeros(1), 0.1, "gradient of y²")
    wanted = torch.tensor(moments["gradient of y²"](draws))
    assert_unbiased(gradient.square(), wanted, 0.2 * wanted, "variance of the gradient of y²")

    jacobian = SmoothedAlgorithm(lambda y: torch.cat([y.square(), y], -1), **settings).jacobian(y).squeeze(-1)
    true = torch.tensor([0.0, 1.0])
    assert_unbiased(jacobian, true, 0.1, "Jacobian of (y², y)")
    wanted = torch.tensor([moments["gradient of y²"](draws), moments["gradient of y"](draws)])
    assert_unbiased((jacobian - true).square(), wanted, 0.2 * float(wanted.max()), "variance of the Jacobian")

    # The curvature is the mean over the batch, so its variance is that of one sample over their number.
    hessian = torch.stack([square.expand(y[:50]).curvature.dense().squeeze() for _ in range(2000)])
    assert_unbiased(hessian, torch.tensor(2.0), 0.2, "Hessian of y²")
    wanted = torch.tensor(moments["hessian of y²"](draws) / 50)
    assert_unbiased((hessian - 2).square(), wanted, float(0.3 * wanted), "variance of the Hessian of y²")


@pytest.mark.parametrize("draws", [3, 10, 30])
def test_the_default_is_unbiased_and_better_than_the_value_on_a_hard_loss(draws):
    """Misses of a small target that y hits: no miss without noise, some with it."""

    def misses(y):
        return (y.abs() > 0.3).sum(-1)

    def estimates(reduction):
        settings = {"variance_reduction": reduction, "generator": generator(6)}
        y = torch.full((20_000, 4), 0.1, dtype=torch.float64)
        gradient = SmoothedLoss(misses, 0.5, draws, **settings).expand(y, curvature=None).gradient
        jacobian = SmoothedAlgorithm(lambda y: y.abs() > 0.3, 0.5, draws, **settings).jacobian(y)
        return gradient, jacobian.diagonal(dim1=1, dim2=2)

    normal = scipy.stats.norm
    slope = (normal.pdf(0.2 / 0.5) - normal.pdf(0.4 / 0.5)) / 0.5
    for default, paper in zip(estimates("auto"), estimates("value"), strict=True):
        assert_unbiased(default, torch.full((4,), slope), 0.15, "auto")
        assert default.var(0).sum() < 0.7 * paper.var(0).sum()


@pytest.mark.parametrize(
    ("settings", "baseline"),
    [
        ({"num_samples": 1}, "value"),
        ({"num_samples": 2}, "value"),
        ({"num_samples": 3}, "leave_one_out"),
        ({"num_samples": 2, "antithetic": True}, "value"),
        ({"num_samples": 4, "antithetic": True}, "leave_one_out"),
        ({"num_samples": 4, "quasi": True}, "leave_one_out"),
        ({"num_samples": 5, "quasi": True}, "value"),
        ({"num_samples": 6, "antithetic": True, "quasi": True}, "value"),
        ({"num_samples": 5, "variance_reduction": "value"}, "value"),
    ],
)
def test_the_default_baseline_needs_three_draws_in_two_groups(settings, baseline):
    assert SmoothedLoss(both_positive, **settings).variance_reduction == baseline


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
    one_set = SmoothedLoss(both_positive, SCALE, 4, variance_reduction="value", quasi=True).sampler
    return one_set.draw(y, self.scale, self.distribution, self.generator)


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
    assert_unbiased(torch.stack([e.curvature.dense() for e in found]), hessian, 0.02)
