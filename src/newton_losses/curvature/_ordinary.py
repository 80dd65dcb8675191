"""A Newton loss from top to bottom, where nothing is out of the ordinary: outputs `(N, m)` in float32 on a CPU.

    loss ──▶ values, gradients ──▶ curvature C ──▶ λ ──▶ length · (C + λI)⁻¹gᵢ

`ordinary_loss` is the whole method, and the first place to read it. What else there is (other devices and dtypes,
ranks that share a batch, transforms, samples that are not finite) has pieces of its own in this package, which
compute the same; `is_ordinary` tells them apart. Every line counts here: on a small batch, one that Python has not run
for a while takes as long as an operation.
"""

import math
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad

from .._tracing import top_hooks
from ..errors import DerivativeError
from ._damping import RunningDamping
from ._derivatives import gradient_on_tape, mean_hessian
from ._expansion import CurvatureKind, Expansion, empirical_fisher
from ._forms import Curvature, Dense, Masked, OwnParts
from ._host import LARGEST_IN_NUMPY, LARGEST_INVERSE, factor_or_number, host_fisher, solved, solved_samples
from ._host_lists import masked_rows, solved_lists
from ._lists import exchangeable_fisher, masked_fisher
from ._loss_contract import check_values, explain, make_total
from ._options import HAS_GROUPS, Reduction, Spectrum

_tracing_state = torch._C._get_tracing_state
_are_transforms_active = torch._C._are_functorch_transforms_active
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled


Way = Literal["fisher", "lists", "sample", "hessian"]


def ordinary_way(
    kind: CurvatureKind, rule: object, spectrum: Spectrum | None, matrix_free: bool | None, exchangeable: bool
) -> Way | None:
    """Which of them a Newton loss with these options can go."""
    is_running = type(rule) is RunningDamping and rule.group is None
    if is_running or type(rule) is float:
        if kind == "sample":  # which no order of the outputs changes
            return "sample"
        if kind == "fisher":
            return "lists" if exchangeable else "fisher"
    has_default = is_running and spectrum in (None, "absolute") and matrix_free is None
    return "hessian" if kind == "hessian" and has_default and not exchangeable else None


def is_ordinary(y: Tensor, state: Tensor | None, way: Way, mask: Tensor | None = None) -> bool:
    """Whether a batch can go this way: small, plain outputs that only autograd's tape records."""
    if torch.compiler.is_compiling() or type(y) is not Tensor or y.dtype is not torch.float32 or y.is_nested:
        return False
    if y.dim() != 2 or not y.is_cpu or y.layout is not torch.strided or y.is_inference() or not torch.is_grad_enabled():
        return False
    if _are_transforms_active() or forward_ad._current_level >= 0 or _tracing_state() or _is_any_autocast_enabled():
        return False
    # What packs saved tensors counts them, and nothing is saved here.
    if top_hooks(True) is not None or (HAS_GROUPS and dist.is_initialized()) or not (state is None or state.is_cpu):
        return False
    if mask is not None:
        is_plain = type(mask) is Tensor and mask.dtype is torch.bool and mask.is_cpu and mask.shape == y.shape
        if not is_plain or way == "hessian":
            return False
    count, size = y.shape
    unknowns = 1 if way == "sample" else size if way == "hessian" else min(count, size)
    return 0 < count * size * unknowns <= LARGEST_IN_NUMPY and unknowns <= LARGEST_INVERSE


def ordinary_loss(
    loss: Any,
    y: Tensor,
    targets: tuple[Any, ...],
    way: Way,
    reduction: Reduction | None,
    rule: Any,
    state: Tensor | None,
    update: bool,
    mask: Tensor | None = None,
) -> tuple[Tensor | None, Expansion | None]:
    """The Newton loss of a batch, or where this way ends on the way, the expansion that there is by then.

    It ends at the first batch of a run, and where something is not finite, very large or very small.
    """
    matrix: Tensor | None = None
    kept: Tensor | None = None
    count = y.shape[0]
    if way == "hessian":
        value, gradient, matrix, kept = mean_hessian(make_total(loss, y.shape, targets, reduction), y.detach(), loss)
    else:
        leaf = y.detach().requires_grad_()
        try:
            value = loss(leaf, *targets)
        except (RuntimeError, NotImplementedError):  # there is another way, without a tape, or else the error once more
            return None, None
        except Exception as error:
            explain(error, loss, leaf, targets)
            raise
        try:
            is_mean = type(value) is not Tensor or reduction is not None or value.dim() != 1 or value.shape[0] != count
            if is_mean or value.dtype is not torch.float32:
                check_values(value, y.shape, reduction, loss)
                is_mean = value.dim() == 0
            gradient, is_shared = gradient_on_tape(leaf, value * count if is_mean else value)
        except (RuntimeError, NotImplementedError):
            return None, None
        if is_mean:
            value = value.expand(count)
        if not is_shared:
            value = value.detach()
        if mask is not None:
            gradient = torch.where(mask, gradient, 0.0)
    if kept is None:
        front = value.mean()
        if math.isfinite(front.item()):
            if mask is not None:
                rows = _masked_rows(_form(way, value, gradient, mask), gradient, rule, state, update)
            elif way == "fisher":
                rows = host_fisher(gradient, True, rule, state, update)
            else:
                rows = _rows(way, gradient, matrix, rule, state, update)
            if rows is not None:
                learns = front if front.requires_grad else None  # the loss itself, or its targets
                made = (front if learns is None else front.detach(), rows)
                recorded: Tensor = _record(y, learns, made)
                return recorded, None
    form = Dense(matrix, count=kept) if matrix is not None else _form(way, value, gradient, mask)
    return None, Expansion(value, gradient, form)


def _form(way: Way, value: Tensor, gradient: Tensor, mask: Tensor | None) -> Curvature:
    """The curvature that is made of gradients, which are zero where an output does not exist."""
    value = value.detach()
    if way == "sample":
        return OwnParts(gradient, value, mask)
    if way == "lists":
        return exchangeable_fisher(gradient, mask=mask, value=value)
    return empirical_fisher(gradient, value=value) if mask is None else masked_fisher(gradient, value, mask)


def _masked_rows(
    form: Any, gradient: Tensor, rule: float | RunningDamping, state: Tensor | None, update: bool
) -> Tensor | None:
    """The steps over N where not all outputs exist."""
    numbers = factor_or_number(rule, form, gradient)
    assert numbers is not None  # of a rule that may go this way
    if isinstance(form, OwnParts):
        return solved_samples(gradient, numbers, True, state, update, form.mask)
    if isinstance(form, Masked):
        return masked_rows(form, gradient, numbers, "definite", True, state, update)
    found = solved_lists(gradient.numpy().astype(float), form.mask.numpy(), numbers, True, state, update)
    return None if found is None else torch.from_numpy(found).to(gradient.dtype)


def _rows(
    way: Way, gradient: Tensor, matrix: Tensor | None, rule: Any, state: Tensor | None, update: bool
) -> Tensor | None:
    """The steps over N, if `_host.py` can take them.

    >>> _rows("sample", torch.tensor([[3.0, 4.0], [0.0, 1.0]]), None, 0.5, None, False)  # ‖gᵢ‖²/N = 12.5 and 0.5
    tensor([[0.1154, 0.1538],
            [0.0000, 0.5000]])
    """
    numbers = (0.0, rule, False) if type(rule) is float else (rule.factor, 0.0, True)
    if way == "sample":
        count, size = gradient.shape
        stretch = math.sqrt(size / count) if count < size else 1.0
        return solved_samples(gradient, (numbers[0] * stretch, *numbers[1:]), True, state, update)
    rows = gradient.detach().numpy()  # forward mode leaves a graph where the loss has parameters
    if matrix is not None:
        found = solved(rows, matrix.clone().numpy(), numbers, "absolute", True, state, update)
    else:
        found = solved_lists(rows.astype(float), None, numbers, True, state, update)
    return None if found is None else torch.from_numpy(found).to(gradient.dtype)


class _OneStep(torch.autograd.Function):
    """A number with the gradient and Hessian of ½‖z* − y‖²/N, given the steps over N; and its own for what `learns`.

    Called by C's `apply`, without the questions about transforms that Python's asks. The outputs are not saved for the
    way back, which takes longer: only a second derivative needs them.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, learns: Tensor | None, made: tuple[Tensor, Tensor]) -> Tensor:
        front, ctx.rows = made  # the front is what this returns: kept as well, it would keep the graph in a circle
        ctx.y, ctx.version = y, y._version
        return front

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        rows, (slope,) = ctx.rows, slopes
        if torch.is_grad_enabled():  # to differentiate it again: the Hessian is I/N
            y = ctx.y
            if y._version != ctx.version:
                raise DerivativeError(
                    "The outputs of a NewtonLoss were modified by an inplace operation before a second derivative of "
                    "it was taken, which needs them as they were."
                )
            moved = y - y.detach()  # zero, with a gradient; but not where an output is infinite
            rows = rows + torch.where(torch.isfinite(moved), moved, 0.0) / len(y)
        return rows * slope, slope if ctx.needs_input_grad[1] else None, None


_record: Any = super(torch.autograd.Function, _OneStep).apply
