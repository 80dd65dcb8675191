"""Perturbed optimizers: the differentiable argmax or argmin. Their loss is in `_fenchel_young.py`."""

from typing import Unpack

from torch import Tensor

from ..errors import ShapeError
from ..smoothing import SmoothedAlgorithm, SmoothingOptions
from ..smoothing._smoothed import BlackBox


class Optimizing:
    """What a perturbed solver's direction decides: the sign of its loss, and of the noise on its costs."""

    scale: float
    minimize: bool

    @property
    def _sign(self) -> float:
        return -1.0 if self.minimize else 1.0

    @property
    def _signed_scale(self) -> float:
        return self._sign * self.scale


class Perturbed(Optimizing, SmoothedAlgorithm):
    """A solver of min_w ⟨y, w⟩ (or max_w with `minimize=False`), made differentiable by noise on its costs.

        minimising   w_σ(y) = E[argmin_w ⟨y − σz, w⟩]
        maximising   w_σ(y) = E[argmax_w ⟨y + σz, w⟩]

    estimated from `num_samples` draws of z, with the Jacobian of `SmoothedAlgorithm`. The minus is that
    of argmax_w ⟨θ + σz, w⟩ at θ = −y, so that Gumbel noise gives the softmin of y; for a symmetric
    distribution it makes no difference. `solver` maps a batch of costs `(B, *shape)` to the solutions,
    of the same shape: one-hot for an argmax, a 0/1 mask for a path. All other settings are explained
    in `nl.smoothing.Smoothed`.

    >>> import torch
    >>> from newton_losses.smoothing import Gumbel
    >>> def cheapest(costs):
    ...     return torch.nn.functional.one_hot(costs.argmin(-1), costs.shape[-1])
    >>> generator = torch.Generator().manual_seed(0)
    >>> layer = Perturbed(cheapest, scale=1.0, num_samples=20_000, distribution=Gumbel(), generator=generator)
    >>> costs = torch.tensor([[0.0, 1.0, 2.0]])
    >>> bool((layer(costs) - (-costs).softmax(-1)).abs().max() < 0.01)
    True
    """

    def __init__(
        self,
        solver: BlackBox,
        scale: float = 0.1,
        num_samples: int = 10,
        *,
        minimize: bool = True,
        **options: Unpack[SmoothingOptions],
    ) -> None:
        super().__init__(solver, scale, num_samples, **options)
        self.minimize = minimize

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, minimize={self.minimize}"

    def _check_output(self, output: Tensor, shape: tuple[int, ...]) -> None:
        check_solution(type(self).__name__, output, shape)


def check_solution(owner: str, output: Tensor, shape: tuple[int, ...]) -> None:
    """Raise a ShapeError unless the solver returned solutions of the shape of its costs."""
    if output.shape != shape:
        raise ShapeError(
            f"{owner}: the solver returned shape {tuple(output.shape)} for costs of shape {shape}, in which "
            f"all draws of all samples are one batch. A solution w has the shape of its costs, since it "
            f"optimises ⟨costs, w⟩: return the one-hot vector or the 0/1 mask, not an index or a value."
        )
