"""The gradient pictures: what they show is the loss's own gradient, and the explosion is one of rounding."""

from xml.etree import ElementTree

import pytest
import torch

from newton_losses import newton_target
from newton_losses.sorting import SortingLoss, SortingNetwork, neuralsort
from newton_losses_bench.report.gradients import DAMPING, SETTINGS, VARIANTS, gradients, largest, scores, write

NAMES = {variant.name: variant for variant in VARIANTS}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_gradient_is_that_of_the_cross_entropy(setting):
    """Against torch's binary cross-entropy on the matrix, in double precision, where nothing is rounded away."""
    x = scores(setting, 1.0, torch.float64).requires_grad_()
    if setting.name == "neuralsort":
        matrix = neuralsort(x, temperature=1.0)
    else:
        matrix = SortingNetwork(5, distribution="logistic", steepness=10.0).to(torch.float64).matrix(x)
    wanted = torch.eye(5, dtype=torch.float64).expand_as(matrix)
    cells = torch.nn.functional.binary_cross_entropy(matrix, wanted, reduction="none")
    (expected,) = torch.autograd.grad(cells.mean((1, 2)).sum(), x)
    torch.testing.assert_close(gradients(setting, NAMES["plain"], torch.float64), expected)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_fisher_of_a_point_alone_is_a_batch_of_one(setting):
    found = gradients(setting, NAMES["fisher"], torch.float64)
    loss = SortingLoss(setting.relaxation, numerics="reference")
    x = scores(setting, NAMES["fisher"].spread, torch.float64)
    for place in (10, 50, 125):
        one = x[place : place + 1]
        step = newton_target(loss, one, torch.arange(5.0).double()[None], curvature="fisher", damping=DAMPING).step
        torch.testing.assert_close(found[place], step[0])


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_explosion_is_rounding(setting):
    assert largest(setting, "spread") > 1000 * largest(setting, "plain")
    assert largest(setting, "spread", exact=True) < 2 * largest(setting, "plain", exact=True)
    assert largest(setting, "stable") == pytest.approx(largest(setting, "stable", exact=True), rel=1e-3)


def test_every_picture_is_a_file(tmp_path):
    paths = write(tmp_path / "gradients")
    assert len(paths) == len(SETTINGS) * len(VARIANTS) == len(set(paths))
    for path in paths:
        text = ElementTree.tostring(ElementTree.parse(path).getroot(), encoding="unicode")
        assert text.count("∂/∂x") == 5
        assert path.stat().st_size < 40_000
