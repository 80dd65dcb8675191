"""Are the derivatives there, are they right, and is the loss smooth? Checked by finite differences in float64.

A custom backward with a wrong factor, or one that cuts the graph, raises no error: training just goes wrong. A kink, a
tie or a part that is detached on purpose also makes a gradient differ from finite differences, and is told apart.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._differences import MOVES, TOLERANCE, excess, least
from ..curvature import Curvature, Expandable, custom_operators, finite
from ..errors import DerivativeError
from ._probe import Probe, curvature_of, is_reduced, mean_finite

State = Literal["right", "wrong", "detached", "missing", "expensive", "unchecked"]

DIRECTIONS = 3
# Slopes smaller than this share of the batch's root mean square are measured against that: where a gradient has all
# but vanished, as that of a cross-entropy, finite differences see nothing but rounding.
VANISHED = 1e-3
# And against a slope that would change a typical loss by this share over one unit.
NEGLIGIBLE = 1e-7
# A single sample's gradient is wrong if it is off by this much along every direction.
FAR_OFF = 0.1
# Where a line through the outputs is searched for jumps and kinks: intervals over one unit, then halvings of one.
INTERVALS, HALVINGS = 16, 14
# A gradient off by a tenth still descends; rounding alone is a thousand times below that.
BROKEN, BROKEN_SHARE = 0.1, 0.01
WITHOUT_GRADIENTS = "torch.no_grad()"


@dataclass(frozen=True)
class Derivatives:
    """What is known of both orders.

    - `first` and `second` are "right", "wrong", "missing" (an operator has no rule for it), "expensive" (too many
      outputs), "unchecked" (no float64, noise, or nothing finite); `first` also "detached": the gradient is not that
      of the value, and the loss takes a part of it out of the graph. The errors are relative to finite differences.
    - `wrong_samples` is the share of samples whose gradient is off by more than a tenth along every direction.
    - `at_kinks` is the share of samples at a kink or a tie, where a gradient is one of several.
    - `jumps` and `kinks` are the shares of samples whose loss has one within half a unit of the outputs, along a
      random line; `None` where that was not looked at.
    - `operators` names the custom operators in the loss, `cuts` what takes values out of the graph (".detach()").
    - `obstacle` says why there is no second derivative.
    """

    first: State = "unchecked"
    first_error: float | None = None
    wrong_samples: float = 0.0
    at_kinks: float = 0.0
    jumps: float | None = None
    kinks: float | None = None
    second: State = "unchecked"
    second_error: float | None = None
    operators: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ()
    obstacle: str | None = None


@dataclass(frozen=True)
class Precision:
    """The loss on the same numbers in float32 and in float64.

    `error` is the median of ‖g₃₂ − g₆₄‖ / ‖g₆₄‖ over the samples that are finite in float64, with norms below a
    thousandth of the batch's root mean square taken as that, and infinite where float32 is not finite; `wrong` is the
    share of all samples where it is above a tenth; `p99_float32` and `p99_float64` are the 99th percentiles of the
    finite norms. All are NaN if there are none. `broken` if more than a hundredth of the samples are wrong.
    """

    error: float
    wrong: float
    p99_float32: float
    p99_float64: float
    broken: bool


def measure_precision(probe: Probe, double: Probe) -> Precision:
    """Of the probe, beside the same one in float64."""
    single = probe.to(torch.float32)
    low = single.here.gradient.double()
    # Both see the same numbers: those of float32.
    rounded = probe.y.dtype == torch.float32
    high = (double.here.gradient if rounded else double.gradient(single.flat.double())).double()
    low_norm, high_norm = (torch.linalg.vector_norm(g, dim=1) for g in (low, high))
    is_known = torch.isfinite(high_norm)
    # A vanished gradient may lose all its digits without harm. What float32 has no number for would be the whole unit.
    batch = _root_mean_square(high_norm[is_known & finite(single.here)])
    error = torch.linalg.vector_norm(low - high, dim=1) / high_norm.clamp(min=max(1e-3 * batch, 1e-300))
    # Non-finite in float32 alone is wrong; in both, it is the loss and not the precision.
    error = torch.where(torch.isfinite(error), error, torch.inf)[is_known]
    wrong = float((error > BROKEN).sum()) / len(is_known)
    return Precision(
        error=float(error.median()) if len(error) else math.nan,
        wrong=wrong,
        p99_float32=_percentile(low_norm),
        p99_float64=_percentile(high_norm),
        broken=wrong > BROKEN_SHARE,
    )


def _root_mean_square(norms: Tensor) -> float:
    """Of finite numbers whose squares may not be."""
    largest = float(norms.amax()) if len(norms) else 0.0
    return largest * float((norms / largest).square().mean().sqrt()) if largest > 0 else 0.0


def _percentile(norms: Tensor) -> float:
    norms = norms[torch.isfinite(norms)]
    return float(norms.quantile(0.99)) if len(norms) else math.nan


# First derivatives --------------------------------------------------------------------------------------------------


def check_gradient(probe: Probe) -> Derivatives:
    """Value → gradient, at the outputs and, where it seems wrong, beside them.

    A wrong backward is wrong there, too; a kink or a tie is not there any more. The error is the 95th percentile over
    samples and directions, or the median of the wrong samples where those are fewer.
    """
    errors = _slope_errors(probe)
    if not bool(torch.isfinite(errors).any()):
        return Derivatives()
    off, beside = errors.nan_to_num(nan=torch.inf) > TOLERANCE, errors
    for seed in (1, 2):
        if bool(off.any()):
            beside = torch.where(off, torch.fmin(beside, _slope_errors(probe.beside(seed))), beside)
            off = beside > TOLERANCE
    kinks = ((errors > TOLERANCE) & (beside <= TOLERANCE)).any(0)
    found, wrong = beside[torch.isfinite(beside)], beside.amin(0) > FAR_OFF
    error = float(found.quantile(0.95))
    per_sample = errors.shape[1] == probe.count
    if error <= TOLERANCE and per_sample and bool(wrong.any()):
        error = float(beside[:, wrong].median())
    operators, cuts = _inspect(probe)
    state = judged(error)
    if state == "wrong" and cuts and not operators:
        state = "detached"
    return Derivatives(
        first=state,
        first_error=error,
        wrong_samples=float(wrong.double().mean()) if per_sample else 0.0,
        at_kinks=float(kinks.double().mean()),
        operators=operators,
        cuts=cuts,
    )


def _slope_errors(probe: Probe) -> Tensor:
    """Relative errors `(directions, N)`, of a reduced loss `(directions, 1)`, the least of all moves."""
    along = _directions(probe, per_sample=True)
    slopes = (probe.here.gradient * along).sum(2)
    finite_slopes, values = slopes[torch.isfinite(slopes)], probe.here.value
    if len(finite_slopes) == 0:
        return torch.full_like(slopes, torch.nan)
    typical = values[torch.isfinite(values)].abs().quantile(0.9)
    floor = (VANISHED * finite_slopes.square().mean().sqrt()).maximum(NEGLIGIBLE * typical)
    return torch.stack(
        [
            least(_slope_error(probe, direction, slope, move, floor) for move in MOVES)
            for direction, slope in zip(along, slopes, strict=True)
        ]
    )


def _slope_error(probe: Probe, direction: Tensor, slope: Tensor, move: float, floor: Tensor) -> Tensor:
    up, down = probe.values(probe.flat + move * direction), probe.values(probe.flat - move * direction)
    rounding = 8 * torch.finfo(up.dtype).eps * torch.maximum(up.abs(), down.abs()) / move
    observed = (up - down) / (2 * move)
    if is_reduced(up):  # only the mean is known
        observed, slope, rounding = observed[:1], slope.mean(0, keepdim=True), rounding[:1]
    return excess((observed - slope).abs(), rounding, torch.maximum(observed.abs(), slope.abs()).maximum(floor))


def _inspect(probe: Probe) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The custom operators in the loss, and what takes values out of its graph."""
    if isinstance(probe.loss, Expandable):
        return (), ()
    cuts = _Cuts()
    with torch.enable_grad(), cuts:
        value = probe.loss(probe.y.detach().requires_grad_(), *probe.targets)
    operators = tuple(sorted(one.__name__ for one in custom_operators(value)))
    # The forward pass of a custom operator runs without gradients; that is not the user's doing.
    return operators, tuple(sorted(cuts.found - {WITHOUT_GRADIENTS} if operators else cuts.found))


class _Cuts(TorchFunctionMode):
    """Notes which calls take a tensor with a gradient out of the graph."""

    NAMES: ClassVar[dict[Any, str]] = {
        Tensor.detach: ".detach()",
        Tensor.detach_: ".detach_()",
        Tensor.data.__get__: ".data",  # type: ignore[attr-defined]
        Tensor.item: ".item()",
        Tensor.tolist: ".tolist()",
        Tensor.numpy: ".numpy()",
    }

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = self.NAMES.get(function)
        if name is not None and args[0].requires_grad:
            self.found.add(name)
        if not torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
            self.found.add(WITHOUT_GRADIENTS)
        return function(*args, **(kwargs or {}))


def where_not_smooth(probe: Probe) -> tuple[float | None, float]:
    """The shares of samples with a jump and with a kink, along one random line of a unit's length through the outputs.

    Of all intervals of the line the one with the largest change is halved again and again. The change of a smooth
    function vanishes with the length of the interval, that of a jump in the value or in the slope does not. Values of
    single samples are not known of a reduced loss; its jumps are not looked for.
    """
    along = _directions(probe, per_sample=True)[0]
    reduced = is_reduced(probe.here.value)

    def look(place: Tensor) -> tuple[Tensor, Tensor]:
        found = probe.expand(probe.flat + place[:, None] * along, None)
        return found.value, (found.gradient * along).sum(1)

    grid = torch.linspace(-0.5, 0.5, INTERVALS + 1).to(probe.y)
    values, slopes = (torch.stack(one) for one in zip(*(look(t.expand(probe.count)) for t in grid), strict=True))
    jumps = None if reduced else _share_of_breaks(values, grid, lambda t: look(t)[0])
    return jumps, _share_of_breaks(slopes, grid, lambda t: look(t)[1])


def _share_of_breaks(found: Tensor, grid: Tensor, look: Any) -> float:
    """From what was found `(K, N)` on the grid `(K,)`: the share of samples with a break between two of its places."""
    change = found.diff(dim=0).abs().nan_to_num(posinf=0.0)
    first, interval = change.max(0)
    left, right = grid[interval], grid[interval + 1]
    low, high = (found.gather(0, place[None])[0] for place in (interval, interval + 1))
    for _ in range(HALVINGS):
        middle = (left + right) / 2
        between = look(middle)
        is_left = (between - low).abs() >= (high - between).abs()
        left, low = torch.where(is_left, left, middle), torch.where(is_left, low, between)
        right, high = torch.where(is_left, middle, right), torch.where(is_left, between, high)
    # A smooth function's change has shrunk to 2⁻¹⁴, and one that is only steep to a few times that.
    remains = (high - low).abs() > 0.1 * first
    matters = first > 1e-6 * (found.abs().nan_to_num(posinf=0.0).amax() + torch.finfo(found.dtype).tiny)
    return float((remains & matters).double().mean())


# Second derivatives -------------------------------------------------------------------------------------------------


def check_hessian(probe: Probe, curvature: Curvature) -> float:
    """Gradient → mean Hessian: the largest relative error over a few directions shared by all samples.

    Where it seems wrong, the same beside the outputs, where no kink or tie is: the smaller of both.
    """
    error = _bend_errors(probe, curvature)
    if judged(error) == "wrong":
        beside = probe.beside(1)
        error = min(error, _bend_errors(beside, curvature_of(beside.expand(beside.flat, "hessian"))))
    return error


def _bend_errors(probe: Probe, curvature: Curvature) -> float:
    errors = []
    for direction in _directions(probe, per_sample=False):
        predicted = curvature.product(direction)[0] * probe.scale
        errors.append(least(_bend_error(probe, direction, predicted, move) for move in MOVES))
    return mean_finite(torch.stack(errors).amax().reshape(1))


def _bend_error(probe: Probe, direction: Tensor, predicted: Tensor, move: float) -> Tensor:
    """In units of each output's scale, so that none is drowned by another."""
    above, below = (probe.expand(probe.flat + sign * move * direction, None) for sign in (1, -1))
    # A sample without a value can have a gradient, as of torch.where; the mean Hessian is without it.
    kept = finite(above) & finite(below)
    up, down = above.gradient * probe.scale, below.gradient * probe.scale
    observed = (up - down)[kept].mean(0) / (2 * move)
    rounding = 8 * torch.finfo(up.dtype).eps * up[kept].norm(dim=1).mean() / move
    return excess((observed - predicted).norm(), rounding, observed.norm().maximum(predicted.norm()))


def why_missing(error: Exception) -> str:
    """The library's errors teach already; torch's are cut to their first line."""
    if not isinstance(error, DerivativeError):
        return str(error).splitlines()[0]
    # An operator of the library, whose words come through torch, begins with its name.
    return re.sub(r"torch says: (?=\w+: )", "", str(error))


def judged(error: float) -> State:
    """Where nothing finite could be compared, nothing was checked."""
    if math.isnan(error):
        return "unchecked"
    return "wrong" if error > TOLERANCE else "right"


def _directions(probe: Probe, *, per_sample: bool) -> Tensor:
    """Random directions `(DIRECTIONS, N or 1, m)` of length one in units of each output's scale."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(DIRECTIONS, probe.count if per_sample else 1, probe.size, generator=generator)
    return torch.nn.functional.normalize(drawn.to(probe.y), dim=-1) * probe.scale
