"""The value of a Newton loss: that of the loss, over the samples whose value is finite."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._arguments import WithTargets
from .._targets import picked
from ._derivatives import nothing_through
from ._expansion import Expandable, loss_values
from ._loss_contract import Loss, flatten_outputs, full_precision, make_total
from ._options import Reduction


def plain_value(
    loss: Loss | Expandable,
    y: Tensor,
    targets: tuple[Any, ...],
    reduction: Reduction | None,
    mask: Tensor | None = None,
) -> Tensor:
    return mean_value(loss_values(loss, y, *targets, reduction=reduction, mask=mask), reduction)


def mean_value(values: Tensor, reduction: Reduction | None) -> Tensor:
    """The mean, or the sum, of the values that are finite: the same with derivatives and without.

    Where there are samples and none is finite it is NaN: 0 would look like the best of all losses.
    """
    if len(values) == 0:
        return values.sum()
    usable = values.abs() < torch.inf
    total = torch.where(usable, values, 0.0).sum()
    if reduction != "sum" and not values.requires_grad:
        return total / usable.sum()  # 0/0 is the NaN that is wanted
    # Chosen at the end: nothing on the way back is NaN, also to torch's anomaly mode.
    return torch.where(usable.any(), total if reduction == "sum" else total / usable.sum().clamp(min=1), torch.nan)


def value_of_kept(
    loss: Loss | Expandable,
    y: Tensor,
    targets: tuple[Any, ...],
    values: Tensor,
    kept: Tensor,
    reduction: Reduction | None,
) -> Tensor:
    """The value, with the gradient of the samples that are kept for what the loss itself has to learn."""
    if bool(kept.all()):
        return mean_value(values, reduction)
    try:
        again = _values_of_kept(loss, y, targets, values, kept, reduction)
    except Exception:  # of targets that have no entry per sample, or that cannot be chosen from
        return mean_value(values, reduction)
    # Of a reduced loss the others cannot be left out, and one with other values was not called with the same: what is
    # shared may look as if it had an entry per sample, or the loss draws and counts. Its gradient is then what it is.
    is_reduced = values.stride() == (0,)
    if is_reduced or not torch.allclose(again[kept].detach(), values[kept].detach()):
        return mean_value(values, reduction)
    total = torch.where(kept, again, 0.0).sum() / kept.sum().clamp(min=1)  # who reduces by a sum has no such values
    return mean_value(values.detach(), reduction) + (total - total.detach())


def _values_of_kept(
    loss: Any, y: Tensor, targets: tuple[Any, ...], values: Tensor, kept: Tensor, reduction: Reduction | None
) -> Tensor:
    """The `values` ℓᵢ `(N,)` once more, with a graph, and with another sample in the place of each not `kept` `(N,)`.

    A weight of zero does not keep what is not finite out of a gradient: on the way back it becomes 0·∞, in everything
    that the samples share. Where no sample is kept, everything shared gets zeros.
    """
    if not bool(kept.any()):
        return nothing_through(values).expand(len(kept))
    count, flat = len(kept), flatten_outputs(y)
    places = torch.where(kept, torch.arange(count, device=kept.device), kept.int().argmax())
    others = tuple(picked(target, places, count) for target in targets)
    if isinstance(loss, WithTargets):
        loss = partial(loss.func, *loss.args, **loss.keywords | picked(loss.targets, places, count))
    with full_precision(flat):
        return make_total(loss, y.shape, others, reduction)(flat[places])[1]
