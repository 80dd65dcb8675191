"""The relaxed Bellman-Ford algorithm and the loss of a relaxed path, as modules. The loops are in `_relaxation.py`."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from .._arguments import dense_tensor, one_of, positive_number, whole_number
from .._backends import TritonOrTorch, takes_triton, triton_or_torch
from .._by_hand import by_hand
from .._tracing import sees_operators
from .._warnings import warn
from ..errors import ShapeError
from . import _relaxation
from ._dispatch import LARGEST, path_operator, pullback_operator

Loop = Literal["for", "while"]
Conorm = Literal["probabilistic", "yager"]


class RelaxedBellmanFord(nn.Module):
    """A differentiable shortest path: vertex costs `(B, H, W)` to a relaxed path mask `(B, H, W)` in [0, 1].

    From the top left to the bottom right over 8 neighbours. With distances d, 0 at the start and 1e12
    elsewhere at first, `iterations` times

        s(v) = softmin over the neighbours u of v of β·d(u)
        d(v) ← Σᵤ s(v, u)·d(u) + cost(v),    d(start) ← 0

    The last s is the predecessor of each vertex. A position, 1 at the goal at first, is then moved by s step by step,
    and the path collects where it has been: path ← path ⊕ position.

    - `beta` is the inverse temperature; larger is harder.
    - `iterations` bounds both loops. A path of more than `iterations` vertices is not traced to its start;
      on grids on which all are longer, a warning says so.
    - `loop`: "for" takes that many steps back; "while" relaxes the loop "until the path contains the start": it
      averages the paths of the steps with the weights p(t−1) − p(t), and p(T) for the last, where p is the running
      product of the conditions σ(−β·(path(start) − 1)).
    - `conorm` is ⊕: "probabilistic" a + b − a·b, or "yager" min(1, a + b).
    - `backend` for path and gradient on CUDA: "triton" (grids of up to 1024 vertices) or "torch"; "auto" uses Triton
      where it is installed. Everything else runs in torch. Both give the same numbers up to rounding.

    float16 and bfloat16 are computed and returned in float32. Differentiable to any order, also in forward mode.

    >>> costs = torch.tensor([[[1.0, 9.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 1.0]]])
    >>> RelaxedBellmanFord(beta=10.0, iterations=4)(costs).round(decimals=2)
    tensor([[[1., 0., 0.],
             [1., 0., 0.],
             [0., 1., 1.]]])
    """

    def __init__(
        self,
        beta: float = 10.0,
        iterations: int = 18,
        loop: Loop = "for",
        conorm: Conorm = "probabilistic",
        backend: TritonOrTorch = "auto",
    ) -> None:
        super().__init__()
        self.beta = positive_number(beta, "beta", "RelaxedBellmanFord")
        self.iterations = whole_number(iterations, "iterations", "RelaxedBellmanFord", least=1)
        self.loop: Loop = one_of(loop, ("for", "while"), "loop", "RelaxedBellmanFord")
        self.conorm: Conorm = one_of(conorm, ("probabilistic", "yager"), "conorm", "RelaxedBellmanFord")
        self.backend = triton_or_torch(backend, "RelaxedBellmanFord")

    _has_warned = False

    def extra_repr(self) -> str:
        settings = f"beta={self.beta}, iterations={self.iterations}, loop={self.loop!r}, conorm={self.conorm!r}"
        return settings if self.backend == "auto" else f"{settings}, backend={self.backend!r}"

    def forward(self, costs: Tensor) -> Tensor:
        if dense_tensor(costs, "costs", "RelaxedBellmanFord", allow_meta=True).ndim != 3 or 0 in costs.shape[1:]:
            raise ShapeError(
                f"RelaxedBellmanFord: costs have shape {tuple(costs.shape)}. Pass the vertex costs of a batch of "
                "grids, (B, H, W)."
            )
        if self.iterations < max(costs.shape[1:]) and not self._has_warned and not sees_operators():
            self._has_warned = True
            warn(
                f"RelaxedBellmanFord: on grids of {costs.shape[1]} rows and {costs.shape[2]} columns a path has at "
                f"least {max(costs.shape[1:])} vertices, and iterations={self.iterations} end before it arrives: it "
                f"depends little on the costs, or not at all. Pass more iterations, with room for detours. This is "
                f"said once."
            )
        if costs.dtype not in (torch.float32, torch.float64):
            costs = costs.float()
        if len(costs) == 0:
            return costs.clone()
        if takes_triton(self.backend, costs, costs[0].numel(), LARGEST):
            return self._by_triton(costs)
        return self._by_torch(costs)

    def _by_triton(self, costs: Tensor) -> Tensor:
        """In one kernel for the path and one for its gradient."""
        settings = (self.beta, self.iterations, self.loop, self.conorm)

        def path_and_pullback(costs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
            path, kept = path_operator(costs, *settings)
            return path, lambda gradient: pullback_operator(kept, gradient, *settings)

        return by_hand(costs, self._by_torch, path_and_pullback)

    def _by_torch(self, costs: Tensor) -> Tensor:
        scaled = (self.beta * costs).permute(1, 2, 0).contiguous()
        weights = _relaxation.predecessors(scaled, self.iterations)
        paths = self._gather(_relaxation.positions(weights, self.iterations))
        path = self._average(paths) if self.loop == "while" else paths[-1]
        return path.permute(2, 0, 1).contiguous()

    def _gather(self, positions: Tensor) -> list[Tensor]:
        """The path after each step, `(H, W, B)`."""
        first, *others = positions.unbind()
        paths = [first]
        for position in others:
            path = paths[-1]
            if self.conorm == "probabilistic":
                paths.append(path + position - path * position)
            else:
                paths.append((path + position).clamp(max=1.0))
        return paths

    def _average(self, paths: list[Tensor]) -> Tensor:
        """The path after the relaxed while loop. The empty path before the first step contributes nothing."""
        running = torch.sigmoid(paths[0].new_full((), self.beta))
        average = torch.zeros_like(paths[0])
        for path in paths:
            still = running * torch.sigmoid(self.beta * (1.0 - path[:1, :1]))
            average = average + (running - still) * path
            running = still
        return average + running * paths[-1]


class PathLoss(nn.Module):
    """How far a relaxed path is from a label, per sample: costs and label `(N, H, W)` to `(N,)`.

        l1:  ℓᵢ = Σ over the cells |path(costsᵢ) − labelᵢ|
        l2:  ℓᵢ = Σ over the cells (path(costsᵢ) − labelᵢ)²

    A sum over the cells without a factor, and no reduction over the samples. With 0/1 labels and a hard path both
    count the cells that differ.

    >>> from newton_losses.paths import shortest_path
    >>> costs = torch.tensor([[[1.0, 9.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 1.0]]])
    >>> loss = PathLoss(RelaxedBellmanFord(beta=10.0, iterations=4), norm="l2")
    >>> loss(costs, shortest_path(costs)) < 1e-6
    tensor([True])
    """

    def __init__(self, algorithm: Callable[[Tensor], Tensor], norm: Literal["l1", "l2"] = "l1") -> None:
        super().__init__()
        self.algorithm = algorithm
        self.norm = one_of(norm, ("l1", "l2"), "norm", "PathLoss")

    def extra_repr(self) -> str:
        return f"norm={self.norm!r}"

    def forward(self, costs: Tensor, label: Tensor) -> Tensor:
        path = self.algorithm(costs)
        if dense_tensor(label, "the label's cells", "PathLoss", allow_meta=True).shape != path.shape:
            raise ShapeError(
                f"PathLoss: the label has shape {tuple(label.shape)} and the path {tuple(path.shape)}. They "
                "must be equal: one 0/1 mask per map."
            )
        difference = path - label
        per_cell = difference.abs() if self.norm == "l1" else difference.square()
        return per_cell.flatten(1).sum(1)
