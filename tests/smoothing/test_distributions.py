"""The distributions against scipy's."""

import pytest
import scipy.stats
import torch

from newton_losses import ArgumentError
from newton_losses.smoothing import Cauchy, Distribution, Gaussian, Gumbel, Laplace, Logistic, StudentT

PAIRS = [
    (Gaussian(), scipy.stats.norm),
    (Laplace(), scipy.stats.laplace),
    (Logistic(), scipy.stats.logistic),
    (Gumbel(), scipy.stats.gumbel_r),
    (Cauchy(), scipy.stats.cauchy),
    (StudentT(3.0), scipy.stats.t(3.0)),
    (StudentT(0.5), scipy.stats.t(0.5)),
]
IDS = [repr(ours) for ours, _ in PAIRS]


@pytest.mark.parametrize(("ours", "theirs"), [p for p in PAIRS if not hasattr(p[0], "num_uniforms")])
def test_sample_is_the_quantile(ours, theirs):
    uniform = torch.cat([torch.linspace(0.01, 0.99, 99), torch.tensor([1e-9, 1e-4, 1 - 1e-4])]).double()
    torch.testing.assert_close(ours.sample(uniform), torch.from_numpy(theirs.ppf(uniform.numpy())))


@pytest.mark.parametrize(("ours", "theirs"), [p for p in PAIRS if not hasattr(p[0], "num_uniforms")])
def test_float32_tails_keep_their_digits(ours, theirs):
    """Draws of torch.rand are multiples of 2⁻²⁴, the outermost included: a formula that cancels there loses them."""
    steps = torch.tensor([1, 3, 1000, 2**20, 2**24 - 2**20, 2**24 - 1000, 2**24 - 3, 2**24 - 1], dtype=torch.float64)
    uniform = steps / 2**24
    wanted = torch.from_numpy(theirs.ppf(uniform.numpy()))
    torch.testing.assert_close(ours.sample(uniform.float()).double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("degrees_of_freedom", [0.7, 1.0, 3.0, 30.0])
def test_student_t_is_exact_for_all_degrees_of_freedom(degrees_of_freedom):
    # Two uniforms make one value: a fine grid of both stands for their joint distribution.
    grid = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    pairs = torch.cartesian_prod(grid, grid).T.flatten()
    noise = StudentT(degrees_of_freedom).sample(pairs).numpy()
    result = scipy.stats.kstest(noise, scipy.stats.t(degrees_of_freedom).cdf)
    assert result.statistic < 2e-3  # the grid's own discrepancy is about 1/1000


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=IDS)
def test_derivatives_of_minus_log_density(ours, theirs):
    noise = torch.tensor([-3.1, -1.2, -0.4, 0.3, 0.9, 2.7], dtype=torch.float64)
    step = 1e-4

    def nu(shift):
        return torch.from_numpy(-theirs.logpdf(noise.numpy() + shift))

    first, second = ours.derivatives(noise)
    torch.testing.assert_close(first, (nu(step) - nu(-step)) / (2 * step), rtol=1e-6, atol=1e-6)
    if second is not None:
        # Second differences lose 1e-16/step² = 1e-8 to rounding, and as much to truncation.
        torch.testing.assert_close(second, (nu(step) - 2 * nu(0) + nu(-step)) / step**2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=IDS)
def test_the_edges_are_finite(ours, theirs, dtype):
    edge = torch.finfo(dtype).eps / 2
    uniform = torch.tensor([edge, 0.5, 1 - edge, edge, 0.5, 1 - edge], dtype=dtype)
    noise = ours.sample(uniform)
    assert noise.isfinite().all()
    for derivative in ours.derivatives(noise):
        assert derivative is None or derivative.isfinite().all()


@pytest.mark.parametrize("ours", [ours for ours, _ in PAIRS if not isinstance(ours, Gumbel)], ids=repr)
def test_mirrored_uniforms_are_mirrored_noise(ours):
    uniform = torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours.sample(1 - uniform), -ours.sample(uniform))


def test_every_distribution_fits_the_protocol():
    assert all(isinstance(ours, Distribution) for ours, _ in PAIRS)
    assert not isinstance("gaussian", Distribution)


@pytest.mark.parametrize("degrees_of_freedom", [0.0, 0.4, float("inf"), float("nan")])
def test_impossible_degrees_of_freedom(degrees_of_freedom):
    with pytest.raises(ArgumentError, match="degrees_of_freedom="):
        StudentT(degrees_of_freedom)


def test_degrees_of_freedom_become_a_plain_number():
    assert StudentT() == StudentT(torch.tensor(3.0))
    assert repr(StudentT(torch.tensor(4.0))) == "StudentT(degrees_of_freedom=4.0)"
