"""The gradients of the paper's last appendix: five scores, of which x₁ moves past the four others in their right order.

For NeuralSort and the logistic network: scores close together and ten times as far apart, as a Newton loss with the
empirical Fisher, and in log space; in float32, and in float64 to tell what is rounding error. The paper does not give
its scores; ours are in `SETTINGS`. `newton-losses reproduce gradients` writes them down for the report to read.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from newton_losses import newton_target
from newton_losses.sorting import NeuralSort, Relaxation, SortingLoss, SortingNetwork

from ..store import write_atomically
from .claims import Judgement, Part, Verdict, judge
from .collect import TITLES
from .tables import Cell, Table

if TYPE_CHECKING:
    from .figures import Figure

LARGEST = "gradients.json"
Gradients = dict[str, dict[str, tuple[float, float]]]  # by loss and picture: the largest in float32 and in float64
EXPLODES = 10.0  # a gradient that grows by more than this factor "explodes"
PICTURES = {
    "plain": "scores close together",
    "spread": "larger spread",
    "fisher": "Fisher of each point alone",
    "fisher-batch": "one Fisher for all points",
    "stable": "larger spread, in log space",
}
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
    spread: float
    numerics: Literal["stable", "reference"]
    fisher: Literal["none", "alone", "batch"] = "none"


VARIANTS = (
    Variant("plain", 1.0, "reference"),
    Variant("spread", SPREAD, "reference"),
    Variant("fisher", SPREAD, "reference", "alone"),
    Variant("fisher-batch", SPREAD, "reference", "batch"),
    Variant("stable", SPREAD, "stable"),
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
    loss = SortingLoss(setting.relaxation, numerics=variant.numerics, exchangeable=False)
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


def pictures() -> "list[Figure]":
    """The pictures of the appendix, variant by variant."""
    from .figures import Line, chart

    figures = []
    for variant in VARIANTS:
        for setting in SETTINGS:
            places = scores(setting, variant.spread)[:, 1].tolist()
            found = gradients(setting, variant)
            # That of x₁ itself is drawn over the others.
            lines = [
                Line(f"∂/∂x{'₀₁₂₃₄'[item]}", places, found[:, item].tolist(), item + 1) for item in (0, 2, 3, 4, 1)
            ]
            words = f"the largest gradient is {largest(setting, variant.name):,.3g}"
            name = f"gradients-{setting.name}-{variant.name}"
            figures.append(chart(name, f"{setting.title}, {PICTURES[variant.name]}", words, lines))
    return figures


def write(out: Path) -> list[Path]:
    """Write every picture to its own SVG file in the folder `out`, and the largest gradients to `gradients.json`.

    The report reads the latter. Returns the paths.
    """
    from .render import write_figures

    found = {
        setting.name: {one.name: [largest(setting, one.name, exact) for exact in (False, True)] for one in VARIANTS}
        for setting in SETTINGS
    }
    paths = write_figures(pictures(), out)
    write_atomically(out / LARGEST, json.dumps(found, indent=1).encode() + b"\n")
    return [*paths, out / LARGEST]


def read_gradients(path: Path) -> Gradients:
    """What `newton-losses reproduce gradients` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    found = {
        name: {picture: (float(content[name][picture][0]), float(content[name][picture][1])) for picture in PICTURES}
        for name in ("neuralsort", "logistic")
    }
    if not all(math.isfinite(value) for pictures in found.values() for pair in pictures.values() for value in pair):
        raise ValueError("a gradient is not finite")
    return found


def gradient_table(found: Gradients) -> Table | None:
    """The largest gradient of each picture, in float32 and in float64."""
    rows = [
        (Cell(title), *(Cell(f"{value:,.4g}", value) for name in found for value in found[name][picture]))
        for picture, title in PICTURES.items()
    ]
    heads = [f"{TITLES[name]}, {kind}" for name in found for kind in ("float32", "float64")]
    caption = "The largest gradient. Where float32 and float64 differ, float32 shows rounding error."
    return Table("largest-gradients", caption, ("picture", *heads), rows) if found else None


def gradient_verdicts(found: Gradients) -> list[Verdict]:
    """The appendix's two claims; the first is decided in float32, in float64 and in log space."""

    def judged(setting: str, picture: str, *, explodes: bool, exact: bool = False) -> Judgement:
        parts = []
        for name, pictures in found.items():
            before, after = (pictures[one][exact] for one in ("plain", picture))
            words = f"{TITLES[name]} {before:.3g} for close scores, {after:,.3g} here"
            parts.append(Part((after > EXPLODES * before) is explodes, words))
        return judge(setting, parts)

    return [
        Verdict(
            "NeuralSort and logistic networks have exploding gradients for scores far apart.",
            "appendix, gradient visualisations",
            f"With ten times the spread the largest gradient grows by a factor of more than {EXPLODES:g}, for both.",
            [
                judged("float32, the paper’s numerics", "spread", explodes=True),
                judged("float64, the same", "spread", explodes=True, exact=True),
                judged("float32, in log space", "stable", explodes=True),
            ],
        ),
        Verdict(
            "The empirical Fisher recovers from exploding gradients.",
            "appendix, gradient visualisations",
            f"With λ = 0.1 the largest Newton gradient at the larger spread is at most {EXPLODES:g} times the largest "
            "plain gradient of close scores, for both.",
            [
                judged("Fisher of each point alone", "fisher", explodes=False),
                judged("one Fisher for all points", "fisher-batch", explodes=False),
            ],
        ),
    ]
