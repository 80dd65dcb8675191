"""The two loops of the relaxed Bellman-Ford algorithm: distances, and the way back from the goal.

The first half is their definition in plain torch. The second is the same loops made fast, with gradients by hand,
over buffers that are reused at each step: allocating memory at each step costs more than the arithmetic. The
distances are kept, one grid per iteration; the eight weights of each vertex are cheaper to compute again on the way
back than to keep. `_bellman_ford.py` makes a path of them.

Grids are `(H, W, B)` here, the batch last, so that a neighbour is some whole rows of memory away. Neighbours are
numbered 0 to 7: the three above, the three below, left, right.
"""

from itertools import pairwise
from math import exp

import torch
from torch import Tensor
from torch.nn import functional

from ._accelerated import accelerated

FAR = 1e12
OFFSETS = ((-1, -1), (-1, 0), (-1, 1), (1, -1), (1, 0), (1, 1), (0, -1), (0, 1))
# Where the neighbour on the opposite side is in OFFSETS.
OPPOSITE = (5, 4, 3, 2, 1, 0, 7, 6)
# Shares of the position below this are dropped: no sum shows them, and their products with each other or with
# a weight would be denormal numbers, a hundred times slower than others.
FAINT = 1e-18


def plain_predecessors(costs: Tensor, iterations: int) -> Tensor:
    """Costs times β `(H, W, B)` to the weight of each neighbour as a vertex's predecessor, `(8, H, W, B)`."""
    start = first_vertex(costs)
    distance = torch.where(start, 0.0, torch.full_like(costs, FAR))
    for _ in range(iterations - 1):
        weights, lead, nearest = _softmin(_neighbors(distance, FAR))
        distance = torch.where(start, 0.0, nearest - (weights * lead).sum(0) + costs)
    return _softmin(_neighbors(distance, FAR))[0]


def plain_positions(weights: Tensor, iterations: int) -> Tensor:
    """The weights `(8, H, W, B)` to the position after 0, 1, … steps back from the goal, `(T, H, W, B)`."""
    arriving = incoming(weights)
    position = torch.zeros_like(weights[0])
    position = torch.where(first_vertex(position).flip((0, 1)), 1.0, position)
    visited = [position]
    for _ in range(iterations - 1):
        position = functional.threshold((arriving * _neighbors(position, 0.0)).sum(0), FAINT, 0.0)
        visited.append(position)
    return torch.stack(visited)


def cut(dtype: torch.dtype) -> float:
    """The exponent beyond which a weight counts as 0: twice the digits that the dtype has."""
    return 32.0 if dtype == torch.float32 else 72.0


def faintest(dtype: torch.dtype) -> float:
    """The largest weight that counts as 0: a little more than exp(−cut), whichever way that is rounded."""
    return 1.001 * exp(-cut(dtype))


def first_vertex(grid: Tensor) -> Tensor:
    """True at the top left, `(H, W, 1)`."""
    height, width, _ = grid.shape
    return torch.arange(height * width, device=grid.device).view(height, width, 1) == 0


def incoming(weights: Tensor) -> Tensor:
    """The weights with which each vertex's neighbours send their position to it, `(8, H, W, B)`."""
    height, width = weights.shape[1:3]
    padded = functional.pad(weights, (0, 0, 1, 1, 1, 1))
    return torch.stack(
        [padded[OPPOSITE[k], 1 + i : 1 + i + height, 1 + j : 1 + j + width] for k, (i, j) in enumerate(OFFSETS)]
    )


def _neighbors(values: Tensor, outside: float) -> Tensor:
    """The values of each vertex's neighbours, `(8, H, W, B)`."""
    height, width, _ = values.shape
    padded = functional.pad(values, (0, 0, 1, 1, 1, 1), value=outside)
    return torch.stack([padded[1 + i : 1 + i + height, 1 + j : 1 + j + width] for i, j in OFFSETS])


def _softmin(around: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights ∝ exp(−around) over dimension 0, and around = nearest − lead with the nearest as a constant.

    Shifting by the nearest changes neither the weights nor nearest − Σ weights·lead, whatever the nearest is;
    so it may be taken for a constant, and derivatives of every order stay right. The lead of a vertex not
    yet reached is clamped and its weight 0, so that no derivative meets the 1e12 of its distance.
    """
    nearest = around.detach().amin(0)
    lead = (nearest - around).clamp(min=-cut(around.dtype))
    weights = functional.threshold(lead.exp(), faintest(around.dtype), 0.0)
    return weights / weights.sum(0), lead, nearest


# --- the same, fast ---


def predecessors(costs: Tensor, iterations: int) -> Tensor:
    """`plain_predecessors`, made fast."""
    return accelerated(
        costs,
        lambda costs: plain_predecessors(costs, iterations),
        lambda costs: _predecessors(costs, iterations),
        lambda costs, history, gradient: _predecessors_pullback(history, gradient),
    )


def positions(weights: Tensor, iterations: int) -> Tensor:
    """`plain_positions`, made fast."""
    return accelerated(
        weights,
        lambda weights: plain_positions(weights, iterations),
        lambda weights: _positions(weights, iterations),
        _positions_pullback,
    )


class _Workspace:
    """The buffers of one call for grids like the one given, `(H, W, B)`."""

    def __init__(self, grid: Tensor) -> None:
        self.around = grid.new_empty(8, *grid.shape)
        self.weights = torch.empty_like(self.around)
        self.nearest = grid.new_empty(grid.shape)
        self.total = torch.empty_like(self.nearest)
        self.mean = torch.empty_like(self.nearest)

    def gather(self, padded: Tensor) -> Tensor:
        """The neighbours' values from a padded grid `(H + 2, W + 2, B)`, in `around`."""
        height, width, batch = self.nearest.shape
        row, vertex = padded.stride()[:2]
        origin = padded.storage_offset()
        shape, strides = (height, width, batch), (row, vertex, 1)
        rows = padded.as_strided((2, 3, *shape), (2 * row, vertex, *strides), origin)
        sides = padded.as_strided((2, *shape), (2 * vertex, *strides), origin + row)
        self.around[:6].view(2, 3, *shape).copy_(rows)
        self.around[6:].copy_(sides)
        return self.around

    def scatter(self, padded: Tensor) -> None:
        """The adjoint of `gather`: give each of `around` to the neighbour that it belongs to."""
        height, width, _ = self.nearest.shape
        padded.zero_()
        for values, (i, j) in zip(self.around, OFFSETS, strict=True):
            padded[1 + i : 1 + i + height, 1 + j : 1 + j + width].add_(values)

    def softmin(self, padded: Tensor) -> None:
        """The lead in `around`, weights that are not yet divided by their sum, and that sum in `total`."""
        around = self.gather(padded)
        torch.amin(around, 0, out=self.nearest)
        torch.sub(self.nearest, around, out=around).clamp_(min=-cut(padded.dtype))
        torch.exp(around, out=self.weights)
        torch.threshold_(self.weights, faintest(padded.dtype), 0.0)
        torch.sum(self.weights, 0, out=self.total)


def _inside(padded: Tensor) -> Tensor:
    return padded[..., 1:-1, 1:-1, :]


def _predecessors(costs: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """The weights, and the padded distances before each iteration, `(T, H + 2, W + 2, B)`."""
    height, width, batch = costs.shape
    work = _Workspace(costs)
    history = costs.new_full((iterations, height + 2, width + 2, batch), FAR)
    history[:, 1, 1] = 0.0
    for before, after in pairwise(history):
        work.softmin(before)
        torch.sum(work.around.mul_(work.weights), 0, out=work.mean)
        torch.sub(work.nearest.add_(costs), work.mean.div_(work.total), out=_inside(after))
        after[1, 1] = 0.0
    work.softmin(history[-1])
    return work.weights.div_(work.total), history


def _predecessors_pullback(history: Tensor, gradient: Tensor) -> Tensor:
    padded = torch.empty_like(history[0])
    work = _Workspace(_inside(padded))
    by_costs = torch.zeros_like(work.nearest)
    # The last iteration gives the weights s themselves: ∂/∂around = s (Σ s g − g).
    work.softmin(history[-1])
    work.weights.div_(work.total)
    torch.sum(torch.mul(work.weights, gradient, out=work.around), 0, out=work.mean)
    torch.sub(work.weights.mul_(work.mean), work.around, out=work.around)
    for before in reversed(history[:-1].unbind()):
        work.scatter(padded)
        padded[1, 1] = 0.0
        # Gradients fade by products of weights into denormal numbers as well.
        by_distance = torch.hardshrink(_inside(padded), FAINT)
        by_costs.add_(by_distance)
        # The others give the distance d = Σ s·around: ∂d/∂around = s (1 + lead − Σ s lead).
        work.softmin(before)
        torch.sum(work.around.mul_(work.weights), 0, out=work.mean)
        work.around.addcmul_(work.weights, 1.0 - work.mean.div_(work.total))
        work.around.mul_(torch.div(by_distance, work.total, out=work.total))
    return by_costs


def _positions(weights: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """The positions, and the same padded."""
    _, height, width, batch = weights.shape
    work = _Workspace(weights[0])
    arriving = incoming(weights)
    padded = weights.new_zeros(iterations, height + 2, width + 2, batch)
    padded[0, height, width] = 1.0
    for before, after in pairwise(padded):
        torch.sum(work.gather(before).mul_(arriving), 0, out=work.total)
        _inside(after).copy_(torch.threshold_(work.total, FAINT, 0.0))
    return _inside(padded).contiguous(), padded


def _positions_pullback(weights: Tensor, padded: Tensor, gradient: Tensor) -> Tensor:
    work = _Workspace(weights[0])
    by_weights = torch.zeros_like(weights)
    by_position = torch.zeros_like(padded[0])
    _inside(by_position).copy_(gradient[-1])
    for step in range(padded.shape[0] - 2, -1, -1):
        # A share that was dropped has no derivative.
        by_position.mul_(padded[step + 1] != 0)
        work.gather(by_position)
        by_weights.addcmul_(work.around, _inside(padded[step]))
        torch.sum(work.around.mul_(weights), 0, out=work.total)
        torch.add(work.total, gradient[step], out=_inside(by_position))
    return by_weights
