"""What all smoothed black boxes share: their settings, their noise, and the one call of the user's function.

The estimators are in `_estimators.py`; what is made of them is in the modules of the public classes.
"""

from collections.abc import Callable
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from .._arguments import positive_number, whole_number
from ..errors import ArgumentError, ShapeError
from ._distributions import Distribution, Gaussian
from ._draws import Noise, Sampler
from ._estimators import VARIANCE_REDUCTIONS, VarianceReduction, subtract_baseline

BlackBox = Callable[..., Any]

_GAUSSIAN = Gaussian()


class SmoothingOptions(TypedDict, total=False):
    """The settings that all smoothed black boxes share; `Smoothed` says what they mean."""

    distribution: Distribution
    variance_reduction: VarianceReduction
    antithetic: bool
    quasi: bool
    generator: torch.Generator | None


class Smoothed(nn.Module):
    """A black box under noise: y ↦ E[fn(y + ε)] with ε = scale·z, estimated from `num_samples` draws of z.

    - `distribution`: of z, independent in all coordinates; one of this package's or any object with the
      two methods of `Distribution`.
    - `variance_reduction`: the baseline that is subtracted from fn(y + ε) in all derivatives. "value" is
      fn(y), the paper's, for one further evaluation; "leave_one_out" is the mean of the other draws;
      "none" is none. All three are unbiased.
    - `antithetic`: draws come in pairs of u and 1−u, which for a symmetric distribution is ε and −ε.
    - `quasi`: the draws of a sample are randomly shifted Sobol points instead of independent.
    - `generator`: where the noise comes from; of the device of y. The global generator is then never
      touched. It belongs to the caller: its state is not part of the module's `state_dict`.

    `fn` is called once, under `no_grad`, with all draws in one batch `(B, *shape)`: draws and samples are
    flattened together, and every tensor among the targets, `(N, ...)`, is repeated to match, so that any
    function of a batch works as it is. It may return integers or booleans, and NumPy arrays. Its own
    parameters get no gradient.
    """

    def __init__(
        self,
        fn: BlackBox,
        scale: float = 0.1,
        num_samples: int = 10,
        *,
        distribution: Distribution = _GAUSSIAN,
        variance_reduction: VarianceReduction = "value",
        antithetic: bool = False,
        quasi: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        if not callable(fn):
            raise ArgumentError(f"{owner}: fn is {fn!r}; it has to be a function of a batch of inputs.")
        if not isinstance(distribution, Distribution):
            raise ArgumentError(
                f"{owner}: distribution is {distribution!r}; it has to be an object with the methods "
                f"sample and derivatives, for example nl.smoothing.Gaussian()."
            )
        if not isinstance(variance_reduction, str) or variance_reduction not in VARIANCE_REDUCTIONS:
            raise ArgumentError(
                f"{owner}: variance_reduction is {variance_reduction!r}; "
                f"it is one of {', '.join(map(repr, VARIANCE_REDUCTIONS))}."
            )
        self.fn = fn
        self.scale = positive_number(scale, "scale", owner)
        self.distribution = distribution
        self.variance_reduction = variance_reduction
        self.generator = generator
        num_samples = whole_number(num_samples, "num_samples", owner, least=1)
        self.sampler = Sampler(num_samples, antithetic, quasi, variance_reduction == "leave_one_out")

    def extra_repr(self) -> str:
        sampler = self.sampler
        return (
            f"scale={self.scale}, num_samples={sampler.num_samples}, distribution={self.distribution}, "
            f"variance_reduction={self.variance_reduction!r}, antithetic={sampler.antithetic}, "
            f"quasi={sampler.quasi}"
        )

    @property
    def _signed_scale(self) -> float:
        return self.scale

    @property
    def _needs_centre(self) -> bool:
        return self.variance_reduction == "value"

    def _check(self, y: Tensor, targets: tuple[Any, ...] = ()) -> None:
        owner = type(self).__name__
        if not isinstance(y, Tensor) or not y.is_floating_point() or y.dim() == 0:
            shown = f"{tuple(y.shape)} of {y.dtype}" if isinstance(y, Tensor) else repr(y)
            raise ShapeError(f"{owner}: y is {shown}; it has to be a batch of real outputs, (N, ...).")
        if self.generator is not None and self.generator.device.type != y.device.type:
            raise ArgumentError(
                f"{owner}: the generator is on {self.generator.device} and y on {y.device}; "
                f"make it with torch.Generator(device={y.device.type!r})."
            )
        if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in targets):
            raise ArgumentError(
                f"{owner}: a target requires a gradient, and a black box gives one to y alone. "
                f"Pass target.detach(), or make it a part of y."
            )
        for target in targets:
            if isinstance(target, Tensor) and target.dim() > 0 and target.shape[0] != y.shape[0]:
                raise ShapeError(
                    f"{owner}: a target has shape {tuple(target.shape)} for {y.shape[0]} samples. Targets "
                    f"have one entry a sample; bind what all samples share to fn, as by functools.partial."
                )

    def _draw(self, y: Tensor) -> Noise:
        """Noise for the flattened batch y, `(N, m)`."""
        return self.sampler.draw(y, self._signed_scale, self.distribution, self.generator)

    def _call(self, y: Tensor, noise: Noise, targets: tuple[Any, ...], centre: bool) -> Tensor:
        """fn at the draws, and before them at y if `centre` says so: `(S or 1+S, N, ...)`, as returned."""
        flat = flatten_from(y, 1)
        inputs = flat + noise.perturbation()
        if centre:
            inputs = torch.cat([flat.unsqueeze(0), inputs])
        rows, batch = inputs.shape[:2]
        repeated = [
            t.expand(rows, *t.shape).flatten(0, 1) if isinstance(t, Tensor) and t.dim() > 0 else t for t in targets
        ]
        inputs = inputs.reshape(rows * batch, *y.shape[1:])
        shape = tuple(inputs.shape)
        output = self._as_tensor(self.fn(inputs, *repeated), y)
        self._check_output(output, shape)
        return output.reshape(rows, batch, *output.shape[1:])

    def _as_tensor(self, output: Any, y: Tensor) -> Tensor:
        try:
            return torch.as_tensor(output, device=y.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(
                f"{type(self).__name__}: fn returned {type(output).__name__}; "
                f"it has to return a tensor (or an array) with one entry for each row of its input."
            ) from error

    def _check_output(self, output: Tensor, shape: tuple[int, ...]) -> None:
        """Raise a ShapeError unless fn's output fits its inputs of this shape, `(B, *shape)`."""
        raise NotImplementedError

    def _weights(self, values: Tensor, centred: bool) -> Tensor:
        """The values at the draws less their baseline; `centred` says that the value at y is before them."""
        centre, values = (values[0], values[1:]) if centred else (None, values)
        return subtract_baseline(values, centre, self.variance_reduction, self.sampler.groups)


def flatten_from(tensor: Tensor, dim: int) -> Tensor:
    """All dimensions from `dim` on as one, which is 1 long where there is none."""
    return tensor.flatten(dim) if tensor.dim() > dim else tensor.unsqueeze(-1)
