"""The two loops of the relaxed Bellman-Ford algorithm: distances, and the way back from the goal.

In torch's operators, which differentiate themselves to any order. `_bellman_ford.py` makes a path of them, and
`_triton_relaxation.py` has the same as kernels.

Grids are `(H, W, B)` here, the batch last, so that a neighbour is some whole rows of memory away. Neighbours are
numbered 0 to 7 in reading order, so that 7 − k is opposite k.
"""

from math import exp

import torch
from torch import Tensor
from torch.nn import functional

from ._torch_backend import OFFSETS

FAR = 1e12
# Shares of the position below this are dropped: no sum shows them, and their products with each other or with
# a weight would be denormal numbers, a hundred times slower than others.
FAINT = 1e-18


def predecessors(costs: Tensor, iterations: int) -> Tensor:
    """Costs times β `(H, W, B)` to the weight of each neighbour as a vertex's predecessor, `(8, H, W, B)`."""
    start = first_vertex(costs)
    distance = torch.where(start, 0.0, torch.full_like(costs, FAR))
    for _ in range(iterations - 1):
        weights, lead, nearest = _softmin(_neighbors(distance, FAR))
        distance = torch.where(start, 0.0, nearest - (weights * lead).sum(0) + costs)
    return _softmin(_neighbors(distance, FAR))[0]


def positions(weights: Tensor, iterations: int) -> Tensor:
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
        [padded[7 - k, 1 + i : 1 + i + height, 1 + j : 1 + j + width] for k, (i, j) in enumerate(OFFSETS[8])]
    )


def _neighbors(values: Tensor, outside: float) -> Tensor:
    """The values of each vertex's neighbours, `(8, H, W, B)`."""
    height, width, _ = values.shape
    padded = functional.pad(values, (0, 0, 1, 1, 1, 1), value=outside)
    return torch.stack([padded[1 + i : 1 + i + height, 1 + j : 1 + j + width] for i, j in OFFSETS[8]])


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
