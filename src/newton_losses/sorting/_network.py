"""Differentiable sorting networks (Petersen et al., 2021 and 2022): soft comparators on a fixed wiring.

The values on the wires and the logarithms of the matrix are carried in float64: a comparator looks at
differences that may be many orders of magnitude smaller than the values.
Second derivatives are in `_network_derivatives.py`.
"""

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from .._arguments import positive_number, whole_number
from ..errors import ArgumentError, ShapeError
from ._arguments import as_wide
from ._log_space import log_sum
from ._network_derivatives import compiled_values, impossible_but_diagonal, network_derivatives
from ._network_dispatch import Backend, check_backend, chosen_kernel
from ._network_distributions import DISTRIBUTIONS, Distribution, DistributionName
from ._network_wiring import NetworkName, exchanged, strides, wiring
from ._relaxation import Relaxation


class SortingNetwork(Relaxation):
    """A sorting network of soft comparators, with `matrix` and `log_matrix`.

    A comparator of the wires a and b keeps their values with probability α = F(β (b−a)), F the cumulative
    `distribution` and β the `steepness`: a ← αa + (1−α)b, b ← (1−α)a + αb, and the same on the matrix,
    which starts as the identity. The result is doubly stochastic.

    `n` is the number of items. With `n=None` the network sorts any number, and computes its wiring at each call.
    "odd_even" has n layers for any n, "bitonic" log₂n (log₂n + 1)/2 for powers of two.
    `backend` chooses what computes the derivatives of `SortingLoss`: "auto" is numba on the CPU and Triton on
    CUDA where they are installed, else torch. Triton's kernels handle up to 64 items. All back ends agree up to
    rounding.

    >>> SortingNetwork(3, steepness=1000.0).matrix(torch.tensor([3.0, 1.0, 2.0]))
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [1., 0., 0.]])
    """

    partners: Tensor | None
    signs: Tensor | None

    def __init__(
        self,
        n: int | None,
        network: NetworkName = "odd_even",
        distribution: DistributionName = "logistic",
        steepness: float = 10.0,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        if n is not None:
            n = whole_number(n, "n, the number of items,", "SortingNetwork", least=1)
        if not isinstance(distribution, str) or distribution not in DISTRIBUTIONS:
            raise ArgumentError(
                f"SortingNetwork: distribution={distribution!r} is not known. "
                f"Choose one of {', '.join(map(repr, DISTRIBUTIONS))}."
            )
        self.n = n
        self.network = network
        self.distribution = distribution
        self.steepness = positive_number(steepness, "steepness", "SortingNetwork")
        self.backend = check_backend(backend)
        partners, signs = wiring(network, 1 if n is None else n)
        self.register_buffer("partners", None if n is None else partners, persistent=False)
        self.register_buffer("signs", None if n is None else signs, persistent=False)

    @property
    def _law(self) -> Distribution:
        return DISTRIBUTIONS[self.distribution]

    def _wiring(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        if self.partners is None or self.signs is None:
            return wiring(self.network, scores.shape[-1], scores.device)
        if scores.shape[-1] != self.n:
            raise ShapeError(
                f"SortingNetwork: built for n={self.n} items, but the scores have shape "
                f"{tuple(scores.shape)}. Pass n=None to sort any number of items."
            )
        return self.partners, self.signs

    def log_weights(self, scores: Tensor) -> Tensor:
        partners, signs = self._wiring(scores)
        values = as_wide(batch_last(scores))
        state = impossible_but_diagonal(values)
        size = len(values)
        keep_swap = torch.stack((signs, -signs), 1).unsqueeze(-1).to(values.dtype)
        for partner, sign, stride in zip(
            partners.unbind(0), keep_swap.unbind(0), strides(self.network, size), strict=True
        ):
            difference = exchanged(values, partner, stride) - values
            chances = self._law.log_cdf(self._law.argument(difference * sign, self.steepness))
            values = torch.addcmul(values, chances[1].exp(), difference)
            # A wire's new row comes along two paths, from itself and from its partner.
            paths = torch.stack((state, exchanged(state, partner, stride)))
            state = log_sum(paths + chances.unsqueeze(2))
        return state.movedim(-1, 0).reshape(*scores.shape, scores.shape[-1])

    def probabilities(self, scores: Tensor) -> Tensor:
        partners, signs = self._wiring(scores)
        values = batch_last(scores)
        state = torch.eye(len(values), dtype=scores.dtype, device=scores.device).unsqueeze(-1)
        layers = zip(partners.unbind(0), signs.unsqueeze(-1).unbind(0), strides(self.network, len(values)), strict=True)
        for partner, sign, stride in layers:
            other = exchanged(values, partner, stride)
            keep = self._law.log_cdf(self._law.argument((other - values) * sign, self.steepness)).exp()
            values = keep * values + (1 - keep) * other
            keep = keep.unsqueeze(1)
            state = keep * state + (1 - keep) * exchanged(state, partner, stride)
        return state.movedim(-1, 0).reshape(*scores.shape, scores.shape[-1])

    def cross_entropies(self, scores: Tensor, target: Tensor, cells: Tensor) -> Tensor:
        kernel = chosen_kernel(self.backend, scores)
        if kernel is None or is_differentiated(scores):
            return super().cross_entropies(scores, target, cells)
        partners, signs = self._wiring(scores)
        values = as_wide(batch_last(scores))
        wide = target.to(values.dtype), cells.to(values.dtype)
        return compiled_values(values, *wide, partners, signs, self._law, self.steepness, kernel).to(target.dtype)

    def derivatives(
        self, scores: Tensor, target: Tensor, cells: Tensor, hessian: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        partners, signs = self._wiring(scores)
        values = as_wide(batch_last(scores))
        kernel = chosen_kernel(self.backend, scores)
        dtype = values.dtype if kernel is not None or self._law.cancels else target.dtype
        wide, apart = (target.to(dtype), cells.to(dtype)), strides(self.network, len(values))
        value, gradient, total = network_derivatives(
            values, *wide, partners, apart, signs, self._law, self.steepness, hessian, kernel
        )
        narrow = target.dtype
        return value.to(narrow), gradient.to(narrow), None if total is None else total.to(narrow)

    def extra_repr(self) -> str:
        return f"{self.n}, network={self.network!r}, distribution={self.distribution!r}, steepness={self.steepness}"


def is_differentiated(scores: Tensor) -> bool:
    """Whether operators on them are recorded, for backward or in forward mode."""
    backward = torch.is_grad_enabled() and scores.requires_grad
    return backward or unpack_dual(scores).tangent is not None  # type: ignore[no-untyped-call]


def batch_last(scores: Tensor) -> Tensor:
    """`(..., n)` as `(n, N)`: a layer then moves whole rows, and inner loops run over the batch."""
    # Not -1: how many samples there are cannot be inferred where there are none.
    return scores.reshape(scores.shape[:-1].numel(), scores.shape[-1]).mT
