"""Does a loss keep the contract? These checks read results back to the host: made once, not per step."""

import math
from typing import Any

import numpy
import torch
from torch import Tensor

from .._arguments import WithTargets, bound_targets, each_target, name_of
from .._random import seeded
from .._targets import changed, picked
from .._unchanged import leaves_unchanged, same_draws
from ..errors import ArgumentError, SeparabilityError
from ._derivative_errors import no_dependence
from ._forms import signs
from ._loss_contract import (
    Loss,
    flatten_outputs,
    full_precision,
    make_total,
    outside_inference_mode,
)
from ._options import Reduction, resolve_reduction


@outside_inference_mode
@leaves_unchanged
def check_loss(
    loss: Loss,
    /,
    y: Tensor,
    *targets: Any,
    reduction: Reduction | None = None,
    mask: Tensor | None = None,
    **named: Any,
) -> bool:
    """Raise if `loss` does not depend on `y` or mixes the samples of the batch; return whether the batch could tell.

    Also if it depends on none but those outputs that do not exist by the `mask`, the meaning of which is then reversed.

    Some samples get the outputs of others. A separable loss keeps the values and gradients of the rest; batch
    statistics, a ranking across the batch, pairs of samples or a reduction over the wrong dimension do not. Targets of
    shape `(N,)` go with outputs `(N, 1)`: broadcast, each sample's loss would depend on all targets. With fewer than
    two samples, or where all have the same outputs, the check cannot tell. Of a loss that gives other numbers each time
    it is called, from a generator that is found neither in torch nor in the loss, only the dependence is checked. The
    buffers and generators of the loss are put back.

    >>> check_loss(lambda y: (y - y.mean(0)).square().sum(1), torch.tensor([[1.0], [2.0], [4.0], [8.0]]))
    Traceback (most recent call last):
    newton_losses.errors.SeparabilityError: The loss <lambda> mixes the samples of the batch: ...
    """
    flat = flatten_outputs(y)
    if flat.numel() == 0:
        return False
    if not isinstance(loss, WithTargets):
        loss, targets, mask = bound_targets(loss, y, targets, named, mask, "check_loss")
    reduction = resolve_reduction(loss, reduction)
    total = make_total(loss, y.shape, targets, reduction)
    before, again = (_values_and_gradients(total, flat, loss) for _ in range(2))
    if not all(torch.allclose(first, second, equal_nan=True) for first, second in zip(before, again, strict=True)):
        return True
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == y.shape:  # else it will be refused
        _check_mask(loss, before[1] != 0, mask)
    by_name = loss.targets if isinstance(loss, WithTargets) else {}
    could_tell, astray = False, _astray(y.shape, (targets, by_name))
    for kept in _parts(flat):
        place = torch.arange(len(flat), device=flat.device)
        place = torch.where(kept, place, place.roll(1))
        others = flat[place]
        if torch.equal(others, flat):
            continue
        could_tell = True
        if not _stay(kept, before, _values_and_gradients(total, others, loss)):
            hint = f" {_broadcast(y.shape, astray[0])}" if astray else ""
            raise SeparabilityError(
                f"The loss {name_of(loss)} mixes the samples of the batch: the loss of some samples changed when "
                "only the outputs of others did. A Newton loss needs one loss per sample. Does it use batch statistics,"
                " compare samples, reduce over the batch dimension, or have a Newton loss or inject_fisher in it? If "
                "the items that it compares belong together, make them one sample: outputs of shape (1, N, ...). If "
                f"the batch is not the first dimension, y.transpose(0, 1) makes it so.{hint}"
            )
    if astray and _compares_with_all(loss, y, targets, reduction, astray, before):
        raise SeparabilityError(
            f"The loss {name_of(loss)} compares each sample with the targets of all. {_broadcast(y.shape, astray[0])}"
        )
    return could_tell


def _compares_with_all(
    loss: Loss,
    y: Tensor,
    targets: tuple[Any, ...],
    reduction: Reduction | None,
    shapes: list[torch.Size],
    before: tuple[Tensor, Tensor],
) -> bool:
    """Whether no sample's loss depends on which of the targets is its own, but on what they all are.

    Both together: the weights of a mean may come from all targets, and far from a kink no target may matter.
    """
    order = torch.arange(len(y), device=y.device)

    def is_alike(rows: Tensor) -> bool:
        moved, others = each_target(loss, targets, lambda target: _with_rows(target, shapes, rows))
        total = make_total(moved, y.shape, others, reduction)
        return _stay(order, before, _values_and_gradients(total, flatten_outputs(y), moved))

    try:
        return is_alike(order.roll(1)) and not is_alike(order - order % 2)
    except Exception:  # these targets may belong together with others
        return False


def _check_mask(loss: Loss, learns: Tensor, mask: Tensor) -> None:
    exists = mask.reshape(learns.shape)
    if bool((learns & ~exists).any()) and not bool((learns & exists).any()):
        raise ArgumentError(
            f"The loss {name_of(loss)} has gradients only where the mask is False, so nothing would be learned. True "
            "stands for an output that exists: pass ~mask. If the loss has an argument `mask` that means the opposite, "
            "pass a function that calls it with ~mask."
        )


@outside_inference_mode
@leaves_unchanged
def is_sum(loss: Loss, y: Tensor, *targets: Any) -> bool:
    """Whether `loss` returns a scalar that is a sum over the batch, as far as giving every sample twice can tell.

    >>> is_sum(lambda y, target: (y - target).square().sum(), torch.ones(3, 2), torch.zeros(3, 2))
    True
    """
    flat = flatten_outputs(y)
    if flat.numel() == 0:
        return False
    twice = torch.arange(2 * len(y), device=y.device) % len(y)
    try:
        with torch.no_grad(), full_precision(flat), seeded(0, flat.device):
            outputs = flat.reshape(y.shape)
            once = loss(outputs, *targets)
            if once.dim() != 0 or not 0 < abs(float(once)) < math.inf:
                return False
            doubled, others = each_target(loss, targets, lambda target: picked(target, twice, len(y)))
            double = doubled(outputs[twice], *others)
    except Exception:  # the loss is the caller's, and may know the size of its batch
        return False
    return double.dim() == 0 and abs(float(double) / float(once) - 2) < 1e-3


def _parts(flat: Tensor) -> list[Tensor]:
    """Which samples keep their outputs, `(N,)` boolean: the first half, every other one, and half of them by chance.

    One alone would miss samples that are mixed in groups: as pairs of neighbours, or by a number of their query.
    """
    place = torch.arange(len(flat), device=flat.device)
    return [place < (len(flat) + 1) // 2, place % 2 == 0, signs(1, len(flat), flat)[0] > 0]


def _astray(shape: torch.Size, targets: Any) -> list[torch.Size]:
    """The shapes of targets with as many entries as the outputs, which broadcasting makes a larger tensor of both."""
    found: list[torch.Size] = []

    def note(part: Any) -> Any:
        if isinstance(part, Tensor) and part.ndim and part.shape[0] == shape[0] and part.numel() == shape.numel():
            try:
                is_larger = _together(part.shape, shape).numel() > shape.numel()
            except ValueError:
                return part
            if is_larger:
                found.append(part.shape)
        return part

    changed(targets, note)
    return found


def _together(one: torch.Size, other: torch.Size) -> torch.Size:
    return torch.Size(numpy.broadcast_shapes(one, other))  # torch's own imports sympy first, which takes a second


def _with_rows(targets: Any, shapes: list[torch.Size], place: Tensor) -> Any:
    """Each sample with the target of another, in targets of these shapes."""

    def pick(part: Any) -> Any:
        return part[place.to(part.device)] if isinstance(part, Tensor) and part.shape in shapes else part

    return changed(targets, pick)


def _broadcast(outputs: torch.Size, target: torch.Size) -> str:
    cure = f"Reshape the target to {tuple(outputs)}"
    if len(outputs) == len(target) + 1 and outputs[-1] == 1:
        cure = "Pass target.unsqueeze(1) or y.squeeze(1)"
    elif len(target) == len(outputs) + 1 and target[-1] == 1:
        cure = "Pass target.squeeze(1) or y.unsqueeze(1)"
    return (
        f"Outputs of shape {tuple(outputs)} and targets of shape {tuple(target)} broadcast to "
        f"{tuple(_together(outputs, target))}. {cure}. (Targets that all samples share belong in the loss itself.)"
    )


def _stay(kept: Tensor, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> bool:
    """Whether the kept samples have the same values and gradients."""
    return all(_are_alike(one[kept], other[kept]) for one, other in zip(before, after, strict=True))


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """The loss is the same function of the same numbers; only summation order may differ."""
    usable = torch.isfinite(one)
    scale = float(one[usable].abs().amax()) if usable.any() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=scale * torch.finfo(one.dtype).eps ** 0.5, equal_nan=True)


def _values_and_gradients(total: Any, flat: Tensor, loss: object) -> tuple[Tensor, Tensor]:
    # A loss that draws noise must draw the same each time.
    with torch.enable_grad(), full_precision(flat), seeded(0, flat.device), same_draws(loss):
        leaf = flat.clone().requires_grad_()
        found, value = total(leaf)
        (gradient,) = torch.autograd.grad(found.sum(), leaf, allow_unused=True) if found.requires_grad else (None,)
    if gradient is None:
        raise no_dependence(loss)
    # A reduced loss gives no per-sample values, and its mean changes with any sample: gradients tell.
    return value.detach() if value.stride() != (0,) else torch.zeros_like(value), gradient
