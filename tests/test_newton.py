"""The Newton loss against its definition: the paper's lemmas and remarks as properties."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad

from cases import EXACT, Case, assert_close, brute_force, brute_force_step, mse, quartic, ripples
from newton_losses import ArgumentError, NewtonLoss, newton_loss, newton_target

KINDS = ["hessian", "fisher"]


def gradient_of(loss: Tensor, y: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, y)
    return gradient


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", EXACT, ids=str)
def test_gradient_is_the_brute_force_step(case: Case, kind: str) -> None:
    y, target = case.draw()
    y.requires_grad_()
    step = brute_force_step(case, y.detach(), target, kind, 0.7)
    loss = NewtonLoss(case.loss, kind, damping=0.7)(y, target)
    assert_close(loss, case.loss(y, target).mean(), 1e-12)
    assert_close(gradient_of(loss, y), step.reshape(y.shape) / len(y), 1e-10)
    found = newton_target(case.loss, y, target, curvature=kind, damping=0.7)
    assert_close(found.target, y.detach() - step.reshape(y.shape), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", EXACT, ids=str)
def test_matrix_free_equals_dense(case: Case, kind: str) -> None:
    y, target = case.draw()
    found = newton_target(case.loss, y, target, curvature=kind, damping=3.0, matrix_free=True)
    # the iterative solver stops at a residual of 1e-6 of the gradient
    assert_close(found.step, brute_force_step(case, y, target, kind, 3.0), 1e-5)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("kind", KINDS)
def test_reductions(kind: str, reduction: str) -> None:
    """A mean and a per-sample loss give the mean's Newton loss, a sum gives the sum's."""
    case = Case(ripples, (5, 3))
    y, target = case.draw()
    y.requires_grad_()
    loss = case.reduced(reduction)
    newton = newton_loss(loss, y, target, curvature=kind, damping=2.0, reduction=reduction)
    factor = 1 if reduction == "sum" else 1 / 5
    assert_close(newton, case.loss(y, target).sum() * factor, 1e-12)
    step = brute_force_step(case, y.detach(), target, kind, 2.0)
    assert_close(gradient_of(newton, y), step * factor, 1e-10)


def test_reduction_is_read_off_a_torch_loss() -> None:
    y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    newton = NewtonLoss(nn.MSELoss(reduction="sum"), damping=1e-9, curvature="hessian")
    # the sum of squares has the Hessian 2I, so the step is y itself
    assert_close(gradient_of(newton(y, torch.zeros(4, 3)), y), y, 1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), rate=st.floats(1e-3, 1.0))
def test_lemma_1_gradient_descent_is_the_same_through_the_split(seed: int, rate: float) -> None:
    """With z* = ȳ − ∇ℓ, a step on ½‖z* − f‖² is a step on ℓ(f)."""
    torch.manual_seed(seed)
    network, x = nn.Linear(4, 3).double(), torch.randn(5, 4, dtype=torch.float64)
    case = Case(ripples, (5, 3))
    target = case.draw(seed)[1]
    plain = torch.autograd.grad(case.loss(network(x), target).sum(), network.parameters())
    # λ so large that C does not matter, and undone by the factor λ: the split with a gradient step
    damping = 1e9
    split = newton_loss(case.loss, network(x), target, damping=damping, value="quadratic", curvature="hessian")
    split = torch.autograd.grad(split * damping * 5, network.parameters())
    for weight, one, other in zip(network.parameters(), plain, split, strict=True):
        assert_close(weight - rate * other, weight - rate * one, 1e-7)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_lemma_2_newton_is_the_same_through_the_split_for_one_output(seed: int) -> None:
    """m = 1, one sample: Newton on θ for ℓ(f(θ)) is Newton on z, then Newton on θ for ½(z* − f(θ))².

    As in the paper's proof, the two agree where f is linear in θ, or in the limit of its chain rule:
    (∂f/∂θ)² ∇²ℓ + ∂²f/∂θ² ∇ℓ has to be invertible; f is a cubic here.
    """
    draws = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    a, b, theta = draws[0] + 2, draws[1] / 5, draws[2]

    def f(theta: Tensor) -> Tensor:
        return a * theta + b * theta**3

    def loss(y: Tensor) -> Tensor:
        return torch.cosh(y - draws[3]).sum(1)

    def newton(objective, at: Tensor) -> Tensor:
        return at - torch.autograd.functional.jacobian(objective, at) / torch.autograd.functional.hessian(objective, at)

    direct = newton(lambda t: loss(f(t).reshape(1, 1)).squeeze(), theta)
    z = newton_target(loss, f(theta).reshape(1, 1), damping=1e-14, curvature="hessian").target.squeeze()
    split = newton(lambda t: (z - f(t)) ** 2 / 2, theta)
    assert_close(split, direct, 1e-8)


def test_mse_collapses_to_itself() -> None:
    case = Case(mse, (5, 3))
    y, target = case.draw()
    y.requires_grad_()
    newton = newton_loss(case.loss, y, target, damping=1e-12, value="quadratic", curvature="hessian")
    assert_close(newton, case.loss(y, target).mean(), 1e-10)
    assert_close(gradient_of(newton, y), (y - target) / 5, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_newton_loss_of_a_newton_loss_is_the_newton_loss(kind: str) -> None:
    case = Case(ripples, (5, 3))
    y, target = case.draw()
    once = newton_target(case.loss, y, target, curvature=kind, damping=2.0)
    twice = newton_target(mse, y, once.target, damping=1e-12, curvature="hessian")
    assert_close(twice.target, once.target, 1e-10)


def test_second_derivative_of_a_newton_loss_is_that_of_its_quadratic() -> None:
    """Differentiating twice through it is not silently zero: ½‖z* − y‖² has the Hessian I/N."""
    case = Case(ripples, (2, 3))
    y, target = case.draw()
    for value in ("loss", "quadratic"):

        def newton(y: Tensor, value: str = value) -> Tensor:
            return newton_loss(case.loss, y, target, value=value, curvature="hessian")

        hessian = torch.autograd.functional.hessian(newton, y)
        assert_close(hessian.reshape(6, 6), torch.eye(6) / 2, 1e-12)


def test_the_loss_can_be_changed_in_place_as_any_other() -> None:
    """`loss /= k`, as loops that accumulate gradients do."""
    case = Case(ripples, (5, 3))
    y, target = case.draw()
    y.requires_grad_()
    newton = NewtonLoss(case.loss, damping=0.7)
    wanted = newton(y, target)
    loss = newton(y, target)
    loss /= 4
    loss += y.square().sum()
    assert_close(loss, wanted / 4 + y.square().sum(), 1e-12)
    assert_close(gradient_of(loss, y), gradient_of(wanted, y) / 4 + 2 * y, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [Case(quartic, (5, 3)), Case(ripples, (3, 7))], ids=str)
def test_large_damping_points_along_the_plain_gradient(case: Case, kind: str) -> None:
    y, target = case.draw()
    gradient = brute_force(case, y, target).gradient
    found = newton_target(case.loss, y, target, curvature=kind, damping=1e10)
    assert_close(found.step * 1e10, gradient, 1e-6)


def test_both_values_have_the_same_gradient() -> None:
    case = Case(ripples, (5, 3))
    y, target = case.draw()
    y.requires_grad_()
    one, other = (newton_loss(case.loss, y, target, value=v, curvature="hessian") for v in ("loss", "quadratic"))
    step = newton_target(case.loss, y, target, curvature="hessian").step
    assert_close(other, step.square().sum(1).mean() / 2, 1e-12)
    assert_close(gradient_of(one, y), gradient_of(other, y), 0)


def test_small_steps_next_to_large_outputs_keep_their_digits() -> None:
    """y − z* in float32 would have lost the step: 1e6 − (1e6 − 1e-4)."""
    y = torch.full((2, 3), 1e6, requires_grad=True)
    newton = newton_loss(lambda y: 1e-4 * y.sum(1), y, damping=1.0, curvature="hessian")
    assert_close(gradient_of(newton, y), torch.full((2, 3), 0.5e-4), 1e-6)


def test_spectrum_reaches_the_solver() -> None:
    y = torch.zeros(1, 1, dtype=torch.float64)
    steps = {}
    for spectrum in ("raw", "absolute", "clip"):
        found = newton_target(lambda y: (y - y.square()).sum(1), y, spectrum=spectrum, damping=1.0, curvature="hessian")
        steps[spectrum] = float(found.step)
    assert steps == pytest.approx({"raw": -1.0, "absolute": 1 / 3, "clip": 1.0})


@pytest.mark.parametrize(
    "options", [{}, {"curvature": "hessian"}, {"curvature": "hessian", "matrix_free": True}], ids=str
)
def test_what_the_loss_itself_learns_gets_the_plain_gradient(options: dict[str, Any]) -> None:
    y, target = Case(ripples, (5, 3)).draw()
    weight = nn.Parameter(torch.tensor(0.7, dtype=y.dtype))

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return ripples(weight * y, target)

    (wanted,) = torch.autograd.grad(loss(y, target).mean(), weight)
    y.requires_grad_()
    (found,) = torch.autograd.grad(NewtonLoss(loss, **options)(y, target), weight)
    assert_close(found, wanted, 1e-12)
    quadratic = NewtonLoss(loss, value="quadratic", **options)(y, target)
    assert torch.autograd.grad(quadratic, weight, allow_unused=True) == (None,)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"curvature": "bogus"}, ArgumentError),
        ({"spectrum": "sideways"}, ArgumentError),
        ({"damping": -1.0}, ArgumentError),
        ({"dampign": 3.0}, TypeError),
    ],
    ids=str,
)
def test_options_are_checked_before_they_are_needed(options: dict[str, object], error: type[Exception]) -> None:
    """Without gradients, and where a module is made: not in the first step of training."""
    y = torch.ones(2, 3)
    with torch.no_grad(), pytest.raises(error):
        newton_loss(quartic, y, y, **options)
    with pytest.raises(error):
        newton_target(quartic, y, y, **options)
    with pytest.raises(error):
        NewtonLoss(quartic, **options)


def test_a_loss_that_learns_without_outputs_that_do_leaves_out_bad_samples() -> None:
    """No Newton step is made; the value and its gradient are those of the finite samples."""
    y, target = Case(quartic, (5, 3)).draw()
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    wanted = quartic(y[1:], target[1:]).mean()
    target[0] = torch.nan
    value = NewtonLoss(lambda y, t: weight + quartic(y, t), "hessian")(y, target)
    assert_close(value, 2 + wanted, 1e-12)
    assert float(torch.autograd.grad(value, weight)[0]) == 1


def test_transforms_see_the_quadratic() -> None:
    """½‖z* − y‖² has the Hessian I, here of the mean of two samples; and forward mode has the gradient's slope."""
    y, target = Case(quartic, (2, 3)).draw()
    newton, leaf, direction = NewtonLoss(quartic, "hessian", 1.0), y.clone().requires_grad_(), torch.ones_like(y)
    hessian = torch.func.hessian(lambda y: newton(y, target))(y)
    assert_close(hessian.reshape(6, 6), torch.eye(6, dtype=torch.float64) / 2, 1e-12)
    newton(leaf, target).backward()
    with forward_ad.dual_level():
        slope = forward_ad.unpack_dual(newton(forward_ad.make_dual(y, direction), target)).tangent
    assert_close(slope, (leaf.grad * direction).sum(), 1e-12)
    target[0] = torch.nan
    gradient, value = torch.func.grad_and_value(lambda y: newton(y, target))(y)
    assert_close(value, quartic(y[1:], target[1:]).mean(), 1e-12)
    assert gradient[0].abs().sum() == 0


def test_the_value_of_one_sample_of_a_loss_that_learns() -> None:
    weight, y = torch.tensor(2.0, requires_grad=True), torch.ones(1, 3, requires_grad=True)
    value = NewtonLoss(lambda y: weight * y.square().sum(1))(y)
    assert value.item() == 6
    assert torch.autograd.grad(value, weight)[0].item() == 3


def test_one_number_has_a_value_without_gradients_too() -> None:
    with torch.no_grad():
        assert NewtonLoss(lambda y: y.square().sum(1))(torch.full((1, 1), 3.0)).item() == 9


def test_an_infinite_value_is_left_out_of_the_mean() -> None:
    y = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    newton = NewtonLoss(lambda y: torch.where(y[:, 0] == 2, torch.inf, y[:, 0]), check=False)
    with torch.no_grad():
        assert newton(y).item() == 2
    assert newton(y).item() == 2
