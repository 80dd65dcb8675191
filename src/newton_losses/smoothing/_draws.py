"""Draws of noise, and the derivatives estimated from them.

The smoothing lemma: for a density exp(−ν(ε)) and draws s = 1…S, with weights w_s = ℓ(y+ε_s) − baseline_s,

    ∇ℓ_ε(y)  ≈ (1/S) Σ_s w_s ∇ν(ε_s)
    ∇²ℓ_ε(y) ≈ (1/S) Σ_s w_s (∇ν(ε_s) ∇ν(ε_s)ᵀ − ∇²ν(ε_s))

Both factors beside w_s have mean zero, so any baseline that is independent of ε_s leaves the estimates unbiased.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..errors import ArgumentError, DerivativeError
from ._distributions import Distribution

VarianceReduction = Literal["auto", "leave_one_out", "value", "none"]
VARIANCE_REDUCTIONS: tuple[str, ...] = get_args(VarianceReduction)


@dataclass(frozen=True)
class Noise:
    """Draws ε = scale·z, with z = `standard` of shape `(S, N, m)`: S draws for each of N samples with m outputs.

    A negative scale mirrors the distribution: −z for the noise, −ν′ for its score.
    """

    standard: Tensor
    scale: float
    distribution: Distribution

    def perturbation(self) -> Tensor:
        """ε, `(S, N, m)`."""
        return self.scale * self.standard

    def gradient(self, weights: Tensor) -> Tensor:
        """The gradient of each sample, `(N, m)`, from weights `(S, N)`."""
        return torch.einsum("sn,snm->nm", weights, self._score()) / len(weights)

    def jacobian(self, weights: Tensor) -> Tensor:
        """The Jacobian of each sample, `(N, k, m)`, from weights `(S, N, k)`."""
        return torch.einsum("snk,snm->nkm", weights, self._score()) / len(weights)

    def mean_jacobian(self, weights: Tensor, keep: Tensor) -> Tensor:
        """The mean Jacobian of the kept samples, `(k, m)`, from weights `(S, N, k)`: one matrix product."""
        weights = torch.where(keep.unsqueeze(-1), weights, 0.0)
        # Numbers first: the count is in a tensor, and every operation with it a kernel.
        score = self.distribution.derivatives(self.standard)[0] / (self.scale * len(weights))
        return weights.flatten(0, 1).mT @ score.flatten(0, 1) / _count(keep)

    def mean_hessian(self, weights: Tensor, keep: Tensor) -> Tensor:
        """The mean Hessian of the kept samples, `(m, m)`, from weights `(S, N)`: one matrix product.

        No Hessian of a single sample is formed.
        """
        first, second = self.distribution.derivatives(self.standard)
        if second is None:
            raise DerivativeError(
                f"No Hessian can be estimated from values under {self.distribution}: its ν is not twice "
                f"differentiable, and without the point mass in ν″ the diagonal would be wrong. Use "
                f"curvature='fisher', or a smooth distribution such as Gaussian() or Logistic()."
            )
        weights = torch.where(keep, weights, 0.0)
        outer = (weights.unsqueeze(-1) * first).flatten(0, 1).mT @ first.flatten(0, 1)
        hessian = outer - torch.diag(torch.einsum("sn,snm->m", weights, second))
        return (hessian + hessian.mT) / (2 * self.scale**2 * len(weights) * _count(keep))

    def _score(self) -> Tensor:
        """∇ν(ε) of the scaled noise, `(S, N, m)`."""
        return self.distribution.derivatives(self.standard)[0] / self.scale


def _count(keep: Tensor) -> Tensor:
    """How many samples are kept, at least 1, as a tensor so that nothing waits for the device."""
    return keep.sum().clamp(min=1)


def leave_one_out(values: Tensor, groups: int) -> Tensor:
    """Values `(S, N, ...)` minus the mean of the draws in all *other* groups.

    Draws of one group (an antithetic pair, a quasi-random set) depend on each other and would bias the estimate.
    """
    grouped = values.reshape(groups, len(values) // groups, *values.shape[1:])
    own = grouped.sum(1, keepdim=True)
    others = (own.sum(0) - own) / (len(values) - grouped.shape[1])
    return (grouped - others).reshape(values.shape)


@dataclass(frozen=True)
class Sampler:
    """How the draws of one sample depend on each other; the samples of a batch are always independent.

    The draws form `groups` of equal size, independent between groups and dependent within: an independent draw is a
    group of its own, an antithetic pair is one, and so are quasi-random points that share one random shift.
    """

    num_samples: int
    antithetic: bool
    quasi: bool
    leave_one_out: bool

    def __post_init__(self) -> None:
        mirrored = 2 if self.antithetic else 1
        # A baseline from other draws is unbiased only if they are independent, so it takes two groups.
        divisor = mirrored * (2 if self.quasi and self.leave_one_out else 1)
        least = 2 * mirrored if self.leave_one_out else mirrored
        if self.num_samples < least or self.num_samples % divisor:
            raise ArgumentError(
                f"num_samples is {self.num_samples}. With antithetic={self.antithetic}, quasi={self.quasi} and "
                f"{'a' if self.leave_one_out else 'no'} leave-one-out baseline it must be a multiple of {divisor}, at "
                f"least {least}."
            )

    @property
    def groups(self) -> int:
        if self.quasi:
            return 2 if self.leave_one_out else 1
        return self.num_samples // (2 if self.antithetic else 1)

    def uniform(self, y: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
        """Uniforms in the open interval (0, 1), `(S, N, size)`, for a batch y of N samples."""
        points = self.num_samples // (self.groups * (2 if self.antithetic else 1))
        shape = (self.groups, points, y.shape[0], size)
        if self.quasi:
            uniform = _shifted_sobol(shape, y, generator)
        else:
            uniform = torch.rand(shape, dtype=y.dtype, device=y.device, generator=generator)
        # Never 0 or 1, where quantiles are infinite; and the interval is its own mirror image.
        edge = torch.finfo(y.dtype).eps / 2
        uniform = uniform.clamp(edge, 1 - edge)
        if self.antithetic:
            uniform = torch.stack([uniform, 1 - uniform], dim=2)
        return uniform.reshape(self.num_samples, y.shape[0], size)

    def draw(self, y: Tensor, scale: float, distribution: Distribution, generator: torch.Generator | None) -> Noise:
        """Noise for a batch y of shape `(N, m)`, in its dtype and on its device."""
        size = y.shape[1] * getattr(distribution, "num_uniforms", 1)
        return Noise(distribution.sample(self.uniform(y, size, generator)), scale, distribution)


def make_sampler(num_samples: int, antithetic: bool, quasi: bool, reduction: VarianceReduction) -> tuple[Sampler, str]:
    """The sampler for these settings, and the baseline that "auto" stands for.

    Leave-one-out has the smaller variance wherever fn(y) is far from the mean of fn(y + ε), as for most black boxes;
    but with one or two draws the mean of the others is no estimate of it, and fn(y) is the better baseline.
    """
    if reduction != "auto":
        return Sampler(num_samples, antithetic, quasi, reduction == "leave_one_out"), reduction
    if num_samples >= 3:
        try:
            return Sampler(num_samples, antithetic, quasi, leave_one_out=True), "leave_one_out"
        except ArgumentError:  # the draws do not form two groups: an odd number of quasi-random points, say
            pass
    return Sampler(num_samples, antithetic, quasi, leave_one_out=False), "value"


def _shifted_sobol(shape: tuple[int, int, int, int], y: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sobol points under one random digital shift per group, sample and dimension.

    The shift makes every point uniform, so estimates are unbiased; it makes samples and groups independent; and it
    keeps the points' even spread, which a shift modulo 1 does not.
    """
    groups, points, batch, size = shape
    if size == 0:  # no outputs, and Sobol points have at least one dimension
        return y.new_zeros(shape)
    if size > SobolEngine.MAXDIM:
        raise ArgumentError(
            f"quasi=True: Sobol points exist for up to {SobolEngine.MAXDIM} dimensions, and these draws have {size}. "
            f"Use quasi=False; in so many dimensions quasi-random points gain nothing."
        )
    shift = torch.randint(2**SobolEngine.MAXBIT, (groups, 1, batch, size), device=y.device, generator=generator)
    digits = torch.bitwise_xor(_sobol_digits(points, size, y.device)[None, :, None, :], shift)
    return (digits.to(y.dtype) + 0.5) / float(2**SobolEngine.MAXBIT)


@lru_cache(maxsize=16)
def _sobol_digits(points: int, size: int, device: torch.device) -> Tensor:
    """The first points of a Sobol sequence as integers of 30 bits, `(points, size)`.

    Kept from call to call: the engine lives on the CPU, from which nothing may be copied while a CUDA graph is being
    captured. The seed only scrambles away the alignments of the raw sequence.
    """
    engine = SobolEngine(size, scramble=True, seed=0)  # type: ignore[no-untyped-call]
    points_drawn: Tensor = engine.draw(points, dtype=torch.float64)
    digits = (points_drawn * 2**engine.MAXBIT).round().to(torch.int64)
    on_device: Tensor = digits.to(device)
    return on_device
