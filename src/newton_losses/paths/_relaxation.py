"""The two loops of the relaxed Bellman-Ford algorithm, plain and accelerated: distances and the way back.

How they make a path is in `_bellman_ford.py`. Neighbours are numbered 0 to 7: the three above, the three
below, left, right. Weights below any effect on the sum are exactly 0 (see `_softmin`), for products of
denormal numbers are slow on a CPU, and so that the 1e12 of vertices not yet reached meets no derivative.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from ._accelerated import Accelerated

FAR = 1e12
OFFSETS = ((-1, -1), (-1, 0), (-1, 1), (1, -1), (1, 0), (1, 1), (0, -1), (0, 1))
# Where the neighbour on the opposite side is in OFFSETS.
OPPOSITE = (5, 4, 3, 2, 1, 0, 7, 6)
# Shares of the position below this are dropped; a sum of all of them would not show in float32 or float64.
FAINT = 1e-25


@cache
def accelerated_predecessors(beta: float, iterations: int) -> Accelerated:
    """Costs `(B, H, W)` to the weights of each vertex's neighbours as its predecessor, `(8, B, H, W)`."""
    return Accelerated(
        lambda costs: plain_predecessors(costs, beta, iterations),
        lambda costs: _predecessors(costs, beta, iterations),
        lambda costs, history, gradient: _predecessors_pullback(history, gradient, beta),
    )


@cache
def accelerated_positions(iterations: int) -> Accelerated:
    """Weights `(8, B, H, W)` to the position after 0, 1, … steps back from the goal, `(T, B, H, W)`."""
    return Accelerated(
        lambda weights: plain_positions(weights, iterations),
        lambda weights: _positions(weights, iterations),
        _positions_pullback,
    )


def plain_predecessors(costs: Tensor, beta: float, iterations: int) -> Tensor:
    start = _start(costs)
    distance = torch.where(start, 0.0, torch.full_like(costs, FAR))
    for _ in range(iterations - 1):
        around = _neighbors(distance, FAR)
        weights, gap, nearest = _softmin(around, beta)
        distance = torch.where(start, 0.0, nearest + (weights * gap).sum(0) + costs)
    return _softmin(_neighbors(distance, FAR), beta)[0]


def plain_positions(weights: Tensor, iterations: int) -> Tensor:
    incoming = _incoming(weights)
    position = torch.zeros_like(weights[0])
    position = torch.where(_start(position).flip((0, 1)), 1.0, position)
    positions = [position]
    for _ in range(iterations - 1):
        position = functional.threshold((incoming * _neighbors(position, 0.0)).sum(0), FAINT, 0.0)
        positions.append(position)
    return torch.stack(positions)


def _start(costs: Tensor) -> Tensor:
    """True at the top left, `(H, W)`; made without a write that a captured graph or a compiler would mind."""
    height, width = costs.shape[-2:]
    return torch.arange(height * width, device=costs.device).view(height, width) == 0


def _neighbors(values: Tensor, outside: float) -> Tensor:
    """The values of each vertex's neighbours, `(8, B, H, W)`."""
    height, width = values.shape[-2:]
    padded = functional.pad(values, (1, 1, 1, 1), value=outside)
    return torch.stack([padded[..., 1 + i : 1 + i + height, 1 + j : 1 + j + width] for i, j in OFFSETS])


def _incoming(weights: Tensor) -> Tensor:
    """The weight with which each vertex's neighbours send their position to it: the weights seen from there."""
    height, width = weights.shape[-2:]
    padded = functional.pad(weights, (1, 1, 1, 1))
    return torch.stack(
        [
            padded[OPPOSITE[k], ..., 1 + i : 1 + i + height, 1 + j : 1 + j + width]
            for k, (i, j) in enumerate(OFFSETS)
        ]
    )


def _cut(dtype: torch.dtype) -> float:
    """The exponent beyond which a weight counts as 0: twice the digits that the dtype has."""
    return 32.0 if dtype == torch.float32 else 72.0


def _softmin(around: Tensor, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Weights ∝ exp(−β·around) over dimension 0, and around = nearest + gap with the nearest as a constant.

    Shifting by the nearest changes neither the weights nor nearest + Σ weights·gap, whatever the nearest is;
    so it may be taken for a constant, and derivatives of every order stay right.
    """
    cut = _cut(around.dtype)
    nearest = around.detach().amin(0)
    gap = (around - nearest).clamp(max=cut / beta)
    weights = functional.threshold(torch.exp(-beta * gap), _faintest(cut), 0.0)
    return weights / weights.sum(0), gap, nearest


def _faintest(cut: float) -> float:
    # A little more than what the clamped gap gives, whichever way its exponential is rounded.
    return 1.001 * 2.718281828459045**-cut


class _Workspace:
    """Buffers that one call uses over and over: memory that is new at each step costs more than the sums."""

    def __init__(self, like: Tensor) -> None:
        """`like` is `(B, H, W)`."""
        self.around = like.new_empty(8, *like.shape)
        self.weights = torch.empty_like(self.around)
        self.nearest = torch.empty_like(like)
        self.total = torch.empty_like(like)

    def gather(self, padded: Tensor) -> Tensor:
        """The neighbours' values from a padded `(B, H + 2, W + 2)` grid, in `around`."""
        batch, height, width = self.nearest.shape
        plane, row = padded.stride(0), padded.stride(1)
        origin = padded.storage_offset()
        rows = padded.as_strided((2, 3, batch, height, width), (2 * row, 1, plane, row, 1), origin)
        sides = padded.as_strided((2, batch, height, width), (2, plane, row, 1), origin + row)
        self.around[:6].view(2, 3, batch, height, width).copy_(rows)
        self.around[6:].copy_(sides)
        return self.around

    def softmin(self, padded: Tensor, beta: float) -> None:
        """As `_softmin`, of the neighbours: the gap in `around`, the weights in `weights`."""
        cut = _cut(padded.dtype)
        gap = self.gather(padded)
        torch.amin(gap, 0, out=self.nearest)
        gap.sub_(self.nearest).clamp_(max=cut / beta)
        torch.mul(gap, -beta, out=self.weights)
        functional.threshold_(self.weights.exp_(), _faintest(cut), 0.0)
        torch.sum(self.weights, 0, out=self.total)
        self.weights.div_(self.total)

    def scatter(self, values: Tensor, padded: Tensor) -> None:
        """The adjoint of `gather`: add each of `(8, B, H, W)` to the neighbour that it belongs to."""
        _, height, width = self.nearest.shape
        padded.zero_()
        for value, (i, j) in zip(values, OFFSETS, strict=True):
            padded[:, 1 + i : 1 + i + height, 1 + j : 1 + j + width].add_(value)


def _inside(padded: Tensor) -> Tensor:
    return padded[..., 1:-1, 1:-1]


def _predecessors(costs: Tensor, beta: float, iterations: int) -> tuple[Tensor, Tensor]:
    """The weights, and the distances before each iteration, padded: `(T, B, H + 2, W + 2)`."""
    work = _Workspace(costs)
    batch, height, width = costs.shape
    history = costs.new_full((iterations, batch, height + 2, width + 2), FAR)
    history[:, :, 1, 1] = 0.0
    for before, after in zip(history[:-1], history[1:], strict=True):
        work.softmin(before, beta)
        work.around.mul_(work.weights)
        distance = torch.sum(work.around, 0, out=work.total)
        _inside(after).copy_(distance.add_(work.nearest).add_(costs))
        after[:, 1, 1] = 0.0
    work.softmin(history[-1], beta)
    return work.weights, history


def _predecessors_pullback(history: Tensor, gradient: Tensor, beta: float) -> Tensor:
    padded = torch.empty_like(history[0])
    work = _Workspace(_inside(padded).contiguous())
    by_costs = torch.zeros_like(work.nearest)
    # The last iteration gives the weights s: ∂/∂around = −β s (g − Σ s g).
    work.softmin(history[-1], beta)
    torch.mul(work.weights, gradient, out=work.around)
    torch.sum(work.around, 0, out=work.total)
    work.around.addcmul_(work.weights, work.total, value=-1.0).mul_(-beta)
    for before in history[:-1].flip(0):
        work.scatter(work.around, padded)
        padded[:, 1, 1] = 0.0
        by_distance = _inside(padded)
        by_costs.add_(by_distance)
        # The others give the distance d = Σ s·around: ∂d/∂around = s (1 − β (gap − Σ s gap)).
        work.softmin(before, beta)
        torch.mul(work.weights, work.around, out=(product := torch.empty_like(work.around)))
        torch.sum(product, 0, out=work.total)
        work.around.sub_(work.total).mul_(-beta).add_(1.0).mul_(work.weights).mul_(by_distance)
    return by_costs


def _positions(weights: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """The positions, and the same padded."""
    _, batch, height, width = weights.shape
    work = _Workspace(weights[0])
    incoming = _incoming(weights)
    padded = weights.new_zeros(iterations, batch, height + 2, width + 2)
    padded[0, :, height, width] = 1.0
    for before, after in zip(padded[:-1], padded[1:], strict=True):
        torch.sum(work.gather(before).mul_(incoming), 0, out=work.total)
        _inside(after).copy_(functional.threshold_(work.total, FAINT, 0.0))
    return _inside(padded).contiguous(), padded


def _positions_pullback(weights: Tensor, padded: Tensor, gradient: Tensor) -> Tensor:
    work = _Workspace(weights[0])
    by_weights = torch.zeros_like(weights)
    by_position = torch.zeros_like(padded[0])
    _inside(by_position).copy_(gradient[-1])
    for before, after, by_before in zip(padded[:-1].flip(0), padded[1:].flip(0), gradient[:-1].flip(0), strict=True):
        by_position.mul_(after != 0)
        work.gather(by_position)
        by_weights.addcmul_(work.around, _inside(before))
        torch.sum(work.around.mul_(weights), 0, out=work.total)
        _inside(by_position).copy_(work.total.add_(by_before))
    return by_weights
