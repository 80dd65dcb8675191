"""Are second derivatives right? They are compared with finite differences of the gradient, at several lengths.

A backward pass that somebody wrote by hand, or that holds on to a detached solution, can have a right gradient and a
wrong second derivative, without an error. This is one comparison for the first call of a Newton loss; `diagnose`
measures it along more directions.
"""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._differences import MOVES, beside, excess, least, unit_of
from .._random import seeded
from .._targets import cast
from .._unchanged import leaves_unchanged
from ._derivative_errors import custom_operators, names_of
from ._derivatives import second_products
from ._loss_contract import Loss, Total, flatten_outputs, full_precision, make_total, name_of, outside_inference_mode
from ._options import Reduction, resolve_reduction
from ._separability import is_sum

# A second derivative is wrong if it is off by this much, for this share of the samples. Those that are known to be
# wrong in public packages are off by 24 to 77 % for all of them.
FAR_OFF, MANY = 0.1, 0.25


class WrongSecond(NamedTuple):
    """How far second derivatives are off (the median), for which share of the samples, and the custom operators."""

    error: float
    share: float
    operators: list[str]


@outside_inference_mode
@leaves_unchanged
def wrong_second_derivative(
    loss: Loss, y: Tensor, *targets: Any, reduction: Reduction | None = None
) -> WrongSecond | None:
    """Whether the second derivatives of `loss` differ from those of its gradient; `None` where nothing was found.

    In float64 where the loss takes that. Nothing is found at kinks and ties, of a loss that draws other numbers each
    time it is called, of one that detaches a part of itself on purpose, so that its gradient is not that of its value,
    and where the loss does not take outputs that differ a little from those of the network.
    """
    flat = flatten_outputs(y)
    if flat.numel() == 0:
        return None
    reduction = resolve_reduction(loss, reduction)
    single = make_total(loss, y.shape, targets, reduction)
    for total, at in (
        (make_total(loss, y.shape, cast(targets, torch.float64), reduction), _doubled(flat)),
        (single, flat),
    ):
        if at is None:
            continue
        try:
            return _compared(total, at, loss)
        except Exception:  # the loss is the caller's: it may hold float32 tensors, or refuse outputs beyond a range
            continue
    return None


def warn_of_the_loss(
    loss: Loss, y: Tensor, targets: tuple[Any, ...], reduction: Reduction | None, curvature: str
) -> None:
    """In the first call of a Newton loss: second derivatives that are wrong or zero, and a sum taken for a mean."""
    found = wrong_second_derivative(loss, y, *targets, reduction=reduction) if curvature == "hessian" else None
    if found is None and curvature == "hessian" and has_no_curvature(loss, y, *targets, reduction=reduction):
        warnings.warn(
            f"NewtonLoss: the Hessian of the loss {name_of(loss)} is zero at all of these outputs, as that of an L1 or "
            "hinge loss is between its kinks. Only the damping acts: the step is the plain gradient in another unit. "
            "curvature='fisher' has something to work with.",
            stacklevel=6,
        )
    # Behind this are two methods of the module and two of torch's own: then the line that called it.
    if found is not None:
        blamed = "a part that is detached, or rounding"
        if found.operators:
            blamed = f"the backward pass of {' and '.join(found.operators)}"
        warnings.warn(
            f"NewtonLoss: the second derivatives of the loss {name_of(loss)} are about {100 * found.error:.0f} % off, "
            f"for {100 * found.share:.0f} % of the samples: they are not those of its gradient. The likely reason is "
            f"{blamed}. curvature='fisher' needs first derivatives only.",
            stacklevel=6,
        )
    if reduction is None and is_sum(loss, y, *targets):
        warnings.warn(
            f"NewtonLoss: the loss {name_of(loss)} returns a scalar that doubles when every sample is given twice. It "
            "is a sum over the batch, and is taken for a mean: pass reduction='sum'. (reduction='mean' keeps it.)",
            stacklevel=6,
        )


@outside_inference_mode
@leaves_unchanged
def has_no_curvature(loss: Loss, y: Tensor, *targets: Any, reduction: Reduction | None = None) -> bool:
    """Whether the Hessian of every sample is exactly zero, where gradients are not; a random direction shows it.

    >>> has_no_curvature(lambda y: y.abs().sum(1), torch.tensor([[1.0, -2.0]]))
    True
    """
    flat = flatten_outputs(y)
    if flat.numel() == 0:
        return False
    asked = _Asked(make_total(loss, y.shape, targets, resolve_reduction(loss, reduction)), loss)
    direction = torch.randn(1, flat.shape[1], generator=torch.Generator().manual_seed(0)).to(flat)
    gradient = asked.gradient(flat)
    is_usable = torch.isfinite(gradient).all(1)
    try:
        product = asked.product(flat, direction)
    except Exception:  # without a second derivative the call itself will say so
        return False
    return bool((gradient[is_usable] != 0).any()) and not bool(product[is_usable].any())


def _doubled(flat: Tensor) -> Tensor | None:
    return None if flat.device.type == "mps" else flat.double()


def _compared(total: Total, flat: Tensor, loss: object) -> WrongSecond | None:
    unit = unit_of(flat)
    drawn = torch.randn(1, flat.shape[1], generator=torch.Generator().manual_seed(0)).to(flat)
    direction = torch.nn.functional.normalize(drawn, dim=1) * unit
    asked = _Asked(total, loss)
    first = asked.gradient(flat)
    if not torch.allclose(first, asked.gradient(flat), equal_nan=True):
        return None  # other numbers each time
    error = _errors(asked, flat, unit, direction)
    for seed in (1, 2):
        if not bool((error > FAR_OFF).any()):
            return None
        error = torch.fmin(error, _errors(asked, beside(flat, unit, seed), unit, direction))
    known = error[torch.isfinite(error)]
    wrong = known > FAR_OFF
    if not len(known) or float(wrong.double().mean()) < MANY:
        return None
    operators = asked.operators(flat)
    if not operators and not _is_gradient_of_value(asked, flat, direction):
        return None
    return WrongSecond(float(known[wrong].median()), float(wrong.double().mean()), operators)


class _Asked(NamedTuple):
    """A loss, asked with the same random numbers each time."""

    total: Total
    loss: object

    def call(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs as a leaf, the total and the values."""
        with torch.enable_grad(), full_precision(flat), seeded(0, flat.device):
            leaf = flat.detach().clone().requires_grad_()
            found, value = self.total(leaf)
            return leaf, found.sum(), value

    def gradient(self, flat: Tensor) -> Tensor:
        leaf, summed, _ = self.call(flat)
        (found,) = torch.autograd.grad(summed, leaf)
        return found

    def product(self, flat: Tensor, direction: Tensor) -> Tensor:
        with full_precision(flat), seeded(0, flat.device):
            return second_products(self.total, flat, self.loss)[1](direction)[0].detach()

    def operators(self, flat: Tensor) -> list[str]:
        return names_of(custom_operators(self.call(flat)[1]))


def _errors(asked: _Asked, flat: Tensor, unit: Tensor, direction: Tensor) -> Tensor:
    """Relative errors `(N,)` of each sample's product with the direction, the least of all moves."""
    predicted = asked.product(flat, direction) * unit
    epsilon = torch.finfo(flat.dtype).eps
    slope = torch.linalg.vector_norm(asked.gradient(flat) * unit, dim=1)
    size = torch.linalg.vector_norm(predicted, dim=1)
    known = size[torch.isfinite(size)]
    # What is tiny beside the gradient, or beside the other samples, is rounding.
    floor = (epsilon**0.5 * slope).maximum(1e-3 * known.square().mean().sqrt() if len(known) else size.new_zeros(()))

    def error(move: float) -> Tensor:
        up, down = (asked.gradient(flat + sign * move * direction) * unit for sign in (1, -1))
        observed = (up - down) / (2 * move)
        scale = torch.linalg.vector_norm(observed, dim=1).maximum(size).maximum(floor)
        return excess(torch.linalg.vector_norm(observed - predicted, dim=1), 8 * epsilon * slope / move, scale)

    return least(error(move) for move in MOVES)


def _is_gradient_of_value(asked: _Asked, flat: Tensor, direction: Tensor) -> bool:
    """Whether the gradient is that of the value; not where a part of the loss is detached on purpose."""
    slope = (asked.gradient(flat) * direction).sum()
    epsilon = torch.finfo(flat.dtype).eps

    def error(move: float) -> Tensor:
        up, down = (asked.call(flat + sign * move * direction)[1].detach() for sign in (1, -1))
        observed = (up - down) / (2 * move)
        rounding = 8 * epsilon * up.abs().maximum(down.abs()) / move
        return excess((observed - slope).abs(), rounding, observed.abs().maximum(slope.abs())).reshape(1)

    return bool((least(error(move) for move in MOVES) <= FAR_OFF).all())
