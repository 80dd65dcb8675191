"""The Newton loss as functions: `newton_loss`, and `newton_target` for the target z* of a step itself.

`NewtonLoss`, in `newton.py`, never forms that target; what they share is there.
"""

from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from ._arguments import bound_targets, is_exchangeable, padded_outputs, with_mask
from .curvature import (
    CurvatureKind,
    Damping,
    Expandable,
    Expansion,
    GroupChoice,
    Loss,
    Reduction,
    Spectrum,
    agreed_form,
    check_options,
    check_value,
    expand_bound,
    newton_step,
    plain_value,
    resolve_damping,
    resolve_group,
    resolve_reduction,
    share_curvature,
)
from .newton import NewtonOptions, Value, check_is_plain, compute_newton_loss


def newton_loss(
    loss: Loss | Expandable,
    y: Tensor,
    *targets: Any,
    value: Value = "loss",
    mask: Tensor | None = None,
    **options: Unpack[NewtonOptions],
) -> Tensor:
    """The Newton loss of `loss` at `y` as a scalar: `NewtonLoss` as a function, without its checks and its memory.

    With "auto" the unit ρ is that of this batch alone, since a function keeps nothing. In training that moves the
    optimum where batches are small, and steps do not shrink near it: use `NewtonLoss`, or pass a number or a
    `RelativeDamping`.

    >>> import torch
    >>> y = torch.zeros(2, 1, requires_grad=True)
    >>> newton_loss(lambda y: (y - 3).square().sum(1), y, curvature="hessian", damping=1e-9).backward()
    >>> y.grad  # (y − z*) / N with z* = 3
    tensor([[-1.5000],
            [-1.5000]])
    """
    check_value(value)
    if unknown := [name for name in options if name not in NewtonOptions.__annotations__]:
        raise TypeError(
            f"newton_loss: {', '.join(unknown)} is no option of a Newton loss; these are "
            f"{', '.join(NewtonOptions.__annotations__)}. Targets by name are for NewtonLoss: pass them by position."
        )
    check_options(**options)
    check_is_plain(loss, "newton_loss")
    reduction = resolve_reduction(loss, options.get("reduction"))
    options["exchangeable"] = is_exchangeable(loss, options.get("exchangeable"))
    if isinstance(y, Tensor) and y.is_nested:
        y, targets, _, mask = padded_outputs(y, targets, {}, mask, "newton_loss")
    loss, targets, mask = bound_targets(loss, y, targets, {}, mask, "newton_loss")
    loss, targets, mask = with_mask(loss, y, targets, mask)
    if value == "loss" and not torch.is_grad_enabled():
        return plain_value(loss, y, targets, reduction, mask)
    return compute_newton_loss(loss, y, targets, value, {**options, "reduction": reduction}, mask=mask)[0]


@dataclass(frozen=True, kw_only=True)
class NewtonTarget(Expansion):
    """An expansion, and what one damped Newton step from it gives.

    - `target` has the shape of the outputs: zᵢ* = ȳᵢ − stepᵢ.
    - `step` is `(N, m)`: (C + λI)⁻¹∇ℓᵢ, with "auto" times λ/ρ; zero for samples that were left out.
    - `kept` is `(N,)` boolean: whether a sample's value, gradient and step are finite.
    - `count` is the N that means are taken over: the samples with finite value and gradient, at least 1.
    - `total` is that N summed over all `ranks` that share the batch; alone, `count` itself and 1.
    """

    target: Tensor
    step: Tensor
    kept: Tensor
    count: Tensor
    total: Tensor
    ranks: int = 1


def newton_target(
    loss: Loss | Expandable,
    y: Tensor,
    *targets: Any,
    curvature: CurvatureKind = "fisher",
    damping: Damping = "auto",
    spectrum: Spectrum | None = None,
    reduction: Reduction | None = None,
    matrix_free: bool | None = None,
    process_group: GroupChoice = "default",
    exchangeable: bool | None = None,
    mask: Tensor | None = None,
) -> NewtonTarget:
    """The explicit target z* of one damped Newton step on `loss` from the outputs `y`, `(N, ...)`.

        zᵢ* = ȳᵢ − (C + λI)⁻¹ ∇ℓᵢ(ȳᵢ),   C = (1/N) Σ ∇ℓᵢ∇ℓᵢᵀ  or  (1/N) Σ ∇²ℓᵢ

    for a `damping` λ. Without one, that of "auto", the step is (C/λ + I)⁻¹∇ℓᵢ/ρ with λ and ρ from the batch.
    Target and step carry no graph; the values do where `loss` itself has something to learn. A sample whose value
    or gradient is not finite keeps z* = ȳ and takes no part in C. Where processes share the batch, C covers the
    global batch; every rank must make this call. The arguments are those of `NewtonLoss`.

    >>> import torch
    >>> newton_target(lambda y: (y - 3).square().sum(1), torch.zeros(2, 1), curvature="hessian", damping=1e-9).target
    tensor([[3.],
            [3.]])
    """
    check_options(curvature, damping, spectrum, process_group=process_group)
    check_is_plain(loss, "newton_target")
    group = resolve_group(process_group)
    if group is not None and curvature == "hessian" and isinstance(y, Tensor):
        matrix_free = agreed_form(loss, y, matrix_free)
    is_set = is_exchangeable(loss, exchangeable)
    loss, targets, mask = bound_targets(loss, y, targets, {}, mask, "newton_target")
    loss, targets, mask = with_mask(loss, y, targets, mask)
    own_reduction = resolve_reduction(loss, reduction)
    expansion = expand_bound(loss, y, targets, curvature, own_reduction, matrix_free, mask, is_set)
    shared = None if group is None else share_curvature(expansion, curvature, group, matrix_free=matrix_free)
    expansion = expansion if shared is None else shared.expansion
    step = newton_step(expansion, resolve_damping(damping, group), spectrum)
    rows = step.rows.detach()
    return NewtonTarget(
        expansion.value,
        expansion.gradient,
        expansion.curvature,
        target=y.detach() - rows.reshape(y.shape).to(y.dtype),
        step=rows,
        kept=step.kept,
        count=step.count,
        total=step.count if shared is None else shared.total,
        ranks=1 if shared is None else shared.ranks,
    )
