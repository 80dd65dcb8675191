"""The gradient pictures: what they show is the loss's own gradient, and the explosion is one of rounding."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from newton_losses import newton_target
from newton_losses.sorting import SortingLoss, SortingNetwork, neuralsort
from newton_losses_bench.report import gather
from newton_losses_bench.report.extras import read_extras
from newton_losses_bench.report.gradients import (
    DAMPING,
    SETTINGS,
    VARIANTS,
    gradient_verdicts,
    gradients,
    largest,
    read_gradients,
    scores,
    write,
)

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
    loss = SortingLoss(setting.relaxation, numerics="reference", exchangeable=False)
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


def test_every_picture_is_a_file_and_the_report_reads_the_largest(tmp_path):
    *paths, numbers = write(tmp_path / "gradients")
    assert len(paths) == len(SETTINGS) * len(VARIANTS) == len(set(paths))
    for path in paths:
        text = ElementTree.tostring(ElementTree.parse(path).getroot(), encoding="unicode")
        assert text.count("∂/∂x") == 5
        assert path.stat().st_size < 40_000
    assert numbers.name == "gradients.json"
    explode, recover = gradient_verdicts(read_extras(gather(tmp_path)).gradients)
    assert [one.status for one in explode.judgements] == ["confirmed", "not confirmed", "not confirmed"]
    assert recover.judgements[0].status == "confirmed"


def test_gradients_of_nonsense_are_left_out(tmp_path):
    path = write(tmp_path)[-1]
    good = json.loads(path.read_text())
    for value in (None, "x", [1.0], [1.0, math.inf], {}):
        path.write_text(json.dumps({**good, "logistic": {**good["logistic"], "spread": value}}))
        found = read_extras(gather(tmp_path))
        assert found.gradients == {}
        assert [note.split(":")[0] for note in found.notes] == ["gradients.json"]
    assert gradient_verdicts({})[0].shown.count == "not run"


def test_the_repository_s_gradients_are_those_of_the_code():
    stored = read_gradients(Path(__file__).parents[3] / "results" / "gradients" / "gradients.json")
    for setting in SETTINGS:
        for name in ("plain", "fisher", "stable"):
            found = [largest(setting, name, exact) for exact in (False, True)]
            assert found == pytest.approx(stored[setting.name][name], rel=1e-3)
