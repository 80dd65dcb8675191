"""Eigenvalues of the batch's curvatures against a dense decomposition, and convexity where no Hessian is stored."""

import pytest
import torch
from catalogue import draw, honest_waves, squares
from torch import Tensor

from newton_losses.diagnose import diagnose

pytestmark = pytest.mark.usefixtures("quick_machine")


@pytest.mark.parametrize("shape", [(40, 5), (4, 9)], ids=["more samples than outputs", "fewer"])
def test_the_fisher_is_the_mean_of_outer_products(shape: tuple[int, int]) -> None:
    y, target = draw(*shape, seed=0).double(), draw(*shape, seed=1).double()
    gradient = 2 * (y - target)
    exact = torch.linalg.eigvalsh(sum(torch.outer(one, one) for one in gradient) / len(gradient))
    found = diagnose(squares, y, target).spectra.fisher
    assert found.values == pytest.approx(exact.tolist(), abs=1e-12 * float(exact[-1]))
    assert (found.smallest, found.largest) == (found.values[0], found.values[-1])
    assert found.rank == min(shape)
    assert found.condition == pytest.approx(float(exact[-1] / exact[-min(shape)]))
    assert found.negative_share == 0


def test_the_mean_hessian_and_its_negative_share() -> None:
    """(sin 2y − t)² + y²/20, output by output: f'' = 8 cos² 2y − 8 (sin 2y − t) sin 2y + 1/10."""
    y, target = draw(30, 4, seed=0).double(), draw(30, 4, seed=1).double()
    sine, cosine = torch.sin(2 * y), torch.cos(2 * y)
    second = 8 * cosine.square() - 8 * (sine - target) * sine + 0.1
    found = diagnose(honest_waves, y, target).spectra
    mean = second.mean(0).sort().values
    assert found.hessian.values == pytest.approx(mean.tolist(), rel=1e-9)
    assert found.hessian.negative_share == pytest.approx(float(mean.clamp(max=0).abs().sum() / mean.abs().sum()))


def bowls_and_hills(y: Tensor, sign: Tensor) -> Tensor:
    """½ sᵢ‖y‖²: of a sample with s = −1 every direction curves downwards, of the others none."""
    return sign * y.square().sum(1) / 2


@pytest.mark.parametrize("outputs", [4, 3000], ids=["Hessian stored", "too large for one"])
@pytest.mark.parametrize("hills", [0, 1, 4])
def test_samples_that_curve_downwards_are_counted(outputs: int, hills: int) -> None:
    sign = torch.ones(4)
    sign[4 - hills :] = -1
    report = diagnose(bowls_and_hills, draw(4, outputs, seed=0), sign)
    assert (report.spectra.hessian is None) == (outputs == 3000)
    assert report.spectra.convex is (hills == 0)
    assert report.spectra.nonconvex_samples == pytest.approx(hills / 4)
    assert report.spectra.negative_share == pytest.approx(hills / 4)


def test_a_large_saddle_is_not_convex() -> None:
    """A third of the outputs curves downwards, four times as much as the others curve upwards.

    So does every direction that is looked at: a random one by (2 − 4)/3 and the gradient by (2 − 64)/(2 + 16).
    """
    weight = torch.ones(3000)
    weight[::3] = -4
    y = torch.ones(4, 3000)
    report = diagnose(lambda y: (weight.to(y) * y.square()).sum(1) / 2, y)
    assert report.spectra.hessian is None
    assert report.spectra.convex is False
    assert report.spectra.negative_share == pytest.approx(1.0)
