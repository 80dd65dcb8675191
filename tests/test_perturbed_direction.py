"""A Fenchel-Young loss says where it maximises what should be minimised, or the other way round."""

import pytest
import torch

from newton_losses import NewtonLoss
from newton_losses.perturbed import FenchelYoungLoss
from newton_losses.smoothing import Cauchy, Gaussian, Gumbel, Laplace, Logistic, StudentT
from on_cuda import no_synchronisation
from test_perturbed import cheapest_two, dearest_two, generator

DISTRIBUTIONS = [Gaussian(), Gumbel(), Laplace(), Logistic(), StudentT(), Cauchy()]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=repr)
@pytest.mark.parametrize("minimize", [False, True])
def test_the_wrong_direction_warns_once_and_names_the_option(minimize, distribution):
    solver = dearest_two if minimize else cheapest_two
    y = torch.randn(16, 6, generator=generator(35)).requires_grad_()
    wanted = solver(torch.randn(16, 6, generator=generator(36)))
    loss = FenchelYoungLoss(solver, 0.5, 3, minimize=minimize, distribution=distribution, generator=generator(37))
    with pytest.warns(UserWarning, match=rf"mean value is -.* pass minimize={not minimize}") as caught:
        loss(y, wanted).mean().backward()
    assert caught[0].filename == __file__
    loss(y, wanted)  # a second warning would be an error


@pytest.mark.parametrize("curvature", ["fisher", "hessian"])
def test_a_newton_loss_warns_of_the_wrong_direction_too(curvature):
    y = torch.randn(16, 6, generator=generator(38)).requires_grad_()
    newton = NewtonLoss(FenchelYoungLoss(dearest_two, 0.5, 3, generator=generator(39)), curvature)
    with pytest.warns(UserWarning, match="pass minimize=False") as caught:
        newton(y, cheapest_two(y))
    assert caught[0].filename == __file__


def test_the_wrong_direction_is_found_from_single_draws_of_single_samples():
    loss = FenchelYoungLoss(dearest_two, 0.5, 1, generator=generator(40))
    y = torch.randn(30, 1, 6, generator=generator(41))
    with pytest.warns(UserWarning, match="pass minimize=False"):
        list(map(loss, y, map(cheapest_two, y)))


def test_the_direction_is_looked_at_in_training_alone():
    y = torch.randn(16, 6, generator=generator(42))
    FenchelYoungLoss(dearest_two, 0.5, 3).eval()(y, cheapest_two(y))


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, StudentT(0.5)], ids=repr)
def test_the_right_direction_never_warns(distribution):
    """Few draws, costs of any size, wanted solutions from the best to the worst, and trainings that arrive at them."""
    noise = generator(43)
    for number in range(200):
        count, draws = (1, 2, 16)[number % 3], (1, 2, 3, 10)[number % 4]
        minimize, size, offset = number % 2 == 0, 10.0 ** (number % 5 - 2), (0.0, 100.0)[number // 2 % 2]
        solver = cheapest_two if minimize else dearest_two
        y = (size * torch.randn(count, 5, generator=noise) + offset).requires_grad_()
        far = (0.0, 0.1, 10.0)[number // 3 % 3]
        wanted = solver(y.detach() + far * size * torch.randn(count, 5, generator=noise))
        settings = {"minimize": minimize, "distribution": distribution, "generator": noise}
        loss = FenchelYoungLoss(solver, (0.1, 1.0)[number // 7 % 2], draws, **settings)
        for _ in range(6):  # a warning is an error
            (gradient,) = torch.autograd.grad(loss(y, wanted).sum(), y)
            y = (y - size * gradient).detach().requires_grad_()


def test_a_solver_that_rounds_its_costs_does_not_warn():
    """Where all wanted solutions are the best, only its errors are left, and none is above zero."""

    def rounded(costs):
        return cheapest_two((1000 * costs).round())

    y = 1 + 0.001 * torch.rand(64, 6, dtype=torch.float64, generator=generator(44))
    FenchelYoungLoss(rounded, 1e-6, 3, generator=generator(45))(y, cheapest_two(y))


@pytest.mark.gpu
def test_on_a_gpu_only_the_first_call_waits():
    y = torch.randn(16, 6, device="cuda", requires_grad=True)
    loss = FenchelYoungLoss(dearest_two, 0.5, 3)
    wanted = cheapest_two(y.detach())
    with pytest.warns(UserWarning, match="pass minimize=False"):
        loss(y, wanted)
    inconclusive = FenchelYoungLoss(cheapest_two, 1e-6, 3)
    inconclusive(y, wanted)
    with no_synchronisation():
        inconclusive(y, wanted)
        inconclusive.expand(y, wanted)
