"""Rules for the damping λ in C + λI. A number is the simplest rule; anything callable can be one."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..errors import ArgumentError
from ._expansion import Expansion
from ._forms import as_curvature


class DampingRule(Protocol):
    """Gives the damping for one batch from its expansion: a positive scalar tensor, or a number.

    It is called once per batch, before the solve. It must not read tensors back to the host.
    """

    def __call__(self, expansion: Expansion) -> Tensor | float: ...


Damping = float | Tensor | DampingRule


@dataclass(frozen=True)
class RelativeDamping:
    """λ = factor · r, with r the root mean square of the curvature's m eigenvalues, ‖C‖_F / √m.

    Scale-free for the Hessian: multiplying the loss by a constant multiplies C and ∇ℓ alike, and
    leaves the Newton step as it was. Where the curvature vanishes altogether there is no scale to be
    relative to, and the step is left out like that of a non-finite sample.

    >>> expansion = Expansion(torch.zeros(1), torch.zeros(1, 2), torch.diag(torch.tensor([3.0, 4.0])))
    >>> RelativeDamping(2.0)(expansion)  # 2 · √((9 + 16) / 2)
    tensor(7.0711)
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self.factor, "The factor of RelativeDamping")

    def __call__(self, expansion: Expansion) -> Tensor:
        if expansion.curvature is None:
            raise ArgumentError("RelativeDamping needs an expansion with a curvature to be relative to.")
        scale = as_curvature(expansion.curvature).mean_square().sqrt()
        return self.factor * scale


def check_damping(damping: object) -> None:
    """Refuse what cannot be a damping. A tensor's value is not looked at: that would wait for the device."""
    if isinstance(damping, bool) or not (isinstance(damping, int | float | Tensor) or callable(damping)):
        raise ArgumentError(
            f"The damping is a positive number, a scalar tensor or a rule that maps an expansion to "
            f"one, got {damping!r}."
        )
    if isinstance(damping, int | float):
        _check_positive(damping, "The damping")
    if isinstance(damping, Tensor) and damping.numel() != 1:
        raise ArgumentError(f"The damping is one number for the batch, got shape {tuple(damping.shape)}.")


def apply_rule(damping: Damping, expansion: Expansion) -> Tensor | float:
    """The damping of this batch.

    One in a tensor that is not positive and finite becomes NaN, without waiting for the device: no sample
    has a solution then, and all are counted as left out.
    """
    found = damping if isinstance(damping, int | float | Tensor) else damping(expansion)
    if not isinstance(found, int | float | Tensor):
        raise ArgumentError(f"A damping rule returned {found!r}; it gives a positive number or a scalar tensor.")
    check_damping(found)
    if not isinstance(found, Tensor):
        return found
    found = found.detach().reshape(())
    return torch.where((found > 0) & torch.isfinite(found), found, math.nan)


def _check_positive(number: float, what: str) -> None:
    if not (math.isfinite(number) and number > 0):
        raise ArgumentError(
            f"{what} has to be a positive, finite number, got {number!r}. It keeps the curvature "
            "away from singular; the larger, the closer the step is to the plain gradient."
        )
