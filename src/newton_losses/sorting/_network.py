"""Differentiable sorting networks (Petersen et al., 2021 and 2022): soft comparators on a fixed wiring.

The values on the wires and the logarithms of the matrix are carried in float64: a comparator looks at
differences that may be many orders of magnitude smaller than the values.
Second derivatives are in `_network_derivatives.py`.
"""

import torch
from torch import Tensor

from .._arguments import positive_number, whole_number
from .._by_hand import is_dual
from ..errors import ArgumentError, ShapeError
from ._log_space import as_wide, log_sum
from ._network_derivatives import (
    Comparisons,
    compiled_values,
    impossible_but_diagonal,
    kept_where_idle,
    network_derivatives,
)
from ._network_distributions import DISTRIBUTIONS, Distribution, DistributionName
from ._network_operators import Backend, check_backend, chosen_kernel
from ._network_wiring import NetworkName, exchanged, strides, wiring
from ._relaxation import Relaxation, first_places, to_items, to_ranks


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

    def matrices_recorded(self, n: int) -> int:
        return n if self.network == "odd_even" else n.bit_length() ** 2 // 2 + 1

    def log_weights(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            order, active = self._compaction(mask)
            return to_items(order, self._log_weights(scores.gather(-1, order), active))
        return self._log_weights(scores, None)

    def _compaction(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The items that exist before all others, `(..., n)`, and which comparators they need, `(layers, n, N)`.

        A list of m items is sorted by the network for m items: the first m layers on the first m wires.
        """
        if self.network != "odd_even":
            raise ArgumentError(
                f"SortingNetwork: a {self.network} network cannot sort lists of different lengths. "
                "Use network='odd_even' with a mask."
            )
        order = (~mask).to(torch.int8).argsort(dim=-1, stable=True)
        partners, _ = self._wiring(mask)
        layer = torch.arange(len(partners), device=mask.device).unsqueeze(-1)
        wire = torch.arange(mask.shape[-1], device=mask.device)
        needed = torch.maximum(torch.maximum(partners, wire), layer)
        return order, needed.unsqueeze(-1) < mask.sum(-1).flatten()

    def _log_weights(self, scores: Tensor, active: Tensor | None) -> Tensor:
        partners, signs = self._wiring(scores)
        values = as_wide(batch_last(scores))
        state = impossible_but_diagonal(values)
        size = len(values)
        keep_swap = torch.stack((signs, -signs), 1).unsqueeze(-1).to(values.dtype)
        for layer, (partner, sign, stride) in enumerate(
            zip(partners.unbind(0), keep_swap.unbind(0), strides(self.network, size), strict=True)
        ):
            difference = exchanged(values, partner, stride) - values
            chances = self._law.log_cdf(self._law.argument(difference * sign, self.steepness))
            if active is not None:
                chances = kept_where_idle(chances, active[layer])
            values = torch.addcmul(values, chances[1].exp(), difference)
            # A wire's new row comes along two paths, from itself and from its partner.
            paths = torch.stack((state, exchanged(state, partner, stride)))
            state = log_sum(paths + chances.unsqueeze(2))
        return state.movedim(-1, 0).reshape(*scores.shape, scores.shape[-1])

    def probabilities(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            order, active = self._compaction(mask)
            return to_items(order, self._probabilities(scores.gather(-1, order), active))
        return self._probabilities(scores, None)

    def _probabilities(self, scores: Tensor, active: Tensor | None) -> Tensor:
        partners, signs = self._wiring(scores)
        values = batch_last(scores)
        state = torch.eye(len(values), dtype=scores.dtype, device=scores.device).unsqueeze(-1)
        layers = zip(partners.unbind(0), signs.unsqueeze(-1).unbind(0), strides(self.network, len(values)), strict=True)
        for layer, (partner, sign, stride) in enumerate(layers):
            other = exchanged(values, partner, stride)
            keep = self._law.log_cdf(self._law.argument((other - values) * sign, self.steepness)).exp()
            if active is not None:
                keep = torch.where(active[layer], keep, 1.0)
            values = keep * values + (1 - keep) * other
            keep = keep.unsqueeze(1)
            state = keep * state + (1 - keep) * exchanged(state, partner, stride)
        return state.movedim(-1, 0).reshape(*scores.shape, scores.shape[-1])

    def cross_entropies(self, scores: Tensor, target: Tensor, cells: Tensor, mask: Tensor | None = None) -> Tensor:
        kernel = chosen_kernel(self.backend, scores)
        if kernel is None or is_differentiated(scores):
            return super().cross_entropies(scores, target, cells, mask)
        compared, values, target, cells, _ = self._comparisons(scores, target, cells, mask)
        found = compiled_values(compared, values, target.to(values.dtype), cells.to(values.dtype), kernel)
        return found.to(target.dtype)

    def derivatives(
        self, scores: Tensor, target: Tensor, cells: Tensor, hessian: bool, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        compared, values, target, cells, order = self._comparisons(scores, target, cells, mask)
        kernel, narrow = chosen_kernel(self.backend, scores), target.dtype
        dtype = values.dtype if kernel is not None or self._law.cancels else narrow
        wide = target.to(dtype), cells.to(dtype)
        value, gradient, total = network_derivatives(compared, values, *wide, hessian, kernel)
        if order is not None:
            gradient = gradient.gather(-1, order.argsort(-1))
        return value.to(narrow), gradient.to(narrow), None if total is None else total.to(narrow)

    def _comparisons(
        self, scores: Tensor, target: Tensor, cells: Tensor, mask: Tensor | None
    ) -> tuple[Comparisons, Tensor, Tensor, Tensor, Tensor | None]:
        """The comparisons of these lists, their values `(n, N)`, target and cells, all with the items that exist first.

        And the order of the items, where a mask changes it.
        """
        partners, signs = self._wiring(scores)
        order = active = None
        if mask is not None:
            order, active = self._compaction(mask)
            scores, target, cells = compacted(order, mask, scores, target, cells)
        values = as_wide(batch_last(scores))
        apart, signs = strides(self.network, len(values)), signs.unsqueeze(-1).to(values.dtype)
        return Comparisons(partners, apart, signs, active, self._law, self.steepness), values, target, cells, order

    def extra_repr(self) -> str:
        return f"{self.n}, network={self.network!r}, distribution={self.distribution!r}, steepness={self.steepness}"


def is_differentiated(scores: Tensor) -> bool:
    """Whether operators on them are recorded, for backward or in forward mode."""
    backward = torch.is_grad_enabled() and scores.requires_grad
    return backward or is_dual(scores)


def compacted(
    order: Tensor, mask: Tensor, scores: Tensor, target: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """All three with the items that exist first. The other wires stay where they are, and so does their target."""
    target, cells = to_ranks(order, target), to_ranks(order, cells)
    exists = first_places(mask)
    assert exists is not None
    identity = torch.eye(mask.shape[-1], dtype=target.dtype, device=target.device)
    return scores.gather(-1, order), torch.where(exists.unsqueeze(-1), target, identity), cells


def batch_last(scores: Tensor) -> Tensor:
    """`(..., n)` as `(n, N)`: a layer then moves whole rows, and inner loops run over the batch."""
    # Not -1: how many samples there are cannot be inferred where there are none.
    return scores.reshape(scores.shape[:-1].numel(), scores.shape[-1]).mT
