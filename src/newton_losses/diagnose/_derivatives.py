"""Are the derivatives there, and are they right? Autograd against central finite differences in float64.

A custom backward with a wrong factor, or one that cuts the graph, raises nothing: training just goes wrong.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..curvature import Expandable, finite, resolve_reduction
from ..curvature._autodiff import custom_operators, forward_products, names_of
from ..curvature._call import make_total
from ..curvature._forms import Curvature
from ..errors import DerivativeError
from ._probe import Probe, is_reduced, mean_finite

State = Literal["right", "wrong", "missing", "expensive", "unchecked"]

DIRECTIONS = 3
# Moves in units of the outputs' spread, tried until all agree. A true derivative agrees at one of them at least:
# large ones lose to the third derivative, small ones to rounding. A false one agrees at none.
MOVES = (1e-5, 1e-4, 1e-6, 1e-3, 1e-2)
TOLERANCE = 1e-3
# What is smaller than this share of the batch's root mean square slope is measured against that: where a gradient has
# all but vanished, as that of a cross-entropy, finite differences have nothing but rounding.
VANISHED = 1e-3


@dataclass(frozen=True)
class Derivatives:
    """What is known of both orders.

    `first` and `second` are "right", "wrong", "missing", "expensive" (one sample's Hessian would take
    seconds) or "unchecked" (no float64, noise, or nothing finite); the errors are relative to finite differences.
    `forward` says whether forward mode works, `None` for a loss that brings its own expansion, and `operator` what
    stops it. `obstacle` says why there is no second derivative.
    """

    first: State = "unchecked"
    first_error: float | None = None
    second: State = "unchecked"
    second_error: float | None = None
    forward: bool | None = None
    operator: str | None = None
    obstacle: str | None = None


def gradient_error(probe: Probe, directions: int = DIRECTIONS) -> float:
    """Value → gradient: the 95th percentile, over samples and directions, of the relative error."""
    flat, gradient = probe.flat, probe.here.gradient
    errors = []
    for direction in _directions(probe, per_sample=True)[:directions]:
        slope = (gradient * direction).sum(1)
        least = VANISHED * mean_finite(slope.square()) ** 0.5
        errors.append(_least(_slope_error(probe, flat, direction, slope, move * probe.spread, least) for move in MOVES))
    found = torch.cat(errors)
    found = found[torch.isfinite(found)]
    return float(found.quantile(0.95)) if len(found) else float("nan")


def _slope_error(probe: Probe, flat: Tensor, direction: Tensor, slope: Tensor, move: float, least: float) -> Tensor:
    up, down = probe.values(flat + move * direction), probe.values(flat - move * direction)
    rounding = 8 * torch.finfo(up.dtype).eps * torch.maximum(up.abs(), down.abs()) / move
    observed = (up - down) / (2 * move)
    if is_reduced(up):  # only the mean is known
        observed, slope, rounding = observed[:1], slope.mean(0, keepdim=True), rounding[:1]
    scale = torch.maximum(observed.abs(), slope.abs()).clamp(min=least)
    return _excess((observed - slope).abs(), rounding, scale)


def hessian_error(probe: Probe, curvature: Curvature) -> float:
    """Gradient → mean Hessian: the largest relative error over a few directions shared by all samples."""
    errors = []
    for direction in _directions(probe, per_sample=False):
        predicted = curvature.product(direction)[0]
        errors.append(_least(_bend_error(probe, direction, predicted, move * probe.spread) for move in MOVES))
    return mean_finite(torch.stack(errors).amax().reshape(1))


def _bend_error(probe: Probe, direction: Tensor, predicted: Tensor, move: float) -> Tensor:
    above, below = (probe.expand(probe.flat + sign * move * direction, None) for sign in (1, -1))
    # A sample without a value can have a gradient, as of torch.where; the mean Hessian is without it.
    kept = finite(above) & finite(below)
    up, down = above.gradient, below.gradient
    observed = (up - down)[kept].mean(0) / (2 * move)
    rounding = 8 * torch.finfo(up.dtype).eps * up[kept].norm(dim=1).mean() / move
    return _excess((observed - predicted).norm(), rounding, observed.norm().maximum(predicted.norm()))


def _least(errors: Iterator[Tensor]) -> Tensor:
    """The least error over the moves, entry by entry; no further move is tried once all are small."""
    least = next(errors)
    for error in errors:
        if bool((least <= TOLERANCE / 10).all()):
            break
        least = torch.fmin(least, error)
    return least


def _excess(difference: Tensor, rounding: Tensor, scale: Tensor) -> Tensor:
    """The difference beyond rounding, relative to the size of what is compared."""
    return (difference - rounding).clamp(min=0) / scale.clamp(min=torch.finfo(scale.dtype).tiny)


def _directions(probe: Probe, *, per_sample: bool) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(DIRECTIONS, probe.count if per_sample else 1, probe.size, generator=generator)
    drawn = drawn.to(device=probe.y.device, dtype=probe.y.dtype)
    return torch.nn.functional.normalize(drawn, dim=-1)


def forward_mode(probe: Probe) -> tuple[bool | None, str | None]:
    """Whether forward over reverse works, and the operator that stops it."""
    if isinstance(probe.loss, Expandable):
        return None, None
    total = make_total(probe.loss, probe.y.shape, probe.targets, resolve_reduction(probe.loss, probe.reduction))
    flat = probe.flat
    try:
        forward_products(total, flat, flat.new_ones(1, probe.size))
    except (RuntimeError, NotImplementedError) as error:
        named = re.search(r"forward AD with (\S+)", str(error))
        with torch.enable_grad():
            custom = names_of(custom_operators(total(flat.detach().requires_grad_())[0]))
        operator = named.group(1) if named else " and ".join(custom)
        return False, operator or str(error).splitlines()[0]
    return True, None


def judged(error: float) -> State:
    """Where nothing finite could be compared, nothing was checked."""
    if math.isnan(error):
        return "unchecked"
    return "wrong" if error > TOLERANCE else "right"


def why_missing(error: Exception) -> str:
    """The library's errors teach already; torch's are cut to their first line."""
    return str(error) if isinstance(error, DerivativeError) else str(error).splitlines()[0]
