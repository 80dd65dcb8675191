"""The empirical-Fisher Newton loss as a change of the backward pass: identity forward, Newton step backward.

For losses that cannot be handed over as a function: whatever comes after `inject_fisher` is the loss,
and the gradient that arrives is turned into that of its Newton loss on the way to the network.
"""

import math
from numbers import Real
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.amp import GradScaler

from ._by_hand import NoSecondDerivative
from ._skipped import OnNonfinite, SkipWatch, skip_counter
from ._tracing import inside_transform
from .curvature import (
    Damping,
    Expansion,
    GroupChoice,
    NormalizedDamping,
    OwnParts,
    Reduction,
    RunningDamping,
    RunningScale,
    Solved,
    check_damping,
    check_group,
    check_outputs,
    default_fisher_step,
    empirical_fisher,
    finite,
    fisher_step,
    flatten_outputs,
    full_precision,
    host_fisher,
    host_step,
    knows_damping,
    newton_step,
    plain_damping,
    resolve_damping,
    resolve_group,
    sample_step,
    settle,
    share_curvature,
    suits_numpy,
)
from .errors import ArgumentError, DerivativeError

LossScale = float | Tensor | GradScaler
InjectedCurvature = Literal["fisher", "sample"]


def inject_fisher(
    y: Tensor,
    damping: Damping = "auto",
    *,
    curvature: InjectedCurvature = "fisher",
    reduction: Reduction = "mean",
    loss_scale: LossScale = 1.0,
    process_group: GroupChoice = "default",
) -> Tensor:
    """`y` itself, through which gradients flow back as those of the empirical-Fisher Newton loss.

    Let gᵢ be what arrives for sample i of `y`, `(N, ...)`. Behind a loss that is a mean over the batch,
    gᵢ = ∇ℓᵢ/N; behind a sum, gᵢ = ∇ℓᵢ. What leaves is

        (F/λ + I)⁻¹ gᵢ/ρ,   F = (1/N) Σ ∇ℓᵢ∇ℓᵢᵀ

    with λ the root mean square of F's eigenvalues and ρ that of all entries of the ∇ℓᵢ (`RunningDamping`, here of this
    batch alone): no constant factor of the loss changes it. With a number as `damping` it is the paper's,
    (F + λI)⁻¹gᵢ. With `curvature="sample"` each sample has its own part of F alone, ∇ℓᵢ∇ℓᵢᵀ/N: nothing is solved, and
    large gradients are softly clipped.

    F is quadratic in the gradient, so it has to know any factor that the loss is multiplied by before
    `backward()`: `loss_scale` is that factor (1/k when k batches are accumulated), or the `GradScaler`
    that scales the loss. What leaves is scaled like what arrived; without `loss_scale`, "auto" would take the factor as
    part of the loss, and drop it. Samples with a non-finite gradient get zero, and the others theirs as if they were
    not there; behind a `GradScaler` they stay non-finite, because it looks for them to skip the step and lower the
    scale.

    What follows must not mix the samples of the batch, and cannot be checked from here: `check_loss(loss, y, *targets)`
    does that, with the loss as a function.

    Where `torch.distributed` is initialised, F is that of all ranks' samples, and what leaves is such
    that its average over the ranks, which DDP and FSDP take, is that of one process with the whole batch.
    Every rank has to run its backward pass, also for an empty batch. `process_group` is as in `NewtonLoss`.

    >>> y = torch.tensor([[2.0], [4.0]], requires_grad=True)
    >>> inject_fisher(y, damping=1.0).square().sum(1).mean().backward()
    >>> y.grad  # ∇ℓᵢ = 4 and 8, F = (16 + 64)/2, so ∇ℓᵢ / (2 · 41)
    tensor([[0.0488],
            [0.0976]])
    """
    settings = _Settings(damping, reduction, loss_scale, process_group, curvature)
    _check_settings(settings)
    return _inject(y, settings, None)


class InjectFisher(RunningScale):
    """`inject_fisher` as a module, for the end of a model: `nn.Sequential(network, InjectFisher())`.

    In evaluation nothing flows back, so nothing changes. With "auto" the buffer `running_square` keeps the unit ρ over
    the run, as in `NewtonLoss`, which a function cannot: in training, prefer the module. The buffer `skipped` counts,
    on the device, the samples whose gradient was not finite; `on_nonfinite` is as in `NewtonLoss`. Behind a
    `GradScaler`, which looks for such gradients itself, there is no warning.

    >>> InjectFisher(damping=10.0)
    InjectFisher(damping=10.0)
    """

    skipped: Tensor

    def __init__(
        self,
        damping: Damping = "auto",
        *,
        curvature: InjectedCurvature = "fisher",
        reduction: Reduction = "mean",
        loss_scale: LossScale = 1.0,
        process_group: GroupChoice = "default",
        on_nonfinite: OnNonfinite = "warn",
    ) -> None:
        super().__init__()
        _check_settings(_Settings(damping, reduction, loss_scale, process_group, curvature))
        self.damping = plain_damping(damping)
        self.curvature: InjectedCurvature = curvature
        self.reduction: Reduction = reduction
        self.loss_scale = loss_scale
        self.process_group = process_group
        self._keep_scale(resolve_damping(self.damping, None))
        self._watch = SkipWatch("InjectFisher", on_nonfinite)
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, y: Tensor) -> Tensor:
        if getattr(self, "_is_replica", False):
            raise ArgumentError(
                "InjectFisher inside nn.DataParallel: a replica sees a part of the batch, but gradients divided by all "
                "of it, and its Fisher would be wrong. Call inject_fisher on what the parallel model returns, or use "
                "DistributedDataParallel."
            )
        chosen = _Settings(self.damping, self.reduction, self.loss_scale, self.process_group, self.curvature)
        return _inject(y, chosen, self)

    def extra_repr(self) -> str:
        kind = "" if self.curvature == "fisher" else f", curvature={self.curvature!r}"
        return f"damping={self.damping!r}{kind}"


class _Settings(NamedTuple):
    damping: Damping
    reduction: Reduction
    loss_scale: LossScale
    process_group: GroupChoice
    curvature: InjectedCurvature


def _check_settings(settings: _Settings) -> None:
    check_damping(settings.damping)
    reduction, scale = settings.reduction, settings.loss_scale
    if not isinstance(reduction, str) or reduction not in ("mean", "sum"):
        raise ArgumentError(f"reduction={reduction!r}; what follows inject_fisher ends in a 'mean' or a 'sum'.")
    # A tuple, and Python's numbers in it: compilers do not look into NumPy's `Real`.
    is_factor = isinstance(scale, (int, float, Real)) and scale is not True and math.isfinite(scale) and scale != 0
    is_one_number = isinstance(scale, Tensor) and scale.numel() == 1
    if not (is_factor or is_one_number or isinstance(scale, GradScaler)):
        raise ArgumentError(
            f"loss_scale={scale!r}; it is the factor that the loss is multiplied by, a number other than 0 "
            "or a scalar tensor, or the GradScaler that scales the loss."
        )
    check_group(settings.process_group)
    if not isinstance(settings.curvature, str) or settings.curvature not in ("fisher", "sample"):
        raise ArgumentError(
            f"curvature={settings.curvature!r}; inject_fisher sees gradients alone, so that it can be 'fisher' or "
            "'sample'. NewtonLoss(loss, 'hessian') takes second derivatives."
        )


_NO_SECOND = (
    "What inject_fisher sends back is a Newton step, which has no derivative in the graph: a second derivative "
    "through it would be wrong. Take that of a loss without inject_fisher in it."
)


_NOT_COMPILED = (
    "inject_fisher inside a compiled torch.func.grad: torch's compiler does not call the backward pass of an operator "
    "there, and the plain gradient would come out. Compile a step that calls backward(), or use "
    "NewtonLoss(loss, 'fisher'), or leave this function out of the compiled part."
)


def _inject(y: Tensor, settings: _Settings, module: InjectFisher | None) -> Tensor:
    check_outputs(y)
    is_compiling, is_transformed = torch.compiler.is_compiling(), inside_transform()
    if is_compiling and is_transformed:
        raise DerivativeError(_NOT_COMPILED)
    injected: Tensor
    if is_compiling or is_transformed:
        injected = _InjectFisher.apply(y, settings, module)  # type: ignore[no-untyped-call]
    else:  # without the questions about transforms that `apply` asks, which take as long as ten operations
        injected = super(torch.autograd.Function, _InjectFisherOnTape).apply(y, settings, module)  # type: ignore[no-untyped-call]
    return injected


class _InjectFisher(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, settings: _Settings, module: InjectFisher | None) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.settings, ctx.module = inputs

    @staticmethod
    def backward(ctx: Any, arrived: Tensor) -> tuple[Tensor | None, ...]:
        if arrived.is_meta:  # a shape without values
            return arrived, None, None
        counter = None if ctx.module is None else skip_counter(ctx.module, arrived)
        run = None if ctx.module is None else ctx.module._scale_on(arrived)
        is_new = counter is not None and ctx.module.training
        known = is_new and ctx.module._is_known
        with full_precision(arrived):
            step = _short_way(arrived, ctx.settings, counter, run, is_new, known)
            step = step or _long_way(arrived, ctx.settings, run, is_new)
        if counter is not None and step.kept is not None and not step.counted:
            counter.add_((~step.kept).sum())
        if counter is not None and not torch.compiler.is_compiling():
            if is_new and not known:
                ctx.module._is_known = True
            _look(ctx.module, counter, step, len(arrived))
        leaving = step.rows
        if leaving.shape != arrived.shape or leaving.dtype != arrived.dtype:
            leaving = leaving.reshape(arrived.shape).to(arrived.dtype)
        if torch.is_grad_enabled() and arrived.requires_grad:  # to differentiate it again
            leaving = NoSecondDerivative.apply(leaving, arrived, _NO_SECOND)  # type: ignore[no-untyped-call]
        return leaving, None, None


def _look(module: "InjectFisher", counter: Tensor, step: Solved, count: int) -> None:
    """Has too much been skipped? Behind a `GradScaler` that is part of its search for a scale."""
    if isinstance(module.loss_scale, GradScaler):
        return
    module._watch.seen += count
    if step.kept is not None:
        module._watch.look(counter, count)


class _InjectFisherOnTape(torch.autograd.Function):
    """The same for the classic tape."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, settings: _Settings, module: InjectFisher | None) -> Tensor:
        ctx.settings, ctx.module = settings, module
        return y

    @staticmethod
    def backward(ctx: Any, arrived: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.module is None and not torch.is_grad_enabled():
            leaving = _ordinary_way(arrived, ctx.settings)
            if leaving is not None:
                return leaving, None, None
        return _InjectFisher.backward(ctx, arrived)


def _ordinary_way(arrived: Tensor, settings: _Settings) -> Tensor | None:
    """What leaves with the default's settings, or `None` where anything else is asked for, or nothing is so simple."""
    damping, reduction, loss_scale, process_group, curvature = settings
    is_ordinary = isinstance(damping, str) and type(loss_scale) is float and loss_scale == 1 and curvature == "fisher"
    if not is_ordinary or torch.compiler.is_compiling() or resolve_group(process_group) is not None:
        return None
    if suits_numpy(arrived):
        return host_fisher(arrived.detach(), reduction == "mean")
    return default_fisher_step(arrived.detach(), reduction == "mean")


def _short_way(
    arrived: Tensor, settings: _Settings, counter: Tensor | None, run: Tensor | None, is_new: bool, known: bool
) -> Solved | None:
    """In one process, with a damping and a scale that are plain numbers: from what arrived to what leaves."""
    damping, reduction, loss_scale, process_group, curvature = settings
    rule = resolve_damping(damping, None)
    if not isinstance(loss_scale, (int, float)) or arrived.numel() == 0 or resolve_group(process_group) is not None:
        return None
    flat = flatten_outputs(arrived)
    # ∇ℓᵢ = share · gᵢ: with a λ of its own, (F + λI)⁻¹∇ℓᵢ is (F/share² + λ/share²)⁻¹gᵢ/share.
    share = (flat.shape[0] if reduction == "mean" else 1) / loss_scale
    is_normalized = isinstance(rule, NormalizedDamping)
    # In the precision of the gradients: λ may come in a float32 tensor, which would lose digits of a float64 step.
    number = rule.to(flat.dtype) if isinstance(rule, Tensor) else rule
    own = number / share**2 if isinstance(number, (int, float, Tensor)) else rule
    # The unit of a run is that of the ∇ℓᵢ, of which a step in the batch's own unit knows nothing.
    gradient, is_mean = flat if run is None else flat * share, reduction == "mean"
    unit: Tensor | float = 1.0
    step = None
    if curvature == "fisher" and not torch.compiler.is_compiling():
        step = host_step(empirical_fisher(gradient), gradient, None, own, mean=is_mean, state=run, update=is_new)
    if step is None:
        if not knows_damping(rule):
            return None
        if run is not None:
            bare = Expansion(flat.new_zeros(len(flat)), gradient)
            settled, unit = settle(bare, "fisher", run, update=is_new, known=known)
            gradient = settled.gradient
        if curvature == "fisher":
            assert run is None or is_normalized  # only such a rule keeps a unit
            step = fisher_step(gradient, None, own, mean=is_mean, counter=counter, unit=unit)
            unit = 1.0
        else:
            parts = OwnParts(gradient)
            own = own.in_batch(parts, gradient) if isinstance(own, RunningDamping) else own
            step = sample_step(parts, own, mean=is_mean)
    if not is_normalized:
        return step.times(loss_scale / share)
    # Where ρ is the batch's own, the step has the sign of what arrived already.
    return step.times((abs(loss_scale) if run is None else loss_scale) * unit)


def _long_way(arrived: Tensor, settings: _Settings, run: Tensor | None, is_new: bool) -> Solved:
    """With any damping, scale and group."""
    damping, reduction, loss_scale, process_group, curvature = settings
    flat = flatten_outputs(arrived)
    group = resolve_group(process_group)
    if flat.numel() == 0 and group is None:
        return Solved(flat, None, 1)
    scaled = isinstance(loss_scale, GradScaler)
    scale = loss_scale.scale(flat.new_ones(())) if isinstance(loss_scale, GradScaler) else loss_scale
    if isinstance(scale, Tensor):  # in the precision of the gradients, as a λ above
        scale = scale.to(flat.dtype)
    share = len(flat) if reduction == "mean" else 1
    gradient = flat * (share / scale)
    # The values of the losses are not known here; a damping rule sees zeros.
    bare = Expansion(flat.new_zeros(len(flat)), gradient)
    form = OwnParts(gradient) if curvature == "sample" else empirical_fisher(gradient, finite(bare))
    expansion, unit = settle(Expansion(bare.value, gradient, form), "fisher", run, update=is_new, group=group)
    shared = None if group is None else share_curvature(expansion, curvature, group)
    step = newton_step(expansion if shared is None else shared.expansion, resolve_damping(damping, group))
    ranks, total = (1, step.count) if shared is None else (shared.ranks, shared.total)
    back = ranks * scale / total if reduction == "mean" else ranks * scale
    rows = step.rows * (back * unit)
    return Solved(torch.where(step.kept[:, None], rows, flat) if scaled else rows, step.kept, step.count)
