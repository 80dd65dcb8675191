"""The control that asks how much of a Newton loss is only the size of its step: one number instead of a matrix."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from newton_losses.curvature import CurvatureKind, Dense, Expandable, Expansion, expand, finite


class EnergyCurvature:
    """`loss` with the curvature c·I, where c is the energy of the batch's gradients.

        c = (1/N) Σ ‖∇ℓᵢ‖² / m,   ∂/∂yᵢ of its Newton loss = ∇ℓᵢ / (N (c + λ))

    c·m is the trace of the empirical Fisher, so this is a Fisher that keeps its scale and forgets all directions. It is
    an expansion like any other: `NewtonLoss` takes care of damping, of samples that are not finite and of capturing.
    `curvature` only says whether c·I is wanted.

    >>> from newton_losses import newton_target
    >>> loss = EnergyCurvature(lambda y: (3 * y).sum(1))  # gradient 3 everywhere, c = 9
    >>> newton_target(loss, torch.zeros(2, 2), curvature="fisher", damping=1.0).step
    tensor([[0.3000, 0.3000],
            [0.3000, 0.3000]])
    """

    def __init__(self, loss: Callable[..., Tensor] | Expandable) -> None:
        self.loss = loss

    def expand(self, y: Tensor, *targets: Any, curvature: CurvatureKind | None = None) -> Expansion:
        found = expand(self.loss, y, *targets, curvature=None)
        return found if curvature is None else Expansion(found.value, found.gradient, _energy(found))


def _energy(found: Expansion) -> Dense:
    kept = finite(found)
    # In float64, as the Fisher: the squares of large gradients leave float32 early.
    gradient = torch.where(kept[:, None], found.gradient, 0.0).double()
    size = gradient.shape[1]
    energy = gradient.square().sum() / (kept.sum().clamp(min=1) * size)
    return Dense(energy * torch.eye(size, dtype=gradient.dtype, device=gradient.device), semidefinite=True)
