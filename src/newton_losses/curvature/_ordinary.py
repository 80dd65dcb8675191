"""A Newton loss from top to bottom, where nothing is out of the ordinary: outputs `(N, m)` in float32 on a CPU.

    loss ──▶ values, gradients ──▶ curvature C ──▶ λ ──▶ length · (C + λI)⁻¹gᵢ

`ordinary_step` is the whole method, and the first place to read it. What else there is (other devices and dtypes,
masks, ranks that share a batch, transforms, samples that are not finite) has pieces of its own in this package, which
compute the same; `is_ordinary` tells them apart. Every line counts here: on a small batch, one that Python has not run
for a while takes as long as an operation.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad

from ._damping import RunningDamping
from ._derivatives import leads_elsewhere, run_backward, summed_hessian
from ._expansion import CurvatureKind, Expansion, empirical_fisher
from ._host import LARGEST_IN_NUMPY, host_fisher, host_hessian, host_lists
from ._lists import exchangeable_fisher
from ._loss_contract import make_total
from ._options import HAS_GROUPS, Reduction, Spectrum

_are_transforms_active = torch._C._are_functorch_transforms_active
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled


Way = Literal["fisher", "lists", "hessian"]


def ordinary_way(
    kind: CurvatureKind, rule: object, spectrum: Spectrum | None, matrix_free: bool | None, exchangeable: bool
) -> Way | None:
    """Which of them a Newton loss with these options can go."""
    is_running = type(rule) is RunningDamping and rule.group is None
    if kind == "fisher" and (is_running or type(rule) is float):
        return "lists" if exchangeable else "fisher"
    has_default = is_running and spectrum in (None, "absolute") and matrix_free is None
    return "hessian" if kind == "hessian" and has_default and not exchangeable else None


def is_ordinary(y: Tensor, targets: tuple[Any, ...], state: Tensor | None) -> bool:
    """Whether a batch can go this way: small, plain outputs that nobody looks at but autograd's tape."""
    if torch.compiler.is_compiling() or type(y) is not Tensor or y.dtype is not torch.float32 or y.is_nested:
        return False
    if y.dim() != 2 or not y.is_cpu or y.layout is not torch.strided or not torch.is_grad_enabled():
        return False
    if _are_transforms_active() or forward_ad._current_level >= 0 or _is_any_autocast_enabled():
        return False
    if (HAS_GROUPS and dist.is_initialized()) or not (state is None or state.is_cpu):
        return False
    if targets and getattr(targets[-1], "dtype", None) is torch.bool:  # which may be a mask
        return False
    count, size = y.shape
    return 0 < count * size * min(count, size) <= LARGEST_IN_NUMPY


class Found(NamedTuple):
    """The mean value and the steps over N, or neither; and the expansion, if it is all that there is."""

    value: Tensor | None = None
    rows: Tensor | None = None
    expansion: Expansion | None = None


NOTHING = Found()


def ordinary_step(
    loss: Any,
    y: Tensor,
    targets: tuple[Any, ...],
    way: Way,
    reduction: Reduction | None,
    rule: Any,
    state: Tensor | None,
    update: bool,
) -> Found:
    """The step of a batch; none for the first of a run, nor where something is not finite, very large or very small."""
    if way == "hessian":
        return _hessian_step(loss, y, targets, reduction, rule, state, update)
    count = len(y)
    try:
        leaf = y.detach().requires_grad_()
        value = loss(leaf, *targets)
        if value.shape == (count,) and reduction != "mean":
            along = torch.ones_like(value)
        elif value.shape == () and reduction != "none":  # the mean of all samples
            along = torch.full_like(value, count)
        else:
            return NOTHING
        is_shared = leads_elsewhere(value, leaf)  # to what the loss itself has to learn
        (gradient,) = run_backward((value,), (along,), is_shared, False, (leaf,), False, False)
    except Exception:  # whoever takes over calls the loss again, and says what is wrong
        return NOTHING
    if not is_shared:
        value = value.detach()
        front = value.mean()
        if math.isfinite(front.item()):
            is_set, given = way == "lists", (rule, state, update)
            rows = host_lists(gradient, *given) if is_set else host_fisher(gradient, True, *given)
            if rows is not None:
                return Found(front, rows)
    value = value.expand(count)
    fisher = exchangeable_fisher if way == "lists" else empirical_fisher
    return Found(expansion=Expansion(value, gradient, fisher(gradient, value=value.detach())))


def _hessian_step(
    loss: Any,
    y: Tensor,
    targets: tuple[Any, ...],
    reduction: Reduction | None,
    rule: RunningDamping,
    state: Tensor | None,
    update: bool,
) -> Found:
    if state is None or state[1].item() == 0:
        return NOTHING
    found = summed_hessian(make_total(loss, y.shape, targets, reduction), y.detach(), loss)
    if found is None or found[0].requires_grad:
        return NOTHING
    value, gradient, total = found
    front = value.mean()
    rows = host_hessian(gradient, total, rule, state, update) if math.isfinite(front.item()) else None
    return NOTHING if rows is None else Found(front, rows)
