"""The gradients of the paper's last appendix: five scores, of which x₁ moves past the four others in their right order.

For NeuralSort and the logistic network: scores close together and ten times as far apart, as a Newton loss with the
empirical Fisher, and in log space; in float32, and in float64 to tell what is rounding error. The paper does not give
its scores; ours are in `SETTINGS`.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from newton_losses import newton_target
from newton_losses.sorting import NeuralSort, Relaxation, SortingLoss, SortingNetwork

_POINTS = 160
_N = 5
DAMPING = 0.1  # of the paper's tables for both losses at n = 5


@dataclass(frozen=True)
class Setting:
    """A loss, and the distance of neighbouring scores when they are close together."""

    name: str
    title: str
    relaxation: Relaxation
    gap: float


# The network without kernels: for so few points their set-up takes longest.
SETTINGS = (
    Setting("neuralsort", "NeuralSort", NeuralSort(temperature=1.0), 1.0),
    Setting("logistic", "Logistic network", SortingNetwork(_N, steepness=10.0, backend="torch"), 0.25),
)
SPREAD = 10.0  # how much further apart "larger spread" is


@dataclass(frozen=True)
class Variant:
    """A row of pictures: which spread, which numerics, and what is done to the gradient."""

    name: str
    title: str
    spread: float
    numerics: Literal["stable", "reference"]
    fisher: Literal["none", "alone", "batch"] = "none"


VARIANTS = (
    Variant("plain", "scores close together", 1.0, "reference"),
    Variant("spread", "larger spread", SPREAD, "reference"),
    Variant("fisher", "Fisher of each point alone", SPREAD, "reference", "alone"),
    Variant("fisher-batch", "one Fisher for all points", SPREAD, "reference", "batch"),
    Variant("stable", "larger spread, in log space", SPREAD, "stable"),
)


def scores(setting: Setting, spread: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """The five scores `(points, 5)` of a picture: x₁ in column 1 goes from left of all others to right of them.

    It never equals one of them: there the losses have a kink, and what autograd returns in a kink is arbitrary.

    >>> scores(SETTINGS[0], 1.0)[[0, -1]]
    tensor([[ 0.0000, -1.9750,  2.0000,  3.0000,  4.0000],
            [ 0.0000,  5.9750,  2.0000,  3.0000,  4.0000]])
    """
    gap = setting.gap * spread
    found = (gap * torch.arange(_N, dtype=dtype)).repeat(_POINTS, 1)
    found[:, 1] = gap * (8 * (torch.arange(_POINTS, dtype=dtype) + 0.5) / _POINTS - 2)
    return found


@cache
def gradients(setting: Setting, variant: Variant, dtype: torch.dtype = torch.float32) -> Tensor:
    """The gradients `(points, 5)` of a picture: ∇ℓᵢ, or (F + λI)⁻¹∇ℓᵢ with the empirical Fisher.

    F is ∇ℓᵢ∇ℓᵢᵀ of the point alone, or the mean of these over all points as in training.
    """
    loss = SortingLoss(setting.relaxation, numerics=variant.numerics)
    x = scores(setting, variant.spread, dtype)
    order = torch.arange(_N, dtype=dtype).expand_as(x)
    if variant.fisher == "batch":
        return x - newton_target(loss, x, order, curvature="fisher", damping=DAMPING).target
    found = loss.expand(x, order, curvature=None).gradient
    if variant.fisher == "alone":
        # (ggᵀ + λI)⁻¹g = g / (‖g‖² + λ)
        return found / (found.square().sum(1, keepdim=True) + DAMPING)
    return found


def largest(setting: Setting, variant: str, exact: bool = False) -> float:
    """The largest gradient of a picture in float32, or with `exact` in float64: their difference is rounding error."""
    chosen = next(one for one in VARIANTS if one.name == variant)
    return gradients(setting, chosen, torch.float64 if exact else torch.float32).abs().max().item()


def write(out: Path) -> list[Path]:
    """Write every picture to its own SVG file in the folder `out`; returns their paths."""
    from .figures import gradient_figures
    from .render import write_figures

    return write_figures(gradient_figures(), out)
