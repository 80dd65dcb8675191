"""Solvers with walls among their costs, and with data of their own beside them."""

import pytest
import torch

from newton_losses import ArgumentError, NewtonLoss, diagnose
from newton_losses.perturbed import FenchelYoungLoss, Perturbed
from newton_losses.smoothing import Gaussian
from test_perturbed import ESTIMATORS, cheapest_two, dearest_two, generator


@pytest.mark.parametrize("hessian", ESTIMATORS)
@pytest.mark.parametrize("minimize", [False, True])
def test_a_wall_that_no_solution_enters_costs_nothing(hessian, minimize):
    costs = torch.randn(5, 4, generator=generator(9))
    solver, wall = (cheapest_two, torch.inf) if minimize else (dearest_two, -torch.inf)
    wanted = solver(torch.randn(5, 4, generator=generator(10))).float()
    walled = torch.nn.functional.pad(costs, (0, 1), value=wall)

    class SameNoise(Gaussian):
        def sample(self, uniform):
            noise = torch.randn(6, 5, 4, generator=generator(11))
            return noise if uniform.shape[-1] == 4 else torch.nn.functional.pad(noise, (0, 1))

    loss = FenchelYoungLoss(solver, 0.5, 6, minimize=minimize, hessian=hessian, distribution=SameNoise())
    expected = loss.expand(costs, wanted)
    found = loss.expand(walled, torch.nn.functional.pad(wanted, (0, 1)))
    torch.testing.assert_close(found.value, expected.value)
    torch.testing.assert_close(found.gradient[:, :4], expected.gradient)
    torch.testing.assert_close(found.curvature.dense()[:4, :4], expected.curvature.dense())
    assert (found.gradient[:, 4] == 0).all()


def test_a_wall_that_every_solution_enters_is_in_no_hessian():
    """The value is finite where the wanted solution enters it as well, and its optimum is not."""
    costs = torch.randn(5, 4, generator=generator(9))
    wanted = cheapest_two(torch.randn(5, 4, generator=generator(10))).float()
    walled = costs.clone()
    walled[2] = torch.tensor([torch.inf, torch.inf, torch.inf, 0.0])
    wanted[2] = cheapest_two(walled[2:3])[0].float()
    found = FenchelYoungLoss(cheapest_two, 0.5, 6, hessian="optimal_value", generator=generator(11)).expand(
        walled, wanted
    )
    assert found.value.isfinite().all()
    assert found.curvature.dense().isfinite().all()


def knapsacks(values, room):
    """Every sample takes its own number of the dearest items."""
    return values.argsort(-1, descending=True).argsort(-1) < room[:, None]


def test_what_a_solver_takes_beside_the_costs_is_passed_on_for_every_draw():
    values, room = torch.randn(12, 5, generator=generator(12)), torch.arange(12) % 4 + 1
    wanted = knapsacks(torch.randn(12, 5, generator=generator(13)), room)

    def results(solver, *beside, **named):
        loss = FenchelYoungLoss(solver, 0.5, 3, minimize=False, variance_reduction="value", generator=generator(14))
        layer = Perturbed(solver, 0.5, 3, minimize=False, generator=generator(14))
        found = loss.expand(values, wanted, *beside, **named)
        layer_found = layer(values, *beside, **named), layer.jacobian(values, *beside, **named)
        return found.value, found.gradient, found.curvature.dense(), *layer_found

    expected = results(lambda costs: knapsacks(costs, room.repeat(len(costs) // 12)))
    torch.testing.assert_close(results(knapsacks, room), expected)
    torch.testing.assert_close(results(knapsacks, room=room), expected)
    loss = FenchelYoungLoss(knapsacks, 0.5, 3, minimize=False)
    NewtonLoss(loss, "hessian")(values.requires_grad_(), wanted, room=room).backward()
    assert diagnose(loss, values.detach(), wanted, room).separable
    with pytest.raises(ArgumentError, match=r"knapsacks\(values, room\) was called with.*missing a required argument"):
        loss(values, wanted)
