"""Batches of noise: independent, antithetic or quasi-random. What it is used for is in `_estimators.py`."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..errors import ArgumentError
from ._distributions import Distribution


@dataclass(frozen=True)
class Noise:
    """Draws ε = scale·z, one for each of S draws, N samples and m outputs; z is `standard`, `(S, N, m)`.

    A negative scale is allowed and mirrors the distribution: −z for the noise, −ν′ for its score.
    """

    standard: Tensor
    scale: float
    distribution: Distribution

    def perturbation(self) -> Tensor:
        """ε, `(S, N, m)`."""
        return self.scale * self.standard

    def score(self) -> Tensor:
        """∇ν(ε) of the scaled noise, `(S, N, m)`."""
        return self.distribution.derivatives(self.standard)[0] / self.scale

    def scores(self) -> tuple[Tensor, Tensor | None]:
        """∇ν(ε) and the diagonal of ∇²ν(ε), `(S, N, m)` each; the latter `None` where it does not exist."""
        first, second = self.distribution.derivatives(self.standard)
        return first / self.scale, None if second is None else second / self.scale**2


@dataclass(frozen=True)
class Sampler:
    """How the draws of one sample depend on each other; the samples of a batch are always independent.

    The draws come in `groups` equally large ones: independent between groups, dependent within. An
    independent draw is a group of its own, an antithetic pair is one, and quasi-random points that
    share one random shift are one.
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
                f"num_samples is {self.num_samples}; with antithetic={self.antithetic}, quasi={self.quasi} "
                f"and {'a' if self.leave_one_out else 'no'} leave-one-out baseline it has to be a "
                f"multiple of {divisor}, at least {least}."
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


def _shifted_sobol(shape: tuple[int, int, int, int], y: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sobol points under one random digital shift for each group, sample and dimension.

    The shift makes every point uniform, so that estimates are unbiased, makes samples and groups
    independent, and keeps the points' even spread, which a shift modulo 1 does not.
    """
    groups, points, batch, size = shape
    if size == 0:  # no outputs, and Sobol points have at least one dimension
        return y.new_zeros(shape)
    if size > SobolEngine.MAXDIM:
        raise ArgumentError(
            f"quasi=True: Sobol points exist for up to {SobolEngine.MAXDIM} dimensions, and these draws "
            f"have {size}. Use quasi=False; in so many dimensions quasi-random points gain nothing."
        )
    shift = torch.randint(2**SobolEngine.MAXBIT, (groups, 1, batch, size), device=y.device, generator=generator)
    digits = torch.bitwise_xor(_sobol_digits(points, size, y.device)[None, :, None, :], shift)
    return (digits.to(y.dtype) + 0.5) / float(2**SobolEngine.MAXBIT)


@lru_cache(maxsize=16)
def _sobol_digits(points: int, size: int, device: torch.device) -> Tensor:
    """The first points of a Sobol sequence as integers of 30 bits, `(points, size)`.

    Kept from call to call: the engine lives on the CPU, and nothing may be copied from there while a
    CUDA graph is being captured. The seed only scrambles away the alignments of the raw sequence.
    """
    engine = SobolEngine(size, scramble=True, seed=0)  # type: ignore[no-untyped-call]
    points_drawn: Tensor = engine.draw(points, dtype=torch.float64)
    digits = (points_drawn * 2**engine.MAXBIT).round().to(torch.int64)
    digits[0] = engine.shift  # the engine keeps its first point in 24 bits only
    on_device: Tensor = digits.to(device)
    return on_device
