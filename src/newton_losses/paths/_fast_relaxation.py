"""The loops of `_relaxation.py` and their gradients by hand, over buffers that are used again at each step.

Memory that is new at each step costs more than the arithmetic. The distances are kept, one grid an
iteration; the eight weights of each vertex are computed again on the way back, which is cheaper than
to keep them.
"""

from itertools import pairwise

import torch
from torch import Tensor

from . import _relaxation
from ._accelerated import accelerated
from ._relaxation import FAINT, FAR, OFFSETS, cut, faintest, incoming


def predecessors(costs: Tensor, iterations: int) -> Tensor:
    """`_relaxation.predecessors`, accelerated."""
    return accelerated(
        costs,
        lambda costs: _relaxation.predecessors(costs, iterations),
        lambda costs: _predecessors(costs, iterations),
        lambda costs, history, gradient: _predecessors_pullback(history, gradient),
    )


def positions(weights: Tensor, iterations: int) -> Tensor:
    """`_relaxation.positions`, accelerated."""
    return accelerated(
        weights,
        lambda weights: _relaxation.positions(weights, iterations),
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
