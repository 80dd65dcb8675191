"""Are second derivatives right? They are compared with finite differences of the gradient, at several lengths.

A backward pass that somebody wrote by hand, or that holds on to a detached solution, can have a right gradient and a
wrong second derivative, without an error. This is one comparison for the first call of a Newton loss; `diagnose`
measures it along more directions.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._differences import MOVES, beside, excess, least, unit_of
from .._random import seeded
from .._targets import cast
from .._unchanged import leaves_unchanged, same_draws
from ._derivative_errors import names_of
from ._derivatives import custom_operators, second_products
from ._loss_contract import Loss, Total, flatten_outputs, full_precision, make_total, outside_inference_mode
from ._options import Reduction, resolve_reduction

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
    for is_wide in (True, False):
        try:
            own, at = (cast(targets, torch.float64), flat.double()) if is_wide else (targets, flat)
            return _compared(make_total(loss, y.shape, own, reduction), at, loss)
        except Exception:  # the loss is the caller's: it may hold float32 tensors, or refuse outputs beyond a range
            continue
    return None


def _compared(total: Total, flat: Tensor, loss: object) -> WrongSecond | None:
    unit = unit_of(flat)
    drawn = torch.randn(1, flat.shape[1], generator=torch.Generator().manual_seed(0)).to(flat)
    direction = torch.nn.functional.normalize(drawn, dim=1) * unit
    asked = Asked(total, loss)
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


class Asked(NamedTuple):
    """A loss, asked with the same random numbers each time."""

    total: Total
    loss: object

    def call(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs as a leaf, the total and the values."""
        with torch.enable_grad(), full_precision(flat), seeded(0, flat.device), same_draws(self.loss):
            leaf = flat.detach().clone().requires_grad_()
            found, value = self.total(leaf)
            return leaf, found.sum(), value

    def gradient(self, flat: Tensor) -> Tensor:
        leaf, summed, _ = self.call(flat)
        (found,) = torch.autograd.grad(summed, leaf)
        return found

    def product(self, flat: Tensor, direction: Tensor) -> Tensor:
        with full_precision(flat), seeded(0, flat.device), same_draws(self.loss):
            return second_products(self.total, flat, self.loss)[1](direction)[0].detach()

    def operators(self, flat: Tensor) -> list[str]:
        return names_of(custom_operators(self.call(flat)[1]))


def _errors(asked: Asked, flat: Tensor, unit: Tensor, direction: Tensor) -> Tensor:
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


def _is_gradient_of_value(asked: Asked, flat: Tensor, direction: Tensor) -> bool:
    """Whether the gradient is that of the value; not where a part of the loss is detached on purpose."""
    slope = (asked.gradient(flat) * direction).sum()
    epsilon = torch.finfo(flat.dtype).eps

    def error(move: float) -> Tensor:
        up, down = (asked.call(flat + sign * move * direction)[1].detach() for sign in (1, -1))
        observed = (up - down) / (2 * move)
        rounding = 8 * epsilon * up.abs().maximum(down.abs()) / move
        return excess((observed - slope).abs(), rounding, observed.abs().maximum(slope.abs())).reshape(1)

    return bool((least(error(move) for move in MOVES) <= FAR_OFF).all())
