"""What the first call of a Newton loss looks at: `check_loss`, and what else is odd about a loss and its targets."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._arguments import WithTargets, each_target, name_of, names_mask, outputs_mask
from .._targets import changed, own_copy, traces
from .._unchanged import leaves_unchanged
from .._warnings import warn
from ._expansion import Expandable
from ._loss_contract import Loss, flatten_outputs, make_total, outside_inference_mode
from ._options import Reduction, resolve_reduction
from ._second_check import Asked, wrong_second_derivative
from ._separability import check_loss, is_sum


def check_first_call(
    loss: Any,
    y: Tensor,
    targets: tuple[Any, ...],
    mask: Tensor | None,
    reduction: Reduction | None,
    curvature: str,
) -> bool:
    """Raise and warn of all that can be seen in the first call; return whether the batch could tell, as `check_loss`.

    The loss is called a few times, with targets of its own: if it changes them, the caller's stay as they are. One that
    brings its own expansion may bring its own questions, a method `doubts(y, *targets)` that raises or returns words.
    """
    check_who_learns(loss, y, targets)
    warn_of_the_mask(loss, y, targets)
    if isinstance(loss, Expandable):
        for doubt in doubts_of(loss, y, targets):
            warn(doubt)
        return True
    own, copies = with_own_targets(loss, targets)
    given = _all_targets(own, copies)
    before = traces(given)
    changes = (
        f"NewtonLoss: the loss {name_of(loss)} changes its targets, which happens again whenever it is called, and it "
        "may be called more than once per batch. Let it work on a copy: target.clone(), dict(batch)."
    )
    try:
        could_tell = check_loss(own, y, *copies, reduction=reduction, mask=mask)
        warn_of_the_loss(own, y, copies, reduction, curvature)
        named = None if mask is not None else likely_mask(own, y, *copies, reduction=reduction)
    except Exception as error:
        if traces(given) != before:
            error.add_note(changes)
        raise
    if traces(given) != before:
        warn(changes)
    if named is not None:
        warn(
            f"NewtonLoss: {named} looks like a mask: where it is False, the gradient is zero. If these outputs do not "
            "exist, such as the padding of a list, pass it as mask= as well: else they count in the curvature, and get "
            "a step. (An argument of the loss that is called mask needs no such help.)"
        )
    return could_tell


def doubts_of(loss: object, y: Tensor, targets: tuple[Any, ...]) -> list[str]:
    """What a loss with a method `doubts` says of itself at these outputs."""
    own = getattr(loss, "doubts", None)
    return [] if own is None else own(y, *targets)


def with_own_targets(loss: Any, targets: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The same with copies of the targets, which the loss may change."""
    return each_target(loss, targets, own_copy)


def _all_targets(loss: object, targets: tuple[Any, ...]) -> dict[str, Any]:
    """By what a message calls them."""
    given = {f"target {place}": target for place, target in enumerate(targets, 1)}
    if isinstance(loss, WithTargets):
        given |= {f"the target {name}": target for name, target in loss.targets.items()}
    return given


def check_who_learns(loss: object, y: Tensor, targets: tuple[Any, ...]) -> None:
    """Warn where outputs and targets seem to be swapped, and of a target that has a gradient as well."""
    learning = [name for name, target in _all_targets(loss, targets).items() if _has_gradient(target)]
    if not learning or not torch.is_grad_enabled():
        return
    if not y.requires_grad:
        warn(
            f"NewtonLoss: the outputs do not require a gradient, but {learning[0]} does. Were they swapped? Call "
            "newton(outputs, target). If the loss takes them the other way round, wrap it: "
            "NewtonLoss(lambda y, target: loss(target, y)). As it is, this is the plain loss."
        )
        return
    warn(
        f"NewtonLoss: {learning[0]} requires a gradient. Only the outputs, the first argument, get a Newton step; "
        f"{learning[0]} gets the gradient of the plain loss, in another unit. If both come from the network, join "
        "them, y = torch.cat([first, second], 1), and split y in the loss. If no gradient should reach the target, "
        "pass it with .detach()."
    )


def warn_of_the_mask(loss: object, y: Tensor, targets: tuple[Any, ...]) -> None:
    """Warn of a mask that says of each output whether it exists, in a form that only the loss takes for one."""
    given = [target for place, target in enumerate(targets, 1) if names_mask(loss, place)]
    if isinstance(loss, WithTargets) and "mask" in loss.targets:
        given.append(loss.targets["mask"])
    for mask in given:
        if not isinstance(mask, Tensor | np.ndarray):
            continue
        is_of_tokens = 1 < mask.ndim < y.ndim and tuple(mask.shape) == tuple(y.shape[: mask.ndim])
        if mask.ndim != y.ndim and not is_of_tokens:  # one entry per sample, for example
            continue
        if outputs_mask(mask, y) is None and bool(((mask == 0) | (mask == 1)).all()):
            came = mask.dtype if isinstance(mask, Tensor) else "a NumPy array"
            warn(
                f"NewtonLoss: the mask is {came} of shape {tuple(mask.shape)}, so the loss alone gets it, and outputs "
                "that do not exist count in the curvature. Pass a boolean tensor of the shape of the outputs, here "
                f"{tuple(y.shape)}. If these are weights, give the argument another name."
            )


@outside_inference_mode
@leaves_unchanged
def likely_mask(loss: Loss, y: Tensor, *targets: Any, reduction: Reduction | None = None) -> str | None:
    """The name of a target that is a truth for each output, where those with False have no gradient, and they alone."""
    given: list[tuple[str, Tensor]] = []
    for name, target in _all_targets(loss, targets).items():

        def note(part: Any, name: str = name, whole: Any = target) -> Any:
            if isinstance(part, Tensor) and part.dtype is torch.bool and part.shape == y.shape:
                given.append((name if part is whole else f"a part of {name}", part))
            return part

        changed(target, note)  # within containers, too
    if not given or y.dim() < 2:
        return None
    total = make_total(loss, y.shape, targets, resolve_reduction(loss, reduction))
    is_zero = (Asked(total, loss).gradient(flatten_outputs(y)) == 0).reshape(y.shape)
    for name, exists in given:
        if not bool(exists.all()) and bool(is_zero[~exists].all()) and not bool(is_zero[exists].all()):
            return name
    return None


def _has_gradient(target: Any) -> bool:
    found = []

    def note(part: Any) -> Any:
        found.append(isinstance(part, Tensor) and part.requires_grad)
        return part

    changed(target, note)
    return any(found)


def warn_of_the_loss(
    loss: Loss, y: Tensor, targets: tuple[Any, ...], reduction: Reduction | None, curvature: str
) -> None:
    """In the first call of a Newton loss: derivatives that are wrong or zero, and a sum taken for a mean."""
    if is_piecewise_constant(loss, y, *targets, reduction=reduction):
        warn(
            f"NewtonLoss: the gradient of the loss {name_of(loss)} is exactly zero at all of these outputs, although "
            "its values differ: nothing is learned from them. Does it use round, floor, sign or a comparison? "
            "newton_losses.smoothing.SmoothedLoss makes such a loss differentiable."
        )
    found = wrong_second_derivative(loss, y, *targets, reduction=reduction) if curvature == "hessian" else None
    if found is None and curvature == "hessian" and has_no_curvature(loss, y, *targets, reduction=reduction):
        warn(
            f"NewtonLoss: the Hessian of the loss {name_of(loss)} is zero at all of these outputs, as that of a "
            "loss that is linear in them, or of an L1 or hinge loss between its kinks. Only the damping acts: the step "
            "is the plain gradient in another unit. curvature='fisher' has something to work with."
        )
    if found is not None:
        blamed = "a part that is detached, or rounding"
        if found.operators:
            blamed = f"the backward pass of {' and '.join(found.operators)}"
        warn(
            f"NewtonLoss: the second derivatives of the loss {name_of(loss)} are about {100 * found.error:.0f} % off, "
            f"for {100 * found.share:.0f} % of the samples: they are not those of its gradient. The likely reason is "
            f"{blamed}. curvature='fisher' needs first derivatives only."
        )
    if reduction is None and is_sum(loss, y, *targets):
        warn(
            f"NewtonLoss: the loss {name_of(loss)} returns a scalar that doubles when every sample is given twice. It "
            "is a sum over the batch, and is taken for a mean: pass reduction='sum'. (reduction='mean' keeps it.)"
        )


@outside_inference_mode
@leaves_unchanged
def is_piecewise_constant(loss: Loss, y: Tensor, *targets: Any, reduction: Reduction | None = None) -> bool:
    """Whether the gradient is exactly zero for all samples, also with each other's outputs, and the values are not.

    A hinge loss in which every margin is kept has no gradient either, but the same values.

    >>> is_piecewise_constant(lambda y: y.round().sum(1), torch.tensor([[1.0], [-2.0]]))
    True
    """
    flat = flatten_outputs(y)
    if len(flat) < 2 or flat.numel() == 0:
        return False
    asked = Asked(make_total(loss, y.shape, targets, resolve_reduction(loss, reduction)), loss)
    values = []
    for at in (flat, flat.roll(1, 0), flat):
        leaf, summed, value = asked.call(at)
        (gradient,) = torch.autograd.grad(summed, leaf)
        if bool((gradient != 0).any()):
            return False
        values.append(value.detach())
    first, second, again = values
    if not torch.equal(first, again):  # it draws numbers
        return False
    return bool(((first != second) & torch.isfinite(first) & torch.isfinite(second)).any())


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
    asked = Asked(make_total(loss, y.shape, targets, resolve_reduction(loss, reduction)), loss)
    direction = torch.randn(1, flat.shape[1], generator=torch.Generator().manual_seed(0)).to(flat)
    gradient = asked.gradient(flat)
    is_usable = torch.isfinite(gradient).all(1)
    try:
        product = asked.product(flat, direction)
    except Exception:  # without a second derivative the call itself will say so
        return False
    return bool((gradient[is_usable] != 0).any()) and not bool(product[is_usable].any())
