"""The losses of a relaxed path (which relaxation makes the path is the caller's choice)."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from .._arguments import real_tensor
from ..errors import ArgumentError, ShapeError


class PathLoss(nn.Module):
    """How far a relaxed path is from a label, per sample: costs and label `(N, H, W)` to `(N,)`.

        l1:  ℓᵢ = Σ over the cells |path(costsᵢ) − labelᵢ|
        l2:  ℓᵢ = Σ over the cells (path(costsᵢ) − labelᵢ)²

    A sum over the cells without any factor, and no reduction over the samples. With 0/1 labels and a hard
    path both count the cells that differ.

    >>> import torch
    >>> from newton_losses.paths import RelaxedBellmanFord, shortest_path
    >>> costs = torch.tensor([[[1.0, 9.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 1.0]]])
    >>> loss = PathLoss(RelaxedBellmanFord(beta=10.0, iterations=4), norm="l2")
    >>> loss(costs, shortest_path(costs)) < 1e-6
    tensor([True])
    """

    def __init__(self, algorithm: Callable[[Tensor], Tensor], norm: Literal["l1", "l2"] = "l1") -> None:
        super().__init__()
        if norm not in ("l1", "l2"):
            raise ArgumentError(f"PathLoss: norm is {norm!r}. It can be 'l1' or 'l2' (the square).")
        self.algorithm = algorithm
        self.norm = norm

    def extra_repr(self) -> str:
        return f"norm={self.norm!r}"

    def forward(self, costs: Tensor, label: Tensor) -> Tensor:
        path = self.algorithm(costs)
        if real_tensor(label, "the label's cells", "PathLoss").shape != path.shape:
            raise ShapeError(
                f"PathLoss: the label has shape {tuple(label.shape)} and the path {tuple(path.shape)}. They "
                "have to be equal: one 0/1 mask per map."
            )
        difference = path - label
        per_cell = difference.abs() if self.norm == "l1" else difference.square()
        return per_cell.flatten(1).sum(1)
