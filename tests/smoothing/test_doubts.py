"""What the first call of a Newton loss asks of a black box: does it mix samples, is the target a solution?"""

import random
import warnings
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import newton_losses as nl
from newton_losses.perturbed import FenchelYoungLoss
from newton_losses.smoothing import SmoothedLoss


def pick(costs: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(costs.argmin(-1), costs.shape[-1]).float()


def regret(y: Tensor, costs: Tensor) -> Tensor:
    return (pick(y) * costs).sum(1)


def outputs() -> tuple[Tensor, Tensor]:
    y, costs = torch.rand(2, 20, 6, generator=torch.Generator().manual_seed(0))
    return y.requires_grad_(), costs


def test_a_black_box_that_mixes_samples_is_an_error() -> None:
    y, costs = outputs()
    loss = SmoothedLoss(lambda y, costs: regret(y, costs) - regret(y, costs).mean(), scale=0.3, num_samples=4)
    with pytest.raises(nl.SeparabilityError, match="mixes the samples"):
        nl.NewtonLoss(loss)(y, costs)
    assert not nl.diagnose(loss, y.detach(), costs).separable


@pytest.mark.parametrize("seed", range(4))
def test_a_solver_that_forgot_its_dimension_is_one_as_well(seed: int) -> None:
    """Only the row of the smallest cost changes others: whichever that is."""
    y = torch.rand(20, 6, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    loss = FenchelYoungLoss(lambda costs: (costs == costs.min()).float(), scale=0.3, num_samples=4)
    with pytest.raises(nl.SeparabilityError, match="mixes the samples"):
        nl.NewtonLoss(loss)(y, pick(y.detach()))
    assert nl.diagnose(loss, y.detach(), pick(y.detach())).verdict == "fix"


@pytest.mark.parametrize(
    "loss",
    [
        SmoothedLoss(regret, scale=0.3, num_samples=4),
        SmoothedLoss(lambda y, costs: regret(y, costs) + torch.rand(len(y)), scale=0.3, num_samples=4),  # noise
        SmoothedLoss(
            lambda y, costs: regret(y, costs) + random.random(), scale=0.3, num_samples=4
        ),  # noise of Python's
        SmoothedLoss(lambda y, costs: regret(y, costs) + 1e-6 * y.mean(), scale=0.3, num_samples=4),  # rounding
    ],
)
def test_what_keeps_samples_apart_is_said_nothing_of(loss: SmoothedLoss) -> None:
    y, costs = outputs()
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss.doubts(y, costs)
        assert torch.equal(torch.get_rng_state(), state)
        nl.NewtonLoss(loss)(y, costs=costs)
        nl.NewtonLoss(FenchelYoungLoss(pick, scale=0.3, num_samples=4))(y, pick(costs))
        nl.NewtonLoss(loss)(y[:1], costs[:1])  # of one sample nothing can be known


@pytest.mark.parametrize(
    ("target", "is_odd"),
    [
        (lambda costs: costs, True),
        (lambda costs: pick(costs) - 1, True),
        (pick, False),
        (lambda costs: (pick(costs) + pick(-costs)) / 2, False),  # a mean of solutions
        (lambda costs: pick(costs) * (torch.arange(len(costs)) % 3 > 0)[:, None], False),  # some have nothing to choose
    ],
)
def test_true_costs_in_the_place_of_a_solution_are_warned_of(target: Any, is_odd: bool) -> None:
    y, costs = outputs()
    loss = FenchelYoungLoss(pick, scale=0.3, num_samples=4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nl.NewtonLoss(loss)(y, target(costs))
    said = [one for one in caught if "no solution of the solver" in str(one.message)]
    assert len(said) == is_odd
    assert all(one.filename == __file__ for one in said)
    report = nl.diagnose(loss, y.detach(), target(costs))
    assert any("no solution of the solver" in reason for reason in report.reasons) == is_odd


def test_solutions_of_several_sizes_may_sum_up_to_anything_between_their_bounds() -> None:
    y, _ = outputs()
    loss = FenchelYoungLoss(lambda costs: (costs < 0.5).float(), scale=0.3, num_samples=4)
    assert loss.doubts(y, torch.ones_like(y)) == []
    assert len(loss.doubts(y, 2 * torch.ones_like(y))) == 1


def test_one_decision_per_sample_needs_no_second_dimension() -> None:
    y = torch.linspace(-1, 1, 8)
    loss = FenchelYoungLoss(lambda costs: costs < 0, scale=0.3, num_samples=4)
    assert loss.doubts(y, (y < 0.5).float()) == []
    assert len(loss.doubts(y, 10 + y)) == 1
    flat, column = (nl.NewtonLoss(loss)(one.requires_grad_(), (one < 0.5)) for one in (y.clone(), y[:, None].clone()))
    assert flat.shape == column.shape == ()


def test_one_solution_for_all_says_nothing_of_the_others() -> None:
    """An untrained network may find nothing worth its cost, and then no sum and no bound is known."""
    y, costs = outputs()
    loss = FenchelYoungLoss(lambda values: pick(-values) * (values > 0), scale=0.3, num_samples=4, minimize=False)
    assert loss.doubts(y - 2, pick(costs)) == []


def test_a_solver_with_one_memory_for_all_solutions_is_checked_too() -> None:
    solutions = numpy.zeros((20, 6))

    def mixing(costs: Tensor) -> Tensor:
        numpy.equal(costs, costs.min(), out=solutions)
        return torch.from_numpy(solutions)

    y = outputs()[0].detach().double()
    with pytest.raises(nl.SeparabilityError, match="mixes the samples"):
        FenchelYoungLoss(mixing, scale=0.3, num_samples=4).doubts(y, pick(y))
