"""Layer 2, the Newton loss: replace a loss by one whose gradient is a Newton step of it.

    loss ──expand──▶ value, gradient, curvature ──damp, solve──▶ step ──▶ z* = ȳ − step ──▶ ½‖z* − y‖²

How the expansion is made and the system solved is in `newton_losses.curvature`. `functional.py` has functions in
place of the module, and `inject.py` the variant that lives in a backward pass.
"""

from typing import Any, Literal, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ._arguments import bound_targets, is_exchangeable, name_of, padded_outputs, with_mask
from ._skipped import OnNonfinite, SkipWatch, skip_counter
from ._tracing import is_captured, is_differentiated_otherwise, refuse_export, sees_operators, unpacked_saves
from .curvature import (
    CurvatureKind,
    Damping,
    DampingRule,
    Expandable,
    Expansion,
    GroupChoice,
    Loss,
    Reduction,
    RunningScale,
    Solved,
    Spectrum,
    Way,
    agreed_form,
    check_first_call,
    check_is_loss,
    check_loss,
    check_options,
    check_value,
    expand_bound,
    host_step,
    is_ordinary,
    mean_value,
    ordinary_loss,
    ordinary_way,
    plain_damping,
    plain_value,
    resolve_damping,
    resolve_group,
    resolve_reduction,
    settle,
    share_curvature,
    solve_step,
    value_of_kept,
    with_own_targets,
)
from .errors import ArgumentError

Value = Literal["loss", "quadratic"]
HAS_GROUPS = dist.is_available()


class NewtonOptions(TypedDict, total=False):
    """What all forms of the Newton loss take; `NewtonLoss` explains each."""

    curvature: CurvatureKind
    damping: Damping
    spectrum: Spectrum | None
    reduction: Reduction | None
    matrix_free: bool | None
    process_group: GroupChoice
    exchangeable: bool | None


class NewtonLoss(RunningScale):
    """A loss with the value of `loss` and the gradient of its Newton loss.

    Calling it as `newton(y, *targets)`, or with targets by name, returns a scalar. Its *value* is the original loss:
    the mean over the samples, or their sum where `loss` is reduced by a sum, so that logs and schedules keep their
    meaning. Its *gradient* is that of ½‖z* − y‖², reduced in the same way:

        ∂/∂yᵢ = (C/λ + I)⁻¹ ∇ℓᵢ / (ρN),   C = (1/N) Σ ∇ℓᵢ∇ℓᵢᵀ  ("fisher")  or  (1/N) Σ ∇²ℓᵢ  ("hessian")

    λ is the root mean square of C's eigenvalues, taken by absolute value, and ρ that of all entries of the gradients
    over the run so far. Multiplying the loss by a constant changes nothing, and ρ is steady enough that the optimum
    stays where it is. If `damping` is a number, the gradient is the paper's, (C + λI)⁻¹∇ℓᵢ/N.

    Call `backward()` as usual. The outputs may have any shape `(N, ...)` and any floating dtype; everything is computed
    in float32 at least. Parameters inside `loss` get the plain gradient, in the loss's own units. If the loss returns
    one value per sample, those that are left out do not count; this makes each call wait for the GPU. With
    `value="quadratic"` they get no gradient.

    Args:
        loss: a callable `loss(y, *targets)` that returns one value per sample `(N,)` or a scalar, or an
            object that brings its own `expand`.
        curvature: "fisher" (the empirical Fisher, first derivatives only), "hessian" (the mean Hessian) or "sample"
            (each sample's own part of the empirical Fisher, ∇ℓᵢ∇ℓᵢᵀ/N: the step ∇ℓᵢ/(λ + ‖∇ℓᵢ‖²/N), without a solve).
        damping: "auto" stands for `RunningDamping()`: λ from the curvature itself, and the step in units of the run's
            gradients, kept in the buffer `running_square`. With one output per sample, "fisher" and "hessian" then
            only halve the step: C is one number, and λ equals it. A number λ > 0, or a scalar tensor, is the paper's
            method: to reproduce it, or when you can afford to search for λ. A rule such as `RelativeDamping` keeps
            Newton's own step length, for plain gradient descent.
        spectrum: what becomes of negative eigenvalues of the Hessian: "raw" leaves them (the paper),
            "absolute" takes their absolute value, "clip" sets them to zero. By default "raw"; with "auto" "absolute".
        reduction: how a scalar `loss` was reduced, "mean" or "sum" ("none": it has a value per sample); by default its
            attribute `reduction`, else "mean" is assumed, and the first call warns if that turns out to be wrong.
        matrix_free: solve with Hessian products instead of a stored Hessian; by default where it is large. λ is then
            an estimate from 16 products, and "absolute" holds within 50 dimensions around each gradient.
        value: "loss", or "quadratic" for the value ½‖z* − y‖² itself.
        check: raise on the first call if the loss does not depend on the outputs or mixes the samples of the batch, and
            warn if its second derivatives are zero or differ from finite differences of its gradient. A call that
            cannot tell (compiled, inside a transform, or without two different samples) leaves this to the next one.
        process_group: whose samples form the batch: "default" for all ranks, a `ProcessGroup`, `None` for this process.
        exchangeable: whether the outputs of a sample are a set, such as the scores of a list: C is then averaged over
            all orders (`curvature.Exchangeable` has the formula), so that the result does not depend on how they are
            stored. By default the loss's own attribute `exchangeable`, which losses of lists have here, else False.
        on_nonfinite: "warn" warns once when a whole batch is skipped, or a quarter of at least 64 samples; "raise" is
            an error as soon as one is, "ignore" only counts. On CUDA both come up to 128 calls late, because no call
            waits for the device; inside compiled code, CUDA graphs and transforms nothing is said.

    Lists of different lengths: `newton(y, *targets, mask=mask)` with a boolean `mask` of the shape of `y`, or with one
    truth per token `(N, T)` of outputs `(N, T, C)`; True where an output exists. The others get a gradient of exactly
    zero and are left out of C, λ and ρ; each sample is solved with the part of C that belongs to its own outputs. Your
    loss masks its own value, as it would without a Newton loss, and gets the mask if it has an argument of that name
    (and it alone, if the mask has another shape or dtype).
    Outputs and targets may also be nested tensors in jagged layout, which are padded.

    A sample with a non-finite loss or gradient gets a zero gradient; the others get theirs as if it were not there
    (except that it still counts in N where "auto" asks whether N < m).
    The buffer `skipped` counts such samples on the device, without waiting for it; it is not saved. The value covers
    the samples with a finite loss, and is NaN if there are none. An empty batch has value and gradient zero. Under
    `torch.no_grad()` only the loss is evaluated.

    If `torch.distributed` is initialised, C covers the samples of all ranks, N is their number. DDP and FSDP average
    the gradient over the ranks; the average is that of one process with the whole batch. Ranks may have batches of
    different sizes, or empty ones. The value stays that of this rank's samples. Every rank must make each call that is
    differentiated; calls under `torch.no_grad()` need no other rank.

    >>> newton = NewtonLoss(lambda y, target: (y - target).abs().pow(1.5).sum(1))
    >>> y = torch.tensor([[1.0], [4.0]], requires_grad=True)
    >>> loss = newton(y, torch.zeros(2, 1))
    >>> loss.backward()
    >>> loss.item()  # the mean of 1 and 8
    4.5
    """

    skipped: Tensor
    _way: Way | None = None  # that an ordinary batch may go

    def __init__(
        self,
        loss: Loss | Expandable,
        curvature: CurvatureKind = "fisher",
        damping: Damping = "auto",
        *,
        spectrum: Spectrum | None = None,
        reduction: Reduction | None = None,
        matrix_free: bool | None = None,
        value: Value = "loss",
        check: bool = True,
        process_group: GroupChoice = "default",
        exchangeable: bool | None = None,
        on_nonfinite: OnNonfinite = "warn",
    ) -> None:
        super().__init__()
        check_is_plain(loss, "NewtonLoss")
        if not isinstance(check, bool):
            raise ArgumentError(f"check={check!r}; it is True or False.")
        choices = {"matrix_free": matrix_free, "process_group": process_group, "exchangeable": exchangeable}
        check_options(curvature, damping, spectrum, **choices)
        check_value(value)
        self.loss = loss
        self.options: NewtonOptions = {
            "curvature": curvature,
            "damping": plain_damping(damping),
            "spectrum": spectrum,
            "reduction": resolve_reduction(loss, reduction),
            "matrix_free": matrix_free,
            "process_group": process_group,
            "exchangeable": is_exchangeable(loss, exchangeable),
        }
        self._rule = resolve_damping(self.options["damping"], None)
        self._keep_scale(self._rule)
        can_be = self.options["reduction"] != "sum" and not isinstance(loss, Expandable)
        if can_be:
            self._way = ordinary_way(curvature, self._rule, spectrum, matrix_free, bool(self.options["exchangeable"]))
        self.value: Value = value
        self.check = check
        self._was_checked = False
        self._watch = SkipWatch("NewtonLoss", on_nonfinite)
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, y: Tensor, /, *targets: Any, mask: Tensor | None = None, **named: Any) -> Tensor:
        loss, expansion = self.loss, None
        if isinstance(y, Tensor) and y.is_nested:
            y, targets, named, mask = padded_outputs(y, targets, named, mask, "NewtonLoss")
        if named or mask is not None:
            loss, targets, mask = bound_targets(loss, y, targets, named, mask, "NewtonLoss")
        if mask is not None or any(getattr(one, "dtype", None) is torch.bool for one in targets):
            loss, targets, mask = with_mask(loss, y, targets, mask)
        if self._way and self.value == "loss" and not self.check:
            run = self._buffers["running_square"]
            if is_ordinary(y, run, self._way, mask):
                given = self._way, self.options["reduction"], self._rule, run, self.training, mask
                found, expansion = ordinary_loss(loss, y, targets, *given)
                if found is not None:
                    self._watch.seen += y.shape[0]
                    return found
        if self.value == "loss" and not torch.is_grad_enabled():
            return plain_value(loss, y, targets, self.options["reduction"], mask)
        is_compiling = torch.compiler.is_compiling()
        if is_compiling:
            refuse_export()
        is_checked = self.check and _may_wait(y)
        if is_checked:
            with unpacked_saves():
                self._check_loss(loss, y, targets, mask)
        counter, run = self._buffers_beside(y, is_compiling)
        is_new = self.training and counter is not None
        known = self._is_known
        if is_new and not known and not is_compiling:
            self._is_known = True
        own = self.value, self.options, self._rule, counter, mask, run, is_new, known, expansion
        value, step, is_scalar = compute_newton_loss(loss, y, targets, *own)
        if is_checked and step.kept is not None and not bool(step.kept.any()):
            self.check, self._was_checked = True, False  # such a batch cannot tell anything of the loss
        if counter is not None and step.kept is not None and not step.counted:
            counter.add_((~step.kept).sum())
        if counter is not None and not is_compiling:
            self._watch.seen += y.shape[0]
            if step.kept is not None:
                self._watch.look(counter, y.shape[0], wait=is_checked, is_scalar=is_scalar)
        return value

    def _buffers_beside(self, y: Tensor, is_compiling: bool) -> tuple[Tensor | None, Tensor | None]:
        """The counter of skipped samples and the running unit, on the device of `y`."""
        if not is_compiling and isinstance(y, Tensor) and not torch._C._are_functorch_transforms_active():
            counter, run = self._buffers["skipped"], self._buffers["running_square"]
            assert counter is not None
            if counter.device == y.device and (run is None or run.device == y.device) and not y.is_meta:
                return counter, run
        return skip_counter(self, y) if isinstance(y, Tensor) else None, self._scale_on(y)

    def _check_loss(self, loss: Loss | Expandable, y: Tensor, targets: tuple[Any, ...], mask: Tensor | None) -> None:
        """Until a batch can tell; but a batch of one sample never can, and such are not checked a second time."""
        reduction = self.options["reduction"]
        if not self._was_checked:
            self.check = not check_first_call(loss, y, targets, mask, reduction, self.options["curvature"])
            self._was_checked = True
        elif len(y) > 1:
            loss, targets = with_own_targets(loss, targets)
            self.check = not check_loss(loss, y, *targets, reduction=reduction, mask=mask)

    def extra_repr(self) -> str:
        # A module is shown by torch, below.
        name = "" if isinstance(self.loss, nn.Module) else f"{name_of(self.loss)}, "
        return f"{name}curvature={self.options['curvature']!r}, damping={self.options['damping']!r}"


def check_is_plain(loss: object, where: str) -> None:
    """Refuse what is not a loss, and what is a Newton loss already."""
    check_is_loss(loss)
    if isinstance(loss, NewtonLoss):
        raise ArgumentError(
            f"{where}: the loss is a NewtonLoss, whose gradient is a step already. Pass the loss that it was made "
            "from, newton.loss."
        )


def compute_newton_loss(
    loss: Loss | Expandable,
    y: Tensor,
    targets: tuple[Any, ...],
    value: Value,
    options: NewtonOptions,
    rule: float | Tensor | DampingRule | None = None,
    counter: Tensor | None = None,
    mask: Tensor | None = None,
    run: Tensor | None = None,
    is_new: bool = False,
    known: bool = False,
    expansion: Expansion | None = None,
) -> tuple[Tensor, Solved, bool]:
    """The Newton loss, its step, and whether `loss` gave one number; `rule` is what the damping is in one process.

    `run` holds the size of the run's gradients, which takes in those of this batch where that `is_new`; it is `known`
    where it has certainly taken in another. An `expansion` may be there already.
    """
    kind, reduction = options.get("curvature", "fisher"), options["reduction"]
    matrix_free = options.get("matrix_free")
    is_compiling, group = torch.compiler.is_compiling(), None
    if HAS_GROUPS and dist.is_initialized():
        group = resolve_group(options.get("process_group", "default"))
    if rule is None or group is not None:
        rule = resolve_damping(options.get("damping", "auto"), group)
    if group is not None and kind == "hessian":
        matrix_free = agreed_form(loss, y, matrix_free)
    exchangeable = bool(options.get("exchangeable"))
    if expansion is None:
        expansion = expand_bound(loss, y, targets, kind, reduction, matrix_free, mask, exchangeable)
    is_mean, spectrum, shared = reduction != "sum", options.get("spectrum"), None
    step = None
    if group is None and not is_compiling:
        given = expansion.curvature, expansion.gradient, expansion.value
        step = host_step(*given, rule, spectrum, mean=is_mean, state=run, update=is_new)
    if step is not None:
        rows = step.rows
    else:
        expansion, unit = settle(expansion, kind, run, update=is_new, group=group, known=known)
        shared = None if group is None else share_curvature(expansion, kind, group, matrix_free=matrix_free)
        expansion = expansion if shared is None else shared.expansion
        step = solve_step(expansion, rule, spectrum, mean=is_mean and shared is None, counter=counter, unit=unit)
        rows = step.rows.detach()
    # A whole number in a tensor would become a float32 one.
    count = step.count.to(rows.dtype) if isinstance(step.count, Tensor) else step.count
    # This rank's own divisor, and the one that is made for an average over the ranks.
    own = count if is_mean else 1
    divisor: Tensor | float = own
    if shared is not None:
        divisor = shared.total / shared.ranks if is_mean else 1 / shared.ranks
        rows = rows / divisor
    if value == "quadratic":
        front = (rows.square().sum(1) * (divisor**2 / own / 2)).sum()
    elif step.value is not None and is_mean and not expansion.value.requires_grad:
        front = step.value
    elif expansion.value.requires_grad and step.kept is not None and _may_wait(y):
        front = value_of_kept(loss, y, targets, expansion.value, step.kept, reduction)
    else:
        front = mean_value(expansion.value, reduction)
    surrogate = _surrogate if is_compiling or is_differentiated_otherwise() else _Surrogate.record
    is_scalar = expansion.value.stride() == (0,)  # one number, shown as that of every sample
    return surrogate(y, front, rows, step.kept, divisor), step, is_scalar


def _surrogate(y: Tensor, front: Tensor, rows: Tensor, kept: Tensor | None, divisor: Tensor | float) -> Tensor:
    """A scalar with the value `front`, and with the gradient and Hessian of ½‖z* − y‖² / divisor.

    `rows` `(N, m)` are the steps over the `divisor`. With d = y − ȳ, which is zero but has a gradient,
    ½‖z* − y‖² = ½‖step‖² + step·d + ½‖d‖². Written so, no digit of a small step is lost next to large outputs, and
    any value can stand in front. The divisor is made for an average over the ranks.
    """
    moved = _moved(y, rows, kept)
    return front + (rows * moved).sum() + moved.square().sum() / 2 / divisor


def _moved(y: Tensor, rows: Tensor, kept: Tensor | None) -> Tensor:
    """y − ȳ in the shape and dtype of `rows`: zero, with a gradient."""
    moved = (y - y.detach()).to(rows.dtype).reshape(rows.shape)
    # An infinite output, at which a loss may well be finite, would be ∞ − ∞ here.
    usable = torch.isfinite(moved)
    return torch.where(usable if kept is None else kept[:, None] & usable, moved, 0.0)


class _Surrogate(torch.autograd.Function):
    """The same where a tape is recorded: one multiplication on the way back, instead of eight operations in all."""

    @classmethod
    def record(cls, y: Tensor, front: Tensor, *parts: Any) -> Tensor:
        """`apply` without its questions about transforms, which take as long as ten operations."""
        loss: Tensor = super(torch.autograd.Function, cls).apply(y, front, parts)  # type: ignore[misc]
        return loss

    @staticmethod
    def forward(ctx: Any, y: Tensor, front: Tensor, parts: tuple[Tensor, Tensor | None, Tensor | float]) -> Tensor:
        ctx.save_for_backward(y)
        ctx.rows, ctx.kept, ctx.divisor = parts
        return front.detach()  # not a view, which could not be divided in place

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = slopes
        (y,) = ctx.saved_tensors
        rows = ctx.rows
        pulled = None
        if ctx.needs_input_grad[0]:
            if torch.is_grad_enabled():  # to differentiate it again: the Hessian is I / divisor
                rows = rows + _moved(y, rows, ctx.kept) / ctx.divisor
            pulled = rows * slope
            if pulled.shape != y.shape or pulled.dtype != y.dtype:
                pulled = pulled.reshape(y.shape).to(y.dtype)
        return pulled, slope if ctx.needs_input_grad[1] else None, None


def _may_wait(y: Tensor) -> bool:
    """Whether results may be read back to the host now: not while a step is compiled, transformed or captured."""
    return not (sees_operators() or (isinstance(y, Tensor) and is_captured(y.device)))
