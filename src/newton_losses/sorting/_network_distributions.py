"""The distributions of a soft comparison: how likely two wires keep their places, as log-probabilities.

A comparator that sees the difference d of its wires keeps them with probability F(u), u = a(d), where F
is a symmetric cumulative distribution and a is an odd function, usually d times the steepness. Given are
log F with automatic derivatives of any order, and its first two derivatives in closed form. All of it is
called in float64; tails are written so that nothing cancels, and branches that are not taken are fed
harmless arguments, because 0 · ∞ in a branch not taken is still NaN in its derivative.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from ._log_space import softplus

DistributionName = Literal["logistic", "logistic_phi", "gaussian", "cauchy", "reciprocal", "optimal"]


class Distribution:
    """log F, its derivatives, and the argument u = steepness · d.

    `name` is how users and kernels call it. `cancels` where the derivatives by d are large terms that cancel, so
    that float32 would not do for them.
    """

    name: DistributionName
    cancels = False

    def argument(self, difference: Tensor, steepness: float) -> Tensor:
        return difference * steepness

    def argument_derivatives(self, difference: Tensor, steepness: float) -> tuple[Tensor, Tensor]:
        """du/dd and d²u/dd²."""
        return torch.full_like(difference, steepness), torch.zeros_like(difference)

    def log_cdf(self, u: Tensor) -> Tensor:
        raise NotImplementedError

    def cdf(self, u: Tensor) -> Tensor:
        return self.log_cdf(u).exp()

    def log_slope(self, u: Tensor) -> Tensor:
        """The derivative of log F by u."""
        raise NotImplementedError

    def log_bend(self, u: Tensor) -> Tensor:
        """The second derivative of log F by u."""
        raise NotImplementedError


class Logistic(Distribution):
    """F(u) = 1 / (1 + e⁻ᵘ)."""

    name: DistributionName = "logistic"

    def log_cdf(self, u: Tensor) -> Tensor:
        return -softplus(-u)

    def cdf(self, u: Tensor) -> Tensor:
        return u.sigmoid()

    def log_slope(self, u: Tensor) -> Tensor:
        return (-u).sigmoid()

    def log_bend(self, u: Tensor) -> Tensor:
        return -(-u).sigmoid() * u.sigmoid()


class LogisticPhi(Logistic):
    """The logistic distribution at u = β d / (|d| + 10⁻¹⁰)^¼, which tells close wires apart sooner."""

    name: DistributionName = "logistic_phi"
    cancels = True  # the slope of the argument has a pole at d = 0

    power = 0.25
    floor = 1e-10

    def argument(self, difference: Tensor, steepness: float) -> Tensor:
        return steepness * difference * (difference.abs() + self.floor).pow(-self.power)

    def argument_derivatives(self, difference: Tensor, steepness: float) -> tuple[Tensor, Tensor]:
        distance = difference.abs() + self.floor
        share = 1 - self.power * difference.abs() / distance
        first = steepness * distance.pow(-self.power) * share
        bend = share + self.floor / distance
        second = -self.power * steepness * difference.sign() * distance.pow(-self.power - 1) * bend
        return first, second


class Gaussian(Distribution):
    """F(u) = Φ(u), the normal distribution."""

    name: DistributionName = "gaussian"
    far = 20.0

    def log_cdf(self, u: Tensor) -> Tensor:
        right = torch.log1p(-0.5 * torch.erfc(u.clamp(min=0) / math.sqrt(2)))
        middle = torch.log(0.5 * torch.erfc(u.clamp(-self.far, 0) / -math.sqrt(2)))
        tail = u.clamp(max=-self.far)
        inverse = tail.pow(-2)
        series = inverse * (-1 + inverse * (3 + inverse * (-15 + inverse * (105 - 945 * inverse))))
        left = -tail.square() / 2 - torch.log(-tail) - math.log(2 * math.pi) / 2 + torch.log1p(series)
        return torch.where(u > 0, right, torch.where(u > -self.far, middle, left))

    def cdf(self, u: Tensor) -> Tensor:
        return 0.5 * torch.erfc(u / -math.sqrt(2))

    def log_slope(self, u: Tensor) -> Tensor:
        return torch.where(u < -self.far, self._excess(u) - u, self._ratio(u))

    def log_bend(self, u: Tensor) -> Tensor:
        return -self.log_slope(u) * torch.where(u < -self.far, self._excess(u), self._ratio(u) + u)

    def _ratio(self, u: Tensor) -> Tensor:
        """φ/Φ for u ≥ −20."""
        near = u.clamp(min=-self.far)
        density = torch.exp(-near.square() / 2) / math.sqrt(2 * math.pi)
        return density / (0.5 * torch.erfc(near / -math.sqrt(2)))

    def _excess(self, u: Tensor) -> Tensor:
        """φ/Φ + u for u ≤ −20: as a sum of the two it would have no digit right at u = −10⁸."""
        tail = -u.clamp(max=-self.far)
        inverse = tail.pow(-2)
        return (1 + inverse * (-2 + inverse * (10 + inverse * (-74 + 706 * inverse)))) / tail


class Cauchy(Distribution):
    """F(u) = atan(u)/π + ½."""

    name: DistributionName = "cauchy"

    def log_cdf(self, u: Tensor) -> Tensor:
        one = torch.ones_like(u)
        lower = torch.log(torch.atan2(one, -u.clamp(max=0)) / math.pi)
        upper = torch.log1p(-torch.atan2(one, u.clamp(min=0)) / math.pi)
        return torch.where(u > 0, upper, lower)

    def cdf(self, u: Tensor) -> Tensor:
        return torch.atan2(torch.ones_like(u), -u) / math.pi

    def log_slope(self, u: Tensor) -> Tensor:
        return 1 / ((1 + u.square()) * torch.atan2(torch.ones_like(u), -u))

    def log_bend(self, u: Tensor) -> Tensor:
        slope = self.log_slope(u)
        return -slope * (2 * u / (1 + u.square()) + slope)


class Reciprocal(Distribution):
    """F(u) = ½ (1 + u/(2+|u|))."""

    name: DistributionName = "reciprocal"

    def log_cdf(self, u: Tensor) -> Tensor:
        lower = -torch.log(2 - u.clamp(max=0))
        upper = torch.log1p(-1 / (2 + u.clamp(min=0)))
        return torch.where(u > 0, upper, lower)

    def cdf(self, u: Tensor) -> Tensor:
        return (1 + u.clamp(min=0)) / (2 + u.abs())

    def log_slope(self, u: Tensor) -> Tensor:
        return 1 / ((2 + u.abs()) * (1 + u.clamp(min=0)))

    def log_bend(self, u: Tensor) -> Tensor:
        inner, outer = 1 / (1 + u.clamp(min=0)), 1 / (2 + u.abs())
        return torch.where(u > 0, -inner * outer * (inner + outer), outer.square())


class Optimal(Distribution):
    """F(u) = ½ + u for |u| ≤ ¼, and 1/(16|u|) from 0 or 1 beyond: the smallest error of a sorted pair."""

    name: DistributionName = "optimal"
    edge = 0.25

    def log_cdf(self, u: Tensor) -> Tensor:
        lower = -torch.log(-16 * u.clamp(max=-self.edge))
        middle = torch.log(0.5 + u.clamp(-self.edge, self.edge))
        upper = torch.log1p(-1 / (16 * u.clamp(min=self.edge)))
        return torch.where(u > self.edge, upper, torch.where(u < -self.edge, lower, middle))

    def log_slope(self, u: Tensor) -> Tensor:
        above = u.clamp(min=self.edge)
        upper, middle = 1 / (above * (16 * above - 1)), 1 / (0.5 + u.clamp(-self.edge, self.edge))
        inside = torch.where(u < -self.edge, -1 / u.clamp(max=-self.edge), middle)
        return torch.where(u > self.edge, upper, inside)

    def log_bend(self, u: Tensor) -> Tensor:
        slope = self.log_slope(u)
        shape = torch.where(u > self.edge, 1 - 32 * u, torch.where(u < -self.edge, 1.0, -1.0))
        return shape * slope.square()


DISTRIBUTIONS: dict[str, Distribution] = {
    law.name: law for law in (Logistic(), LogisticPhi(), Gaussian(), Cauchy(), Reciprocal(), Optimal())
}
