"""float32 against float64: is the gradient that training would use the gradient of the loss?

A cross-entropy on probabilities is the standing example of one that is not: 1/P of a saturated P is huge,
the softmax behind it should cancel it, and in float32 the digits for that are gone.
"""

from dataclasses import dataclass

import torch

from ._probe import Probe

# A gradient off by a tenth still descends; rounding alone is a thousand times below that.
WRONG = 0.1
SHARE = 0.01


@dataclass(frozen=True)
class Precision:
    """The loss on the same numbers in float32 and in float64.

    `error` is the median over samples of ‖g₃₂ − g₆₄‖ / ‖g₆₄‖, with norms below a thousandth of the batch's root mean
    square taken as that, `wrong` the share of samples where it is
    above a tenth, `p99_float32` and `p99_float64` the 99th percentiles of the norms. `broken` where more
    than a hundredth of the samples is wrong.
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
    # A vanished gradient may lose all its digits without harm: below a thousandth of the batch's root mean square,
    # errors are relative to that.
    batch = high_norm[torch.isfinite(high_norm)].square().mean().nan_to_num().sqrt()
    error = torch.linalg.vector_norm(low - high, dim=1) / high_norm.clamp(min=max(1e-3 * float(batch), 1e-300))
    # Non-finite in float32 alone is wrong; in both, it is the loss and not the precision.
    error = torch.where(torch.isfinite(high_norm), error.nan_to_num(nan=torch.inf), 0.0)
    wrong = float((error > WRONG).double().mean())
    return Precision(
        error=float(error.median()),
        wrong=wrong,
        p99_float32=float(low_norm.quantile(0.99)),
        p99_float64=float(high_norm.quantile(0.99)),
        broken=wrong > SHARE,
    )
