"""How much of an estimated gradient or Hessian is noise? For losses that give another answer each time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..curvature import Expandable, Expansion, as_curvature
from ._cost import affordable, timed
from ._probe import Probe

# Repeats, the fewest that give a spread, and the seconds for all of them.
REPEATS, LEAST, BUDGET = 12, 4, 1.0
# At a ratio of one, half of what is seen is noise.
NOISE = 1.0


@dataclass(frozen=True)
class Noise:
    """Noise over signal of one estimate: the standard deviation over repeats by the norm of the mean.

    `gradient` is that of a sample's gradient (root mean square over the batch), `hessian` that of the
    batch's mean Hessian, `None` where the loss estimates no Hessian. Both fall with the root of the number
    of samples: `more_samples(ratio)` says how many times as many make the ratio a half.
    """

    gradient: float
    hessian: float | None

    @staticmethod
    def more_samples(ratio: float) -> float:
        return (2 * ratio) ** 2


def measure_noise(probe: Probe) -> tuple[Noise, Expansion] | None:
    """The noise and the mean over repeats, or None where the loss gives its first answer again."""
    if torch.equal(probe.here.gradient.nan_to_num(), probe.gradient(probe.flat).nan_to_num()):
        return None
    estimates_hessian = isinstance(probe.loss, Expandable)

    def run() -> Expansion:
        return probe.expand(probe.flat, "hessian" if estimates_hessian else None)

    once, cost = timed(run, probe.y.device)
    runs = [once, *(run() for _ in range(affordable(cost, BUDGET, LEAST, REPEATS) - 1))]
    value, gradient = torch.stack([r.value for r in runs]), torch.stack([r.gradient for r in runs])
    hessian = None
    if estimates_hessian:
        hessian = torch.stack([as_curvature(r.curvature).dense() for r in runs if r.curvature is not None])
    noise = Noise(_ratio(gradient), None if hessian is None else _ratio(hessian))
    return noise, Expansion(value.mean(0), gradient.mean(0), None if hessian is None else hessian.mean(0))


def _ratio(repeats: Tensor) -> float:
    """Noise over signal of `(R, ...)` estimates of one quantity; the signal is freed of the mean's own noise."""
    repeats = repeats.double().nan_to_num(posinf=0.0, neginf=0.0)
    variance = float(repeats.var(0, correction=1).sum())
    signal = float(repeats.mean(0).square().sum()) - variance / len(repeats)
    return (variance / signal) ** 0.5 if signal > 0 else float("inf")
