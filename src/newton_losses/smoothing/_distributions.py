"""The distributions of the noise, each an object of two methods. Batches are drawn in `_draws.py`."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from .._arguments import positive_number
from ..errors import ArgumentError


@runtime_checkable
class Distribution(Protocol):
    """A distribution over ℝᵐ whose coordinates are independent, each with the density exp(−ν(z)).

    Two methods make one, and your own class needs nothing else:

    - `sample` maps uniforms of the open interval (0, 1) to noise, element by element: the inverse of the cumulative
      distribution function. Because all noise starts as uniforms, antithetic pairs (u and 1−u) and quasi-random draws
      work for every distribution.
    - `derivatives` gives ν′ and ν″ at the noise, element by element. `None` for ν″ says that ν is not twice
      differentiable: gradients and Jacobians can be estimated, Hessians from values cannot.

    The density must be continuous, or even the gradient is wrong: no jumps, so no uniform or exponential noise. A
    distribution without a closed inverse may ask for k uniforms per value with an attribute `num_uniforms = k`;
    `sample` then maps `(..., k·m)` to `(..., m)`, as in `StudentT`.

    >>> class HyperbolicSecant:
    ...     def sample(self, uniform):
    ...         return torch.log(torch.tan(math.pi / 2 * uniform)) * 2 / math.pi
    ...     def derivatives(self, noise):
    ...         slope = torch.tanh(math.pi / 2 * noise)
    ...         return math.pi / 2 * slope, (math.pi / 2) ** 2 * (1 - slope**2)
    >>> isinstance(HyperbolicSecant(), Distribution)
    True
    """

    def sample(self, uniform: Tensor, /) -> Tensor: ...

    def derivatives(self, noise: Tensor, /) -> tuple[Tensor, Tensor | None]: ...


@dataclass(frozen=True)
class Gaussian:
    """The standard normal distribution: ν = z²/2 + const, ν′ = z, ν″ = 1. The paper's choice.

    >>> Gaussian().sample(torch.tensor([0.5, 0.975]))
    tensor([0.0000, 1.9600])
    """

    def sample(self, uniform: Tensor, /) -> Tensor:
        # As exact as torch.special.ndtri on the uniforms of torch.rand, in a third of its time.
        return torch.erfinv(2 * uniform - 1) * math.sqrt(2)

    def derivatives(self, noise: Tensor, /) -> tuple[Tensor, Tensor | None]:
        return noise, torch.ones_like(noise)


@dataclass(frozen=True)
class Laplace:
    """The density exp(−|z|)/2: ν = |z| + const, ν′ = sign z. No Hessian from values.

    ν″ is zero except for a point mass 2δ(z), which no finite sample ever meets: a Hessian estimated without it would
    be wrong on the whole diagonal, so there is none. (The missing term is E[ℓ | εᵢ = 0]/σ², which takes m more
    evaluations per draw.)

    >>> Laplace().derivatives(torch.tensor([-2.0, 0.5]))
    (tensor([-1.,  1.]), None)
    """

    def sample(self, uniform: Tensor, /) -> Tensor:
        tail = torch.minimum(uniform, 1 - uniform)
        return torch.sign(0.5 - uniform) * torch.log(2 * tail)

    def derivatives(self, noise: Tensor, /) -> tuple[Tensor, Tensor | None]:
        return torch.sign(noise), None


@dataclass(frozen=True)
class Logistic:
    """The density σ(z)σ(−z), with σ the logistic function: ν′ = tanh(z/2), ν″ = (1 − tanh²(z/2))/2.

    >>> Logistic().sample(torch.tensor([0.5, 0.75]))
    tensor([0.0000, 1.0986])
    """

    def sample(self, uniform: Tensor, /) -> Tensor:
        return torch.logit(uniform)

    def derivatives(self, noise: Tensor, /) -> tuple[Tensor, Tensor | None]:
        slope = torch.tanh(noise / 2)
        return slope, (1 - slope**2) / 2


@dataclass(frozen=True)
class Gumbel:
    """The density exp(−z − e⁻ᶻ), with which a perturbed argmax is a softmax: ν′ = 1 − e⁻ᶻ, ν″ = e⁻ᶻ.

    It is neither symmetric nor centred: its mean is Euler's constant, 0.577….

    >>> Gumbel().sample(torch.tensor([0.5]))
    tensor([0.3665])
    """

    def sample(self, uniform: Tensor, /) -> Tensor:
        return -torch.log(-torch.log(uniform))

    def derivatives(self, noise: Tensor, /) -> tuple[Tensor, Tensor | None]:
        second = torch.exp(-noise)
        return 1 - second, second


@dataclass(frozen=True)
class Cauchy:
    """The density 1/(π(1 + z²)): ν′ = 2z/(1 + z²), ν″ = 2(1 − z²)/(1 + z²)².

    It has no mean, so it is only for functions that grow slower than linearly, such as a 0/1 mask or an accuracy.

    >>> Cauchy().sample(torch.tensor([0.25, 0.75]))
    tensor([-1.,  1.])
    """

    def sample(self, uniform: Tensor, /) -> Tensor:
        # Near π/2 the tangent has no correct digit left in float32; near 0 it has all of them.
        tail = torch.minimum(uniform, 1 - uniform)
        return torch.sign(uniform - 0.5) / torch.tan(math.pi * tail)

    def derivatives(self, noise: Tensor, /) -> tuple[Tensor, Tensor | None]:
        return _student_derivatives(noise, 1.0)


@dataclass(frozen=True)
class StudentT:
    """Student's t with any number of degrees of freedom d ≥ ½: ν = (d+1)/2 · log(1 + z²/d) + const.

    ν′ = (d+1)z/(d + z²), ν″ = (d+1)(d − z²)/(d + z²)². The smoothed function exists where it grows
    slower than |z|ᵈ.

    >>> StudentT(4.0).sample(torch.tensor([0.25, 0.25]))  # two uniforms for one value
    tensor([0.9102])
    """

    degrees_of_freedom: float = 3.0
    num_uniforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        number = positive_number(self.degrees_of_freedom, "degrees_of_freedom", "StudentT")
        if number < 0.5:
            raise ArgumentError(
                f"StudentT: degrees_of_freedom={number}. Use at least 0.5; below that the tails overflow float32."
            )
        object.__setattr__(self, "degrees_of_freedom", number)

    def sample(self, uniform: Tensor, /) -> Tensor:
        # Bailey's polar method, exact for every d. |2u−1| is as uniform as u, and unlike u it stays as it
        # is under u → 1−u, so that a mirrored draw is exactly −z.
        radius, angle = uniform.chunk(2, dim=-1)
        radius = (2 * radius - 1).abs().clamp(min=torch.finfo(uniform.dtype).eps / 2)
        power = torch.expm1(torch.log(radius) * (-2 / self.degrees_of_freedom))
        return torch.sqrt(self.degrees_of_freedom * power) * torch.cos(math.pi * angle)

    def derivatives(self, noise: Tensor, /) -> tuple[Tensor, Tensor | None]:
        return _student_derivatives(noise, self.degrees_of_freedom)


def _student_derivatives(noise: Tensor, degrees_of_freedom: float) -> tuple[Tensor, Tensor]:
    # Written with 1/(d + z²) as a factor: a draw of 1e20 overflows z² to infinity, and 0·… is the limit.
    inverse = 1 / (degrees_of_freedom + noise**2)
    first = (degrees_of_freedom + 1) * noise * inverse
    second = (degrees_of_freedom + 1) * (2 * degrees_of_freedom * inverse - 1) * inverse
    return first, second
