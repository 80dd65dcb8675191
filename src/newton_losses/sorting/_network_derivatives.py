"""Gradient and Hessian of a sorting network's cross-entropy, by hand, for a whole batch at once.

For a program of elementary steps y = φ(x), the Hessian of its result is the sum over all steps of
(adjoint of y) · φ''[ẋ, ẋ], with ẋ the derivatives of the step's inputs by the scores. So one sweep back for
adjoints and one forward for tangents are enough, and no tangent is ever taken of an adjoint; the products of
tangents are matrix products. Steps of layer l at wire w, with d the difference to the partner's value:

    value    x'    = x + q(d)                           q(d) = F(−u) d, the expected move
    matrix   ℓ'_j  = log(e^{ℓ_j + k} + e^{ℓ°_j + s})    k = log F(u), s = log F(−u), ℓ° the partner's ℓ

where the second step's φ'' is r(1−r) times the square of the difference of its two inputs' tangents, with r
the share of the first path. r is a conditional probability: it stays meaningful where e^ℓ underflows.

The comparators are always computed by torch; a compiled kernel (`_network_operators.py`) may do all sweeps after them,
and Triton also the one before them: on a GPU each operator of a chain would be a launch.

Wires come first and the batch last in all shapes: a layer moves whole rows, and inner loops run over N.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

from ._log_space import FAR, row_derivatives, row_hessian
from ._network_distributions import Distribution
from ._network_operators import Kernel, differences_operator, losses_by_kernel
from ._network_wiring import exchanged


@dataclass(frozen=True)
class Comparators:
    """What each comparator does, `(layers, n, N)`, with derivatives by its difference d.

    `both` is (u, −u), `slope` is u' and `relative_bend` u''/u'; `logs` the log-probabilities (k, s) to keep and to
    swap, `firsts` the derivatives of k, s and of the move q, and `density` F' u'.
    """

    difference: Tensor
    both: Tensor
    slope: Tensor
    relative_bend: Tensor
    logs: Tensor
    firsts: Tensor
    density: Tensor

    @property
    def keep(self) -> Tensor:
        return self.logs[0]

    @property
    def swap(self) -> Tensor:
        return self.logs[1]

    @property
    def keep_first(self) -> Tensor:
        return self.firsts[0]

    @property
    def swap_first(self) -> Tensor:
        return self.firsts[1]

    @property
    def move_first(self) -> Tensor:
        return self.firsts[2]


class Comparisons(NamedTuple):
    """Which wires are compared, and how.

    `partners` `(layers, n)`, how far `apart` they are in each layer, and `signs` `(layers, n, 1)` in the dtype of the
    values. Comparators that are not `active` `(layers, n, N)` keep their wires as they are.
    """

    partners: Tensor
    apart: Sequence[int]
    signs: Tensor
    active: Tensor | None
    law: Distribution
    steepness: float


class Layer(NamedTuple):
    """Whom each wire of a layer is compared with."""

    partner: Tensor
    apart: int

    def exchange(self, rows: Tensor) -> Tensor:
        return exchanged(rows, self.partner, self.apart)


def network_derivatives(
    compared: Comparisons, values: Tensor, target: Tensor, cells: Tensor, hessian: bool, kernel: Kernel | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Losses `(N,)`, gradients `(N, n)` and, if wanted, the sum of their Hessians `(n, n)`.

    Values `(n, N)` and log-matrix are carried in the dtype of the values, all else in that of `target`, which is
    float64 where a `kernel` computes.
    """
    comparators = _comparators(compared, _differences(compared, values, kernel))
    if kernel is not None:
        logs, firsts = comparators.logs, comparators.firsts
        seconds = _seconds(comparators, compared.law) if hessian else logs.new_empty(0, 0, 0, 0)
        value, gradient, total = losses_by_kernel(compared.partners, logs, firsts, seconds, target, cells, kernel)
        return value + _nothing_if_finite(values), gradient, total if hessian else None
    layers = tuple(map(Layer, compared.partners.unbind(0), compared.apart))
    return _derivatives(comparators, layers, values, target, cells, compared.law, hessian)


def compiled_values(compared: Comparisons, values: Tensor, target: Tensor, cells: Tensor, kernel: Kernel) -> Tensor:
    """The losses `(N,)` alone, by a compiled kernel; all in float64."""
    u = compared.law.argument(_differences(compared, values, kernel) * compared.signs, compared.steepness)
    nothing = u.new_empty(0, 0, 0, 0)
    logs = compared.law.log_cdf(torch.stack((u, -u)))
    if compared.active is not None:
        logs = kept_where_idle(logs, compared.active)
    value: Tensor = losses_by_kernel(compared.partners, logs, nothing, nothing, target, cells, kernel)[0]
    return value + _nothing_if_finite(values)


def _nothing_if_finite(values: Tensor) -> Tensor:
    """0 for each sample, `(N,)`, and NaN where a score is not finite: a kernel's saturated weights would hide that."""
    return (values - values).sum(0)


def _derivatives(
    comparators: Comparators,
    layers: Sequence[Layer],
    values: Tensor,
    target: Tensor,
    cells: Tensor,
    law: Distribution,
    hessian: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """All sweeps after the comparators, by torch's operators."""
    shares, weights = _matrix(comparators, layers, impossible_but_diagonal(values), target.dtype)
    rows = row_derivatives(weights.movedim(-1, 0).contiguous(), target, cells)
    adjoints = _matrix_adjoints(rows.gradient.movedim(0, -1).contiguous(), shares, layers)
    through = adjoints * shares
    kept = through.sum(2).to(values.dtype)
    swapped = (adjoints - through).sum(2).to(values.dtype)
    push = comparators.keep_first * kept + comparators.swap_first * swapped
    by_score, value_adjoints = _value_adjoints(push, comparators.move_first, layers)
    gradient = by_score.mT.to(target.dtype)
    if not hessian:
        return rows.value, gradient, None
    bend = (_seconds(comparators, law) * torch.stack((kept, swapped, value_adjoints))).sum(0)
    steps = _value_tangents(comparators.move_first, layers)
    by_value = (bend.unsqueeze(2) * steps).flatten(0, 1) @ steps.flatten(0, 1).mT
    # Products that underflow are slow on a CPU, and nothing beside the others.
    bent = hardshrink(through * (1 - shares), 1e-30)
    by_matrix, tangents = _matrix_tangents(comparators, shares, bent, steps, layers)
    by_rows = row_hessian(rows, tangents.permute(3, 0, 2, 1).contiguous())
    return rows.value, gradient, by_value.sum(0).to(target.dtype) + by_matrix + by_rows


def impossible_but_diagonal(values: Tensor) -> Tensor:
    """The logarithm of the identity, `(n, n, N)`, with −FAR for log 0."""
    identity = torch.eye(values.shape[0], dtype=values.dtype, device=values.device)
    return ((identity - 1) * FAR).unsqueeze(-1).expand(-1, -1, values.shape[-1])


def kept_where_idle(logs: Tensor, active: Tensor) -> Tensor:
    """The log-probabilities to keep and to swap, `(2, ..., n, N)`, with 1 and 0 for comparators that are not needed."""
    return torch.stack((torch.where(active, logs[0], 0.0), torch.where(active, logs[1], -FAR)))


def _differences(compared: Comparisons, values: Tensor, kernel: Kernel | None) -> Tensor:
    """Sweep 1, forward: the differences that the comparators see, `(layers, n, N)`."""
    partners, _, signs, active, law, steepness = compared
    if kernel == "triton" and active is None:
        by_triton: Tensor = differences_operator(values, partners, signs.squeeze(-1) * -steepness, law.name)
        return by_triton
    differences, against = [], -signs
    for layer, partner in enumerate(partners.unbind(0)):
        difference = values.index_select(0, partner) - values
        move = law.cdf(law.argument(difference * against[layer], steepness))
        if active is not None:
            move = torch.where(active[layer], move, 0.0)
        values = torch.addcmul(values, move, difference)
        differences.append(difference)
    return torch.stack(differences)


def _comparators(compared: Comparisons, difference: Tensor) -> Comparators:
    """All comparators of all layers at once. With u = a(±d) and F symmetric, d/dd F(−u) = −F'(u) u'."""
    _, _, sign, active, law, steepness = compared
    u = law.argument(difference * sign, steepness)
    slope, bend = law.argument_derivatives(difference * sign, steepness)
    slope = slope * sign
    both = torch.stack((u, -u))
    cdf, first = law.cdf(both), law.log_slope(both) * slope
    density = cdf[0] * first[0]
    if active is not None:
        # Without a slope, all derivatives of a comparator are 0.
        slope, density = slope * active, density * active
        first, cdf = first * active, cdf * active
    return Comparators(
        difference=difference,
        both=both,
        slope=slope,
        relative_bend=bend / slope if active is None else torch.where(active, bend / slope, 0.0),
        logs=law.log_cdf(both) if active is None else kept_where_idle(law.log_cdf(both), active),
        firsts=torch.stack((first[0], -first[1], cdf[1] - density * difference)),
        density=density,
    )


def _seconds(comparators: Comparators, law: Distribution) -> Tensor:
    """The second derivatives by d of what a comparator computes, k, s and the move q, `(3, layers, n, N)`."""
    second = law.log_bend(comparators.both) * comparators.slope.square()
    by_keep, by_swap = second + comparators.firsts[:2] * comparators.relative_bend
    density = comparators.density
    # F'' = F (log F)'' + F (log F)'², and F (log F)' is the density.
    density_slope = comparators.keep.exp() * by_keep + density * comparators.keep_first
    return torch.stack((by_keep, by_swap, -2 * density - density_slope * comparators.difference))


def _matrix(
    comparators: Comparators, layers: Sequence[Layer], state: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Sweep 2, forward: the shares r of the kept path, `(layers, n, n, N)`, and the final log-matrix."""
    keep, swap = comparators.keep.unsqueeze(2), comparators.swap.unsqueeze(2)
    shares = []
    for number, layer in enumerate(layers):
        kept, swapped = state + keep[number], layer.exchange(state) + swap[number]
        # Cut where a share no longer counts: numbers that underflow are slow on a CPU.
        share = hardshrink((kept - swapped).to(dtype).clamp(-60, 60).sigmoid(), 1e-18)
        state = torch.maximum(kept, swapped) - torch.maximum(share, 1 - share).log()
        shares.append(share)
    return torch.stack(shares), state


def _matrix_adjoints(adjoint: Tensor, shares: Tensor, layers: Sequence[Layer]) -> Tensor:
    """Sweep 3, back: the derivatives of the loss by the log-matrix after each layer, `(layers, n, n, N)`."""
    adjoints = []
    for number in reversed(range(len(layers))):
        adjoints.append(adjoint)
        kept = adjoint * shares[number]
        adjoint = kept + layers[number].exchange(adjoint - kept)
    return torch.stack(adjoints[::-1])


def _value_adjoints(push: Tensor, move_first: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
    """Sweep 3 for the values: the gradient by the scores, `(n, N)`, and by each layer's new values."""
    adjoint = torch.zeros_like(push[0])
    adjoints = []
    for number in reversed(range(len(layers))):
        adjoints.append(adjoint)
        by_difference = torch.addcmul(push[number], adjoint, move_first[number])
        adjoint = adjoint - by_difference + layers[number].exchange(by_difference)
    return adjoint, torch.stack(adjoints[::-1])


def _value_tangents(move_first: Tensor, layers: Sequence[Layer]) -> Tensor:
    """Sweep 4, forward: the derivatives of all differences by the scores, `(layers, n, m, N)`."""
    identity = torch.eye(move_first.shape[1], dtype=move_first.dtype, device=move_first.device)
    tangents = identity.unsqueeze(-1).expand(-1, -1, move_first.shape[-1])
    move_first = move_first.unsqueeze(2)
    steps = []
    for number, layer in enumerate(layers):
        step = layer.exchange(tangents) - tangents
        tangents = torch.addcmul(tangents, move_first[number], step)
        steps.append(step)
    return torch.stack(steps)


def _matrix_tangents(
    comparators: Comparators,
    shares: Tensor,
    bent: Tensor,
    steps: Tensor,
    layers: Sequence[Layer],
) -> tuple[Tensor, Tensor]:
    """Sweep 4 for the matrix: Σ `bent` · (tangents of the odds)², `(m, m)`, and the last tangents
    `(n, m, n, N)`, up to a constant of each row."""
    swaps = (comparators.swap_first.unsqueeze(2) * steps).to(shares.dtype)
    odds = ((comparators.keep_first - comparators.swap_first).unsqueeze(2) * steps).to(shares.dtype)
    shares, bent = shares.unsqueeze(2), bent.unsqueeze(2)
    size = steps.shape[2]
    tangents = torch.zeros_like(shares[0]).repeat(1, size, 1, 1)
    # The part of a wire's tangents that all its items share is carried apart, and in the end left out:
    # it is a constant of the row, to which the loss is indifferent.
    shared = torch.zeros_like(odds[0])
    # A GPU is busy with many short products, a CPU with few long ones.
    products = size * size if shares.is_cuda else size
    total = shares.new_zeros(products, size, size)
    for number, layer in enumerate(layers):
        other, other_shared = layer.exchange(tangents), layer.exchange(shared)
        # In place: these tensors are m times as large as all others, and time goes with memory.
        gap = tangents.sub_(other).add_((shared - other_shared + odds[number]).unsqueeze(2))
        left, right = (
            (x.transpose(1, 2) if shares.is_cuda else x).reshape(products, size, -1) for x in (gap * bent[number], gap)
        )
        total = torch.baddbmm(total, left, right.mT)
        tangents = other.addcmul_(shares[number], gap)
        shared = other_shared + swaps[number]
    return total.sum(0), tangents
