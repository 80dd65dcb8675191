"""The scale-free dampings that are compared with each other, by the names that `--damping` has for them.

`auto` is the package's own. The others are candidates on trial, so they live here and not in
`newton_losses.curvature`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..curvature import (
    CurvatureKind,
    Damped,
    Expansion,
    NormalizedDamping,
    as_curvature,
    eigenvalue_scale,
    loss_values,
)
from ..errors import ArgumentError
from ..newton import NewtonLoss, NewtonTarget, newton_target, surrogate

RULES = ("auto", "trace", "largest", "running", "trust")


def parse_rule(text: str) -> tuple[str, float | None]:
    """The name and the factor of a rule, which is written as a name or as name:factor.

    >>> parse_rule("auto"), parse_rule("largest:0.5")
    (('auto', None), ('largest', 0.5))
    """
    name, colon, number = text.partition(":")
    try:
        factor = float(number) if colon else None
    except ValueError:
        factor = float("nan")
    if name not in RULES or (factor is not None and not 0 < factor < float("inf")):
        raise ArgumentError(
            f"--damping {text}: it is a positive number, or one of {', '.join(RULES)}, with a factor as in auto:0.3."
        )
    return name, factor


def with_rule(loss: Any, kind: CurvatureKind, text: str, **options: Any) -> NewtonLoss:
    """The Newton loss of `loss` with the damping rule that `text` names."""
    name, factor = parse_rule(text)
    if name == "trust":
        return TrustRegion(loss, kind, factor or 1.0, **options)
    rules: dict[str, Any] = {"trace": _Trace, "largest": _Largest, "running": _Running}
    if name in rules:
        rule = rules[name](factor or 1.0, kind)
        newton = NewtonLoss(loss, kind, rule, **options)
        newton.add_module("rule", rule if isinstance(rule, nn.Module) else None)
        return newton
    return NewtonLoss(loss, kind, NormalizedDamping(factor or 1.0), **options)


def _damped(factor: float | Tensor, scale: Tensor, kind: CurvatureKind) -> Damped:
    return Damped(factor * scale, scale.sqrt() if kind == "fisher" else 1.0)


def _matrix(expansion: Expansion) -> Tensor:
    assert expansion.curvature is not None
    return as_curvature(expansion.curvature).dense().double()


class _Trace:
    """Relative to the mean eigenvalue, tr C/m; of an indefinite Hessian, to its absolute value."""

    def __init__(self, factor: float, kind: CurvatureKind) -> None:
        self._factor, self._kind = factor, kind

    def __call__(self, expansion: Expansion) -> Damped:
        return _damped(self._factor, _matrix(expansion).diagonal().mean().abs(), self._kind)


class _Largest:
    """Relative to the largest absolute eigenvalue, by 16 rounds of power iteration."""

    def __init__(self, factor: float, kind: CurvatureKind) -> None:
        self._factor, self._kind = factor, kind

    def __call__(self, expansion: Expansion) -> Damped:
        matrix = _matrix(expansion)
        # No symmetry of a loss keeps such a start away from an eigenvector.
        row = torch.arange(1, len(matrix) + 1, device=matrix.device, dtype=matrix.dtype).sqrt().cos()
        norm = row.norm()
        for _ in range(16):
            row = matrix @ (row / norm)
            norm = row.norm()
        return _damped(self._factor, norm, self._kind)


class _Running(nn.Module):
    """Relative to a running geometric mean of the root mean square eigenvalue over the batches."""

    log_scale: Tensor
    weight: Tensor

    def __init__(self, factor: float, kind: CurvatureKind, memory: float = 0.99) -> None:
        super().__init__()
        self._factor, self._kind, self._memory = factor, kind, memory
        self.register_buffer("log_scale", torch.zeros((), dtype=torch.float64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))

    def forward(self, expansion: Expansion) -> Damped:
        now = eigenvalue_scale(expansion).detach().double().log()
        usable = torch.isfinite(now)
        rate = torch.where(usable, 1 - self._memory, 0.0)
        self.log_scale.add_(rate * (torch.where(usable, now, 0.0) - self.log_scale))
        self.weight.add_(rate * (1 - self.weight))
        return _damped(self._factor, (self.log_scale / self.weight).exp(), self._kind)


class _Factor(nn.Module):
    """λ = factor · r with a factor that changes."""

    factor: Tensor

    def __init__(self, factor: float, kind: CurvatureKind) -> None:
        super().__init__()
        self._kind = kind
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, expansion: Expansion) -> Damped:
        return _damped(self.factor, eigenvalue_scale(expansion), self._kind)


class TrustRegion(NewtonLoss):
    """Levenberg and Marquardt's rule: the factor grows where the loss at z* is above its quadratic model.

    With s the step, the model promises (1/N) Σ sᵢᵀ∇ℓᵢ − ½ sᵢᵀCsᵢ; the loss is evaluated once more for
    what is kept of it. Below a quarter the factor grows by half, above three quarters it falls by a third.
    """

    rule: _Factor

    def __init__(self, loss: Any, kind: CurvatureKind, factor: float, **options: Any) -> None:
        rule = _Factor(factor, kind)
        super().__init__(loss, kind, rule, **options)
        self.rule = rule

    def forward(self, y: Tensor, *targets: Any) -> Tensor:
        found = newton_target(self.loss, y, *targets, **self.options)
        self._learn(found, targets)
        self.skipped.add_((~found.kept).sum())
        return surrogate(y, found, self.value, self.options["reduction"])

    @torch.no_grad()
    def _learn(self, found: NewtonTarget, targets: tuple[Any, ...]) -> None:
        after = loss_values(self.loss, found.target, *targets, reduction=self.options["reduction"])
        wide = found.step.double()
        promised = (wide * (found.gradient - wide @ _matrix(found) / 2)).sum()
        ratio = (found.value - after).double().sum() / promised
        change = torch.where(ratio > 0.75, 2 / 3, torch.where(ratio > 0.25, 1.0, 1.5))
        self.rule.factor.copy_((self.rule.factor * change).clamp(1e-3, 1e3))
