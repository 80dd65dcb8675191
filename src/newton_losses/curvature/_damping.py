"""Rules for the damping λ in C + λI. A number is the simplest rule; anything callable can be one."""

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from ..errors import ArgumentError
from ._distributed import sum_over
from ._expansion import Expansion, FisherFactor, FisherMatrix, finite
from ._forms import Curvature, Dense, LowRank, Masked, OwnParts, widened
from ._options import NUMBERS, check_number, check_positive

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Damped(NamedTuple):
    """λ, and a factor of the step: the step becomes length · (C + λI)⁻¹∇ℓᵢ."""

    damping: Tensor | float
    length: Tensor | float = 1.0


class DampingRule(Protocol):
    """Gives the damping for one batch from its expansion: a positive scalar tensor, a number, or `Damped`.

    It is called once per batch, before the solve. It must not read tensors back to the host.
    """

    def __call__(self, expansion: Expansion) -> Tensor | float | Damped: ...


Rule = float | Tensor | DampingRule
Damping = Rule | Literal["auto"]


@dataclass(frozen=True)
class RelativeDamping:
    """λ = factor · r, with r the root mean square of the curvature's m eigenvalues, ‖C‖_F / √m.

    Scale-free for the Hessian: multiplying the loss by a constant multiplies C and ∇ℓ alike, and
    leaves the Newton step as it was. Where the curvature vanishes altogether there is no scale to be
    relative to, and the step is left out like that of a non-finite sample.

    >>> expansion = Expansion(torch.zeros(1), torch.zeros(1, 2), torch.diag(torch.tensor([3.0, 4.0])))
    >>> RelativeDamping(2.0)(expansion)  # 2 · √((9 + 16) / 2)
    tensor(7.0711, dtype=torch.float64)
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        _keep_as_float(self)

    def __call__(self, expansion: Expansion) -> Tensor:
        return self.factor * _eigenvalue_scale(expansion)


@dataclass(frozen=True)
class NormalizedDamping:
    """λ = factor · r as in `RelativeDamping`, and the step normalised by the batch's gradient.

    With ρ² the mean square of the entries of the
    gradients, (1/(N·m)) Σ ‖∇ℓᵢ‖², the step becomes

        (λ/ρ) (C + λI)⁻¹ ∇ℓᵢ = (C/λ + I)⁻¹ ∇ℓᵢ/ρ

    ∇ℓᵢ/ρ is the gradient in units of its own size, and C/λ the curvature in units of its own. Neither changes
    when the loss is multiplied by a constant, and so nothing does: for the Hessian, which is
    linear in the loss, as for the empirical Fisher, which is quadratic. No batch takes a longer step than
    others because its curvature happens to be small, or its gradient large. The price is Newton's own
    length: the step does not get shorter close to a minimum, which Adam would have undone anyway, while plain
    gradient descent needs a learning rate that falls.

    By default, negative eigenvalues of the Hessian then lose their sign (spectrum "absolute"), so that C/λ + I only
    ever shortens: no step is longer than the normalised gradient. Where all gradients are zero there is
    no step; where all are rounding, it is one of full length. With a single output |C|/λ is 1, and the step half the
    normalised gradient, whatever the curvature. With a `group`, ρ is that of all its ranks' samples; `NewtonLoss` and
    `inject_fisher` see to that.

    >>> expansion = Expansion(torch.zeros(1), torch.tensor([[3.0, 4.0]]), torch.eye(2))
    >>> damping, length = NormalizedDamping(2.0)(expansion)
    >>> damping, length * 12.5**0.5  # ρ² = (9 + 16) / 2
    (tensor(2., dtype=torch.float64), tensor(2., dtype=torch.float64))
    """

    factor: float = 1.0
    group: "ProcessGroup | None" = field(default=None, repr=False, compare=False)
    stretch: Tensor | float = field(default=1.0, repr=False, compare=False)

    def __post_init__(self) -> None:
        _keep_as_float(self)

    def __call__(self, expansion: Expansion) -> Damped:
        usable = finite(expansion)
        gradient = torch.where(usable[:, None], expansion.gradient, 0.0)
        return self.damped(_eigenvalue_scale(expansion), gradient, whole_samples(expansion, usable))

    def damped(self, scale: Tensor, gradient: Tensor, count: Tensor) -> Damped:
        """λ and the length from r, the gradients (zero where a sample is left out) and the number of the others."""
        # Without curvature every λ gives the same step, the normalised gradient.
        damping = torch.where(scale == 0, 1.0, self.factor * self.stretch * scale)
        squares = widened(gradient).square().sum() / gradient.shape[1]
        if self.group is not None:
            squares, count = sum_over(self.group, torch.stack([squares, count.to(squares.dtype)]))
        size = (squares / torch.where(count > 0, count, 1)).sqrt().to(damping.dtype)
        return Damped(damping, torch.where(size == 0, 1.0, damping / size))


class RunningDamping(NormalizedDamping):
    """What "auto" stands for: `NormalizedDamping` with ρ over the last thousand batches, and no dependence on N.

        λ = factor · ‖C‖_F / √min(N, m)   for the empirical Fisher,   factor · ‖C‖_F / √m   for the Hessian

    `NewtonLoss` and `InjectFisher` keep ρ, the root of a running mean of the batches' mean squares. Divided by
    it, gradients keep their meaning: they cancel where their mean is zero, whatever the size of the batch, and shrink
    near a minimum. Neither a sample nor the batch counts for more than ten times a batch's usual energy, N·m·ρ²: what
    exceeds it is shortened. No batch more than doubles ρ². So one exploding gradient neither drowns out the others nor
    sets the unit for long.

    λ is over the eigenvalues that can be other than zero: a Fisher of N < m gradients has N of those. With
    √m, a smaller batch would step less far, by about 1/(1 + √(m/N)). With `curvature="sample"`,
    ‖C‖_F is √(Σ (‖gᵢ‖²/N)²), as if all gradients were orthogonal.

    In functions (`newton_loss`, `newton_target`, `inject_fisher`), which keep nothing, ρ is the batch's own.
    """

    def in_batch(self, curvature: Curvature, gradient: Tensor) -> NormalizedDamping:
        """The rule for one batch, in its own unit."""
        return NormalizedDamping(self.factor, self.group, self.stretch_in(curvature, gradient))

    def stretch_in(self, curvature: Curvature, gradient: Tensor) -> Tensor | float:
        """√(m/N) where N < m gradients make up the curvature, else 1."""
        if isinstance(curvature, FisherMatrix):
            return 1.0
        size: Tensor | float = gradient.shape[1]
        count: Tensor | float = size
        if isinstance(curvature, OwnParts) and curvature.sums is None and curvature.mask is None:
            count = min(len(gradient), gradient.shape[1])
        elif isinstance(curvature, OwnParts):
            sums = curvature.sums
            outputs, samples = curvature.counted(curvature.usable()) if sums is None else sums[2:].unbind()
            outputs, samples = (widened(number).clamp(min=1) for number in (outputs, samples))
            size = outputs / samples
            count = torch.minimum(samples, size)
        elif isinstance(curvature, Masked) and curvature.semidefinite:
            exist = widened(curvature.pairs.diagonal())
            samples = exist.max().clamp(min=1)
            size = (exist.sum() / samples).clamp(min=1)
            count = torch.minimum(samples, size)
        elif isinstance(curvature, LowRank):
            rows = curvature.gradient if isinstance(curvature, FisherFactor) else curvature.factor
            count = min(len(rows), gradient.shape[1])
        elif isinstance(curvature, Dense) and curvature.semidefinite and curvature.count is not None:
            count = curvature.count.clamp(min=1, max=gradient.shape[1])
        share = size / max(1, count) if isinstance(count, (int, float)) else size / count
        return share.sqrt() if isinstance(share, Tensor) else math.sqrt(share)


def whole_samples(expansion: Expansion, usable: Tensor) -> Tensor:
    """How many samples are usable; where some of their outputs do not exist, the number of those that do, over m."""
    mask = getattr(expansion.curvature, "mask", None)
    return usable.sum() if mask is None else widened((mask & usable[:, None]).sum()) / max(1, mask.shape[1])


def _eigenvalue_scale(expansion: Expansion) -> Tensor:
    """The root mean square r of the m eigenvalues of an expansion's curvature."""
    if expansion.curvature is None:
        raise ArgumentError("A relative damping needs an expansion with a curvature to be relative to.")
    return expansion.curvature.mean_square().sqrt()


def resolve_damping(damping: Damping, group: "ProcessGroup | None") -> Rule:
    """The rule that "auto" stands for, in the group that shares the batch; everything else is itself."""
    rule = AUTO if isinstance(damping, str) else damping
    if group is None and not (isinstance(rule, NormalizedDamping) and rule.group is not None):
        return rule
    if type(rule) in (NormalizedDamping, RunningDamping):  # not by `replace`, into which not every compiler looks
        return type(rule)(rule.factor, group)  # type: ignore[union-attr, call-arg]
    return replace(rule, group=group) if isinstance(rule, NormalizedDamping) else rule


def apply_rule(damping: Rule, expansion: Expansion) -> Damped:
    """The damping of this batch and the factor of its step.

    One in a tensor that is not positive and finite becomes NaN, without waiting for the device: no sample
    has a solution then, and all are counted as left out.
    """
    found = damping if isinstance(damping, NUMBERS) else damping(expansion)
    found = found if isinstance(found, Damped) else Damped(found)
    return Damped(*(_usable(number) for number in found))


def _usable(number: Tensor | float) -> Tensor | float:
    if not isinstance(number, NUMBERS):
        raise ArgumentError(f"A damping rule returned {number!r}; it gives a positive number or a scalar tensor.")
    check_number(number)
    if not isinstance(number, Tensor):
        return float(number)
    number = number.detach().reshape(())
    return torch.where((number > 0) & torch.isfinite(number), number, math.nan)


def _keep_as_float(rule: "RelativeDamping | NormalizedDamping") -> None:
    """Check the rule's factor. NumPy's numbers become Python's: a compiler takes them for arrays."""
    check_positive(rule.factor, f"The factor of {type(rule).__name__}")
    if type(rule.factor) is not float:
        object.__setattr__(rule, "factor", float(rule.factor))


# What "auto" stands for.
AUTO = RunningDamping()
