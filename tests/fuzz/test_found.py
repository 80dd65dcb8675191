"""What fuzzing found once, each as the smallest call that showed it."""

import pytest
import torch

import newton_losses as nl
from cases import assert_close


@pytest.mark.parametrize("thing", [None, 1.5, "text", [1.0]])
def test_a_module_called_with_something_that_is_no_tensor(thing: object) -> None:
    with pytest.raises(nl.ArgumentError, match="have to be a tensor"):
        nl.NewtonLoss(lambda y: y.square().sum(1))(thing)


def test_a_fisher_many_orders_above_the_damping_where_there_are_fewer_samples_than_outputs() -> None:
    """g − g·‖g‖²/(‖g‖² + λ) has no digit left at ‖g‖² = 1e20, and divided by λ was anything at all."""
    y = torch.full((1, 3), 1e10, dtype=torch.float64)
    found = nl.newton_target(lambda y: y.square().sum(1) / 2, y, curvature="fisher", damping=1e-3)
    assert_close(found.step, y / (3e20 + 1e-3), 1e-12)
    leaf = y.clone().requires_grad_()
    nl.inject_fisher(leaf, 1e-3).backward(y)
    assert_close(leaf.grad, y / (3e20 + 1e-3), 1e-12)


def test_the_value_is_there_where_the_system_has_no_solution() -> None:
    """It was 0 in training and 16 in evaluation."""
    y = torch.full((2, 1), 4.0, requires_grad=True)
    newton = nl.NewtonLoss(lambda y: -y.square().sum(1), damping=2.0)  # H = −2 exactly
    assert_close(newton(y), torch.tensor(-16.0), 0)
    with torch.no_grad():
        assert_close(newton(y), torch.tensor(-16.0), 0)


def test_an_infinite_output_at_which_the_loss_is_finite() -> None:
    y = torch.tensor([[torch.inf], [0.0]], requires_grad=True)
    loss = nl.newton_loss(lambda y: y.sigmoid().sum(1), y, damping=1.0)
    loss.backward()
    assert loss.item() == 0.75
    assert torch.isfinite(y.grad).all()
