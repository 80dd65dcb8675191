"""Are the derivatives there, and are they right? Autograd against central finite differences in float64.

A custom backward with a wrong factor, or one that cuts the graph, raises nothing: training just goes wrong.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..curvature import (
    Curvature,
    Expandable,
    custom_operators,
    finite,
    forward_products,
    make_total,
    names_of,
    resolve_reduction,
)
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
# And against a slope that would change a typical loss by this share over the outputs' spread.
NEGLIGIBLE = 1e-7
# A single sample's gradient is wrong where it is off by this much along every direction.
FAR_OFF = 0.1


@dataclass(frozen=True)
class Derivatives:
    """What is known of both orders.

    `first` and `second` are "right", "wrong", "missing", "expensive" (one sample's Hessian would take
    seconds) or "unchecked" (no float64, noise, or nothing finite); the errors are relative to finite differences.
    `wrong_samples` is the share of samples whose gradient is off by more than a tenth along every direction.
    `forward` says whether forward mode works, `None` for a loss that brings its own expansion, and `operator` what
    stops it. `obstacle` says why there is no second derivative.
    """

    first: State = "unchecked"
    first_error: float | None = None
    wrong_samples: float = 0.0
    second: State = "unchecked"
    second_error: float | None = None
    forward: bool | None = None
    operator: str | None = None
    obstacle: str | None = None


def gradient_error(probe: Probe, directions: int = DIRECTIONS) -> tuple[float, float]:
    """Value → gradient: (relative error, share of samples that are far off).

    The error is the 95th percentile over samples and directions, since single ones may be at a kink; where only fewer
    samples are wrong it is the median over these.
    """
    errors = _slope_errors(probe, directions)
    found = errors[torch.isfinite(errors)]
    if len(found) == 0:
        return float("nan"), 0.0
    error, wrong = float(found.quantile(0.95)), errors.amin(0) > FAR_OFF
    if errors.shape[1] != probe.count or not bool(wrong.any()):
        return error, 0.0
    wrong &= _slope_errors(_moved(probe), directions).amin(0) > FAR_OFF
    if error <= TOLERANCE and bool(wrong.any()):
        error = float(errors[:, wrong].median())
    return error, float(wrong.double().mean())


def _moved(probe: Probe) -> Probe:
    """The same a little beside: an output that was at a kink is no longer, and a wrong backward is as wrong there."""
    drawn = torch.randn(probe.y.shape, generator=torch.Generator().manual_seed(1)).to(probe.y)
    return replace(probe, y=probe.y + 1e-3 * probe.spread * drawn)


def _slope_errors(probe: Probe, directions: int) -> Tensor:
    """Relative errors `(directions, N)`, of a reduced loss `(directions, 1)`, the least of all moves."""
    along = _directions(probe, per_sample=True)[:directions]
    slopes = (probe.here.gradient * along).sum(2)
    finite_slopes, values = slopes[torch.isfinite(slopes)], probe.here.value
    if len(finite_slopes) == 0:
        return torch.full_like(slopes, torch.nan)
    typical = values[torch.isfinite(values)].abs().quantile(0.9)
    floor = (VANISHED * finite_slopes.square().mean().sqrt()).maximum(NEGLIGIBLE * typical / probe.spread)
    return torch.stack(
        [
            _least(_slope_error(probe, direction, slope, move * probe.spread, floor) for move in MOVES)
            for direction, slope in zip(along, slopes, strict=True)
        ]
    )


def _slope_error(probe: Probe, direction: Tensor, slope: Tensor, move: float, floor: Tensor) -> Tensor:
    up, down = probe.values(probe.flat + move * direction), probe.values(probe.flat - move * direction)
    rounding = 8 * torch.finfo(up.dtype).eps * torch.maximum(up.abs(), down.abs()) / move
    observed = (up - down) / (2 * move)
    if is_reduced(up):  # only the mean is known
        observed, slope, rounding = observed[:1], slope.mean(0, keepdim=True), rounding[:1]
    return _excess((observed - slope).abs(), rounding, torch.maximum(observed.abs(), slope.abs()).maximum(floor))


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
        return False, operator or "an operator of torch"  # whose message names none
    return True, None


def judged(error: float) -> State:
    """Where nothing finite could be compared, nothing was checked."""
    if math.isnan(error):
        return "unchecked"
    return "wrong" if error > TOLERANCE else "right"


def why_missing(error: Exception) -> str:
    """The library's errors teach already; torch's are cut to their first line."""
    return str(error) if isinstance(error, DerivativeError) else str(error).splitlines()[0]
