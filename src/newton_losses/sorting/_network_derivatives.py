"""Gradient and Hessian of a sorting network's cross-entropy, by hand, for a whole batch at once.

For a program of elementary steps y = φ(x), the Hessian of its result is the sum over all steps of
(adjoint of y) · φ''[ẋ, ẋ], with ẋ the derivatives of the step's inputs by the scores. So one sweep back for
adjoints and one forward for tangents are enough, and no tangent is ever taken of an adjoint; the products of
tangents are matrix products. Steps of layer l at wire w, with d the difference to the partner's value:

    value    x'    = x + q(d)                       q(d) = F(−u) d, the expected move
    matrix   ℓ'_j  = log(e^{ℓ_j + k} + e^{ℓ°_j + s})    k = log F(u), s = log F(−u), ℓ° the partner's ℓ

where the second step's φ'' is r(1−r) times the square of the difference of its two inputs' tangents, with r
the share of the first path. r is a conditional probability: it stays meaningful where e^ℓ underflows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._distributions import Distribution
from ._rows import FAR, RowDerivatives, row_derivatives, row_hessian


@dataclass(frozen=True)
class Comparators:
    """What each comparator does, `(layers, N, n)`: log-probabilities and derivatives by its difference d."""

    keep: Tensor
    keep_first: Tensor
    keep_second: Tensor
    swap: Tensor
    swap_first: Tensor
    swap_second: Tensor
    move_first: Tensor
    move_second: Tensor


def network_derivatives(
    scores: Tensor,
    target: Tensor,
    cells: Tensor,
    partners: Tensor,
    signs: Tensor,
    law: Distribution,
    steepness: float,
    hessian: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Values `(N,)`, gradients `(N, n)` and, if wanted, Hessians `(N, n, n)`; the matrix in `target`'s dtype."""
    layers = partners.unbind(0)
    differences = _differences(scores, partners, signs, law, steepness)
    comparators = _comparators(differences, signs.unsqueeze(1), law, steepness)
    shares, weights = _matrix(comparators, layers, target)
    rows = row_derivatives(weights, target, cells)
    adjoints = _matrix_adjoints(rows.gradient, shares, layers)
    kept = (adjoints * shares).sum(-1, dtype=scores.dtype)
    swapped = (adjoints * (1 - shares)).sum(-1, dtype=scores.dtype)
    push = comparators.keep_first * kept + comparators.swap_first * swapped
    gradient, value_adjoints = _value_adjoints(push, comparators.move_first, layers)
    if not hessian:
        return rows.value, gradient.to(target.dtype), None
    bend = comparators.keep_second * kept + comparators.swap_second * swapped
    bend = bend + comparators.move_second * value_adjoints
    second = _hessian(rows, comparators, shares, adjoints, bend, layers)
    return rows.value, gradient.to(target.dtype), second


def _differences(
    values: Tensor, partners: Tensor, signs: Tensor, law: Distribution, steepness: float
) -> Tensor:
    """Sweep 1, forward: the differences that the comparators see, `(layers, N, n)`."""
    differences = []
    for partner, sign in zip(partners.unbind(0), signs.unbind(0), strict=True):
        difference = values.index_select(-1, partner) - values
        move = law.log_cdf(law.argument(difference * -sign, steepness)).exp()
        values = torch.addcmul(values, move, difference)
        differences.append(difference)
    return torch.stack(differences)


def _comparators(difference: Tensor, sign: Tensor, law: Distribution, steepness: float) -> Comparators:
    """All comparators of all layers at once. With u = a(±d) and F symmetric, d/dd F(−u) = −F'(u) u'."""
    u = law.argument(difference * sign, steepness)
    slope, bend = law.argument_derivatives(difference * sign, steepness)
    slope = slope * sign
    both = torch.stack((u, -u))
    keep, swap = law.log_cdf(both)
    first, second = law.log_derivatives(both)
    density = keep.exp() * first[0] * slope
    density_slope = keep.exp() * ((second[0] + first[0].square()) * slope.square() + first[0] * bend)
    return Comparators(
        keep=keep,
        keep_first=first[0] * slope,
        keep_second=second[0] * slope.square() + first[0] * bend,
        swap=swap,
        swap_first=-first[1] * slope,
        swap_second=second[1] * slope.square() - first[1] * bend,
        move_first=swap.exp() - density * difference,
        move_second=-2 * density - density_slope * difference,
    )


def _matrix(comparators: Comparators, layers: tuple[Tensor, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Sweep 2, forward: the shares r of the kept path, `(layers, N, n, n)`, and the final log-matrix."""
    keep, swap = comparators.keep.to(like.dtype).unsqueeze(-1), comparators.swap.to(like.dtype).unsqueeze(-1)
    state = (torch.eye(like.shape[-1], dtype=like.dtype, device=like.device) - 1) * FAR
    state = state.expand_as(like)
    odds = []
    for layer, partner in enumerate(layers):
        kept, swapped = state + keep[layer], state.index_select(-2, partner) + swap[layer]
        odds.append(kept - swapped)
        state = torch.logaddexp(kept, swapped)
    return torch.stack(odds).sigmoid(), state


def _matrix_adjoints(adjoint: Tensor, shares: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
    """Sweep 3, back: the derivatives of the loss by the log-matrix after each layer, `(layers, N, n, n)`."""
    adjoints = []
    for layer in reversed(range(len(layers))):
        adjoints.append(adjoint)
        kept = adjoint * shares[layer]
        adjoint = kept + (adjoint - kept).index_select(-2, layers[layer])
    return torch.stack(adjoints[::-1])


def _value_adjoints(
    push: Tensor, move_first: Tensor, layers: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """Sweep 3 for the values: the gradient by the scores, `(N, n)`, and by each layer's new values."""
    adjoint = torch.zeros_like(push[0])
    adjoints = []
    for layer in reversed(range(len(layers))):
        adjoints.append(adjoint)
        by_difference = torch.addcmul(push[layer], adjoint, move_first[layer])
        adjoint = adjoint - by_difference + by_difference.index_select(-1, layers[layer])
    return adjoint, torch.stack(adjoints[::-1])


def _hessian(
    rows: RowDerivatives,
    comparators: Comparators,
    shares: Tensor,
    adjoints: Tensor,
    bend: Tensor,
    layers: tuple[Tensor, ...],
) -> Tensor:
    """Sweep 4, forward: tangents, and the sum of the products that each step contributes, `(N, m, m)`."""
    steps = _value_tangents(comparators.move_first, layers)
    by_value = steps.movedim(0, 1).flatten(1, 2)
    total = ((by_value * bend.movedim(0, 1).flatten(1).unsqueeze(-1)).mT @ by_value).to(shares.dtype)
    swaps = (comparators.swap_first.unsqueeze(-1) * steps).to(shares.dtype).unsqueeze(-2)
    odds = (comparators.keep_first - comparators.swap_first).unsqueeze(-1) * steps
    odds = odds.to(shares.dtype).unsqueeze(-2)
    weights = (adjoints * shares * (1 - shares)).flatten(2).unsqueeze(-1)
    shares = shares.unsqueeze(-1)
    tangents = torch.zeros_like(shares[0]).expand(*shares.shape[1:-1], steps.shape[-1])
    for layer, partner in enumerate(layers):
        other = tangents.index_select(1, partner)
        gap = tangents - other + odds[layer]
        products = gap.flatten(1, 2)
        total = torch.baddbmm(total, (products * weights[layer]).mT, products)
        tangents = torch.addcmul(other + swaps[layer], shares[layer], gap)
    return total + row_hessian(rows, tangents)


def _value_tangents(move_first: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
    """The derivatives of all differences by the scores, `(layers, N, n, m)`."""
    identity = torch.eye(move_first.shape[-1], dtype=move_first.dtype, device=move_first.device)
    tangents = identity.expand(*move_first.shape[1:], -1)
    steps = []
    for layer, partner in enumerate(layers):
        step = tangents.index_select(1, partner) - tangents
        tangents = torch.addcmul(tangents, move_first[layer].unsqueeze(-1), step)
        steps.append(step)
    return torch.stack(steps)
