"""The gradient pictures of the paper's last appendix, and beside them what the same gradients are without
rounding error.

Five scores of which x₀, x₂, x₃, x₄ are in their right order and x₁ moves past all of them. Each picture shows
the loss's gradient with respect to the five scores over x₁: for NeuralSort and the logistic sorting network,
with scores close together and ten times as far apart, as a Newton loss with the empirical Fisher, and in log
space. The paper does not give its scores; ours are in `SETTINGS`.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from newton_losses import newton_target
from newton_losses.sorting import SortingLoss

from ..store import write_atomically
from ._chart import Line, chart, standalone
from ._scale import Axis, around

_POINTS = 320
_N = 5
DAMPING = 0.1  # of the paper's tables for both losses at n = 5

Numerics = Literal["stable", "reference"]


@dataclass(frozen=True)
class Setting:
    """A loss and how far apart two neighbouring scores are when they are close together."""

    name: str
    title: str
    algorithm: Literal["neuralsort", "logistic"]
    temperature: float | None
    steepness: float | None
    gap: float


SETTINGS = (
    Setting("neuralsort", "NeuralSort", "neuralsort", 1.0, None, 1.0),
    Setting("logistic", "Logistic network", "logistic", None, 10.0, 0.25),
)
SPREAD = 10.0  # how much further apart "larger spread" is


@dataclass(frozen=True)
class Variant:
    """A row of pictures: which spread, which numerics, and what is done to the gradient."""

    name: str
    title: str
    spread: float
    numerics: Numerics
    fisher: Literal["none", "alone", "batch"] = "none"
    panels: str = ""  # of the paper's figure


VARIANTS = (
    Variant("plain", "scores close together", 1.0, "reference", panels="a, b"),
    Variant("spread", "larger spread", SPREAD, "reference", panels="c, d"),
    Variant("fisher", "Fisher of each point alone", SPREAD, "reference", "alone", "e, f"),
    Variant("fisher-batch", "one Fisher for all points", SPREAD, "reference", "batch", "e, f"),
    Variant("stable", "larger spread, in log space", SPREAD, "stable"),
)


@dataclass(frozen=True)
class Picture:
    """One chart and its largest gradient; `exact` is the largest in double precision, the measure of rounding."""

    setting: Setting
    variant: Variant
    svg: str
    largest: float
    exact: float

    @property
    def name(self) -> str:
        return f"gradients-{self.setting.name}-{self.variant.name}"


def scores(setting: Setting, spread: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """The five scores `(points, 5)` of a picture: x₁ in column 1 goes from left of all others to right of them.

    It is never equal to one of them: there the losses have a kink, and what autograd returns in a kink is arbitrary.

    >>> scores(SETTINGS[0], 1.0)[[0, -1]]
    tensor([[ 0.0000, -1.9875,  2.0000,  3.0000,  4.0000],
            [ 0.0000,  5.9875,  2.0000,  3.0000,  4.0000]])
    """
    gap = setting.gap * spread
    found = (gap * torch.arange(_N, dtype=dtype)).repeat(_POINTS, 1)
    found[:, 1] = gap * (8 * (torch.arange(_POINTS, dtype=dtype) + 0.5) / _POINTS - 2)
    return found


def gradients(setting: Setting, variant: Variant, dtype: torch.dtype = torch.float32) -> Tensor:
    """The gradients `(points, 5)` that a picture shows: ∇ℓᵢ, or (Fᵢ + λI)⁻¹∇ℓᵢ with the empirical Fisher.

    F is ∇ℓᵢ∇ℓᵢᵀ of the point alone, or the mean of these over all points as in training, where one
    matrix serves the batch.
    """
    loss = SortingLoss(
        setting.algorithm,
        temperature=setting.temperature,
        steepness=setting.steepness,
        numerics=variant.numerics,
    )
    x = scores(setting, variant.spread, dtype)
    order = torch.arange(_N, dtype=dtype).expand_as(x)
    if variant.fisher == "batch":
        return x - newton_target(loss, x, order, curvature="fisher", damping=DAMPING).target
    found = loss.expand(x, order, curvature=None).gradient
    if variant.fisher == "alone":
        # (ggᵀ + λI)⁻¹g = g / (‖g‖² + λ)
        return found / (found.square().sum(1, keepdim=True) + DAMPING)
    return found


@cache
def pictures() -> tuple[Picture, ...]:
    """All pictures, a variant after the other; they depend on nothing but this file, so they are drawn once."""
    return tuple(_draw(setting, variant) for variant in VARIANTS for setting in SETTINGS)


def write(out: Path) -> list[Path]:
    """Write every picture to its own SVG file in the folder `out`; returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for picture in pictures():
        path = out / f"{picture.name}.svg"
        write_atomically(path, standalone(picture.svg).encode())
        paths.append(path)
    return paths


def _draw(setting: Setting, variant: Variant) -> Picture:
    found = gradients(setting, variant)
    exact = gradients(setting, variant, torch.float64)
    places = scores(setting, variant.spread)[:, 1].tolist()
    lines = [
        Line(f"∂/∂x{'₀₁₂₃₄'[item]}", list(zip(places, found[:, item].tolist(), strict=True)), tone=item + 1)
        for item in (0, 2, 3, 4, 1)  # that of x₁ itself is drawn over the others
    ]
    title = f"{setting.title}, {variant.title}"
    svg = chart(
        lines,
        Axis("x₁", -2 * setting.gap * variant.spread, 6 * setting.gap * variant.spread),
        around("gradient", found.flatten().tolist()),
        title,
        f"Gradients with respect to five scores while x₁ moves past the others; the largest is "
        f"{found.abs().max().item():.3g} in float32 and {exact.abs().max().item():.3g} in double precision.",
    )
    return Picture(setting, variant, svg, found.abs().max().item(), exact.abs().max().item())
