"""What the first call of a Newton loss says of the loss and its targets, and what it keeps silent about."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from newton_losses import ArgumentError, NewtonLoss, SeparabilityError, ShapeError, newton_loss
from newton_losses.sorting import SortingLoss


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def squares(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().sum(1)


# Who learns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["by position", "by name", "in a dict"])
def test_a_target_with_a_gradient_is_told_that_it_gets_no_newton_step(form: str) -> None:
    y, other = leaf(8, 3), leaf(8, 3, seed=1)
    loss: Any = (lambda y, t: squares(y, t["wanted"])) if form == "in a dict" else squares
    newton = NewtonLoss(loss)
    targets = {"by position": (other,), "by name": (), "in a dict": ({"wanted": other},)}[form]
    named = {"target": other} if form == "by name" else {}
    with pytest.warns(UserWarning, match=r"target.* requires a gradient.*torch\.cat") as said:
        newton(y, *targets, **named)
    assert len(said) == 1
    assert said[0].filename == __file__  # the line that called it
    newton(y, {"wanted": other} if form == "in a dict" else other)  # said once
    with torch.no_grad():
        NewtonLoss(squares)(y, other)


def test_swapped_arguments_are_answered_with_the_order() -> None:
    """No error: a network may be frozen, and a target learn."""
    for loss in (squares, SortingLoss("softsort")):
        with pytest.warns(UserWarning, match=r"swapped\? Call newton\(outputs, target\)"):
            NewtonLoss(loss)(leaf(8, 3).detach(), leaf(8, 3, seed=1))
    assert NewtonLoss(squares)(leaf(8, 3).detach(), leaf(8, 3, seed=1).detach()) > 0  # nobody learns


# A gradient of zero --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [lambda y, t: (y.round() - t).abs().sum(1), lambda y, t: (y.sign() * t).sum(1).mean()])
def test_a_loss_in_steps_is_told_that_it_teaches_nothing(loss: Any) -> None:
    newton, y, target = NewtonLoss(loss), leaf(16, 3), leaf(16, 3, seed=1).detach()
    with pytest.warns(UserWarning, match=r"exactly zero at all of these outputs.*SmoothedLoss"):
        newton(y, target)
    newton(y, target)


def test_a_loss_that_has_nothing_to_correct_yet_is_left_in_peace() -> None:
    """Each margin is kept, or nothing can be compared: the gradient is zero, and so is the value."""
    y = leaf(16, 3)
    for loss in (
        lambda y: torch.relu(y.abs() - 100).sum(1),
        lambda y: (y * torch.zeros(3)).sum(1),
        lambda y: torch.where(y > torch.nan, y, torch.nan).sum(1),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            NewtonLoss(loss, on_nonfinite="ignore")(y)


# Errors that say what to do ------------------------------------------------------------------------------------------


def counted(y: Tensor, t: Tensor) -> Tensor:
    return (y.detach() > t).sum(1)


MISTAKES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], type[Exception], str]] = {
    "a count": (counted, (8, 3), (8, 3), ArgumentError, r"a count or an accuracy\?.*SmoothedLoss"),
    "item": (lambda y, t: squares(y, t).mean().item(), (8, 3), (8, 3), ArgumentError, r"returned a float.*\.item\(\)"),
    "a tuple": (lambda y, t: (squares(y, t), 1), (8, 3), (8, 3), ArgumentError, "a tuple. Return the loss alone"),
    "one entry": (lambda y, t: squares(y, t).sum().reshape(1), (8, 3), (8, 3), ShapeError, r"\.squeeze\(\)"),
    "a square": (lambda y, t: (y - t).square(), (8, 1), (8,), ShapeError, r"outputs of shape \(8, 1\) broadcast"),
    "columns": (lambda y, t: (y - t).abs().mean(1), (8,), (8, 1), SeparabilityError, r"target\.squeeze\(1\)"),
    "samples": (lambda y, t: squares(y, t) - y.mean(), (8, 3), (8, 3), SeparabilityError, r"shape \(1, N, \.\.\.\)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISTAKES)
def test_an_error_says_what_to_do(kind: str) -> None:
    loss, outputs, targets, error, words = MISTAKES[kind]
    with pytest.raises(error, match=words):
        NewtonLoss(loss)(leaf(*outputs), leaf(*targets, seed=1).detach())


def test_numpy_within_a_loss_is_not_blamed_on_the_targets() -> None:
    with pytest.raises(RuntimeError) as raised:
        NewtonLoss(lambda y: torch.from_numpy(np.abs(y.numpy())).sum(1))(leaf(4, 3))
    assert "NumPy has no gradients" in raised.value.__notes__[0]


def test_numbers_that_a_loss_draws_are_no_steps() -> None:
    noise = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NewtonLoss(lambda y, t: (y * 0).sum(1) + torch.from_numpy(noise.random(8)).float())(
            leaf(8, 3), leaf(8, 3).detach()
        )


def masked(y: Tensor, target: Tensor, mask: Any) -> Tensor:
    return ((y - target).square() * torch.as_tensor(mask)).sum(1)


MASKS: dict[str, tuple[Any, str]] = {
    "float": (torch.ones(4, 3), r"torch\.float32 of shape \(4, 3\)"),
    "bytes": (torch.ones(4, 3, dtype=torch.uint8), r"torch\.uint8 of shape"),
    "NumPy": (np.ones((4, 3), dtype=bool), r"a NumPy array of shape"),
    "a row": (torch.ones(1, 3, dtype=torch.bool), r"torch\.bool of shape \(1, 3\).* here \(4, 3\)"),
}


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("form", MASKS)
def test_a_mask_that_only_the_loss_takes_for_one(form: str, by_name: bool) -> None:
    mask, words = MASKS[form]
    newton, y, target = NewtonLoss(masked), leaf(4, 3), leaf(4, 3, seed=1).detach()
    with pytest.warns(UserWarning, match=words) as told:
        newton(y, target, mask=mask) if by_name else newton(y, target, mask)
    assert [one.filename for one in told] == [__file__]


@pytest.mark.parametrize("kind", ["a proper mask", "weights", "one entry per sample"])
def test_a_mask_about_which_there_is_nothing_to_say(kind: str) -> None:
    shape = (4,) if kind == "one entry per sample" else (4, 3)
    mask = torch.rand(4, 3) if kind == "weights" else torch.ones(shape, dtype=torch.bool)
    loss = masked if mask.ndim == 2 else (lambda y, target, mask: squares(y, target) * mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NewtonLoss(loss)(leaf(4, 3), leaf(4, 3, seed=1).detach(), mask=mask)


def test_an_option_that_is_no_truth_is_refused() -> None:
    with pytest.raises(ArgumentError, match="matrix_free='yes'; it is True, False or None"):
        NewtonLoss(squares, "hessian", matrix_free="yes")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="check='yes'; it is True or False"):
        NewtonLoss(squares, check="yes")  # type: ignore[arg-type]


def test_a_newton_loss_of_a_newton_loss_is_refused() -> None:
    newton = NewtonLoss(squares)
    with pytest.raises(ArgumentError, match=r"NewtonLoss: the loss is a NewtonLoss.* newton\.loss"):
        NewtonLoss(newton)
    with pytest.raises(ArgumentError, match="newton_loss: the loss is a NewtonLoss"):
        newton_loss(newton, leaf(4, 3), leaf(4, 3).detach())
