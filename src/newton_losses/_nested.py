"""Nested tensors in jagged layout as padded tensors with a mask. Nothing else in the library knows nested tensors."""

from typing import Any

import torch
from torch import Tensor

from .errors import ArgumentError, ShapeError


def is_nested(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_nested


def pad_nested(nested: Tensor, name: str, where: str, fill: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Lists `(N, j)` as `(N, n)`, their mask, and the offsets that they had; gradients flow back."""
    if not nested.is_nested or nested.layout is not torch.jagged:
        raise ArgumentError(
            f"{where}: {name} are {'a nested tensor in strided layout' if nested.is_nested else 'not nested'}. "
            "Use layout=torch.jagged, or pad the lists and pass a mask."
        )
    if nested.ndim != 2:
        raise ShapeError(f"{where}: nested {name} have {nested.ndim} dimensions. Pass lists of numbers, shape (N, j).")
    offsets: Tensor = nested.offsets()  # type: ignore[attr-defined]
    return *pad_values(nested.values(), offsets, fill), offsets


def pad_values(values: Tensor, offsets: Tensor, fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """Lists one behind the other, `(Σ nᵢ,)`, as `(N, n)` and their mask; list i goes from offset i to offset i + 1."""
    lengths = offsets.diff()
    width = max(1, int(lengths.max())) if len(lengths) else 1
    place = torch.arange(width, device=values.device)
    mask = place < lengths.unsqueeze(-1)
    if values.shape[0] == 0:
        return values.new_full(mask.shape, fill), mask
    index = (offsets[:-1].unsqueeze(-1) + place).clamp(max=values.shape[0] - 1)
    return torch.where(mask, values[index], torch.as_tensor(fill, dtype=values.dtype, device=values.device)), mask


def padded_outputs(
    y: Tensor, targets: tuple[Any, ...], mask: Tensor | None, where: str
) -> tuple[Tensor, tuple[Any, ...], Tensor]:
    """Nested outputs and targets as padded ones, and which outputs exist."""
    if mask is not None:
        raise ArgumentError(f"{where}: nested outputs say themselves which of them exist. Pass no mask with them.")
    padded, exists, _ = pad_nested(y, "outputs", where)
    others = []
    for target in targets:
        if is_nested(target):
            target, same, _ = pad_nested(target, "targets", where)
            if same.shape != exists.shape or bool((same != exists).any()):
                raise ShapeError(f"{where}: the nested outputs and targets have lists of different lengths.")
        others.append(target)
    return padded, tuple(others), exists
