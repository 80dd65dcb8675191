"""Damping by its definition: what a rule makes of a curvature and its gradients, by hand and in float64."""

from typing import Any, NamedTuple

import torch
from drawing import Draw
from torch import Tensor

import newton_losses as nl
from newton_losses.curvature import LowRank


class Equation(NamedTuple):
    """A · step = b for each row b; `damping` is the part of A that is not curvature.

    The library multiplies by `length` at last, so that a step below `length` times the least number of its dtype
    is lost. A = C/`unit` + `damping`·I and b = g/`size` for a curvature C and gradients g; `share` is how fast the
    damping grows with ‖C‖_F.
    """

    matrix: Tensor
    rows: Tensor
    damping: float
    length: float = 1.0
    unit: float = 1.0
    size: float = 1.0
    share: float = 0.0

    @property
    def terms(self) -> Tensor:
        """The size of what A is the sum of: where an eigenvalue of C is -λ, A is smaller than its rounding."""
        identity = torch.eye(len(self.matrix), dtype=self.matrix.dtype)
        return torch.linalg.matrix_norm(self.matrix - self.damping * identity) + self.damping


class Rounding(NamedTuple):
    """How far a curvature (in the Frobenius norm) and a gradient may be off when a loss is differentiated in a dtype.

    A loss may add up numbers that cancel: the Hessian of a cross-entropy is p - p² where a probability p is almost 1.
    Its error is the unit roundoff of these numbers, not of what they leave.
    """

    curvature: float = 0.0
    gradient: float = 0.0

    def residual(self, equation: Equation, step: Tensor) -> Tensor:
        """By how much A·step may miss b, `(N,)`, where step solves the equation of the rounded C and g.

        ‖δA‖·‖step‖ + ‖δb‖, to first order. C ↦ |C| and C ↦ max(C, 0) take symmetric matrices no further apart than
        they were. A λ = factor·‖C‖_F/√m moves by `share`·‖δC‖; C/λ by at most 2‖δC‖/λ, and g/ρ by 2‖δg‖/ρ, since ρ
        and λ are norms of g and C.
        """
        doubled = 2.0 if equation.unit != 1.0 or equation.size != 1.0 else 1.0
        matrix = (doubled / equation.unit + equation.share) * self.curvature
        rows = doubled / equation.size * self.gradient
        return matrix * torch.linalg.vector_norm(step, dim=1) + rows


def draw_damping(draw: Draw) -> Any:
    number = draw.power(-6, 6)
    kind = draw.pick(("number",) * 5 + ("tensor", "relative", "auto", "normalized", "normalized"))
    if kind == "tensor":
        return torch.tensor(number)
    if kind == "relative":
        return nl.RelativeDamping(draw.power(-3, 2))
    if kind == "normalized":
        return nl.NormalizedDamping(draw.power(-3, 3))
    return "auto" if kind == "auto" else number


def exact(curvature: Any) -> Tensor:
    """The matrix in float64; that of a factor without what its own dtype would have lost."""
    if isinstance(curvature, LowRank):
        factor = curvature.factor.double()
        return factor.mT @ factor
    return curvature.dense().double()


def root_mean_square(entries: Tensor) -> Tensor:
    return entries.square().mean().sqrt()


def beyond_range(rule: Any, curvature: Tensor, gradient: Tensor) -> bool:
    """Whether the curvature, or the squares that a relative rule is made of, leave the range of float64."""
    if not torch.isfinite(curvature).all():
        return True
    if isinstance(rule, float | Tensor):
        return False
    sizes = (curvature.abs().max(), gradient.abs().max())
    return not all(size == 0 or 1e-140 < size < 1e140 for size in sizes)


def is_uneven(rule: Any, gradient: Tensor) -> bool:
    """Whether a module with "auto" would shorten a sample of its first batch: one far above the median of all."""
    if not isinstance(rule, str):
        return False
    squares = gradient[torch.isfinite(gradient).all(1)].double().square().sum(1)
    there = squares[squares > 0]
    return len(there) > 0 and bool(there.max() > 5e3 * there.median())


def by_definition(
    rule: Any, curvature: Tensor, gradient: Tensor, spectrum: str | None, kind: str, count: int | None = None
) -> Equation:
    """What a rule says that the step solves.

    A number λ:     (C + λI) · step = ∇ℓᵢ. `RelativeDamping` is the number factor · ‖C‖_F/√m.
    Normalized:     (C/λ + I) · step = ∇ℓᵢ/ρ with the same λ, and ρ the root mean square of all gradients' entries.
    "auto":         that with factor 1, and ‖C‖_F/√N for a Fisher of N < m samples, N the `count` of the batch.
    """
    normalized = isinstance(rule, str | nl.NormalizedDamping)
    size = len(curvature)
    among = min(size, len(gradient) if count is None else count) if rule == "auto" and kind == "fisher" else size
    scale = float(torch.linalg.matrix_norm(curvature) / among**0.5)
    identity = torch.eye(len(curvature), dtype=torch.float64)
    if kind == "hessian" and (spectrum or ("absolute" if normalized else "raw")) != "raw":
        values, vectors = torch.linalg.eigh(curvature)
        values = values.clamp(min=0) if spectrum == "clip" else values.abs()
        curvature = vectors @ torch.diag(values) @ vectors.mT
    if not normalized:
        share = rule.factor / among**0.5 if isinstance(rule, nl.RelativeDamping) else 0.0
        damping = rule.factor * scale if share else float(rule)
        return Equation(curvature + damping * identity, gradient, damping, share=share)
    factor = 1.0 if rule == "auto" else rule.factor
    damping = factor * scale or 1.0  # without a curvature, any gives the same
    size = float(root_mean_square(gradient)) or 1.0
    return Equation(curvature / damping + identity, gradient / size, 1.0, damping / size, damping, size)
