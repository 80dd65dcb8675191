"""Drawing arguments for fuzzed calls: shapes, dtypes, layouts in memory, magnitudes, and what is not finite.

A `Draw` belongs to one call and depends on the seed and the call's number alone, so that any call can be repeated.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")

FLOATS = (torch.float32,) * 4 + (torch.float64,) * 4 + (torch.float16, torch.bfloat16)
OTHERS = (torch.int64, torch.int32, torch.bool, torch.complex64)
MAGNITUDES = ("normal",) * 6 + ("whole", "tiny", "huge", "spread", "zero", "equal")
LAYOUTS = ("plain",) * 3 + ("transposed", "strided", "expanded", "offset")
NOT_TENSORS = (None, 1.5, "text", [1.0, 2.0], np.ones(3))


class Draw:
    def __init__(self, seed: int, index: int) -> None:
        self.random = np.random.default_rng((seed, index))

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.random.integers(len(choices)))]

    def power(self, low: float, high: float) -> float:
        """A positive number, its exponent even between `low` and `high`."""
        return float(10 ** self.random.uniform(low, high))

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(int(self.random.integers(2**31)))

    def dtype(self, others: float = 0.01) -> torch.dtype:
        return self.pick(OTHERS) if self.chance(others) else self.pick(FLOATS)

    def tensor(self, shape: Sequence[int], dtype: torch.dtype | None = None, *, bad: float = 0.15) -> Tensor:
        """Numbers of some magnitude, with something that is not finite among them with probability `bad`."""
        numbers = self._numbers(tuple(shape))
        if numbers.size and self.chance(bad):
            spots = self.random.integers(numbers.size, size=int(self.random.integers(1, 3)))
            numbers.reshape(-1)[spots] = self.pick((np.nan, np.inf, -np.inf))
        dtype = self.dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            numbers = np.clip(np.nan_to_num(numbers), -100, 100)
        return self._laid_out(torch.from_numpy(numbers).to(dtype))

    def _numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        magnitude = self.pick(MAGNITUDES)
        normal = self.random.standard_normal(shape)
        if magnitude == "whole":
            return np.round(2 * normal)
        if magnitude == "spread":
            return normal * 10 ** self.random.uniform(-30, 30, shape)
        if magnitude == "equal":
            return np.full(shape, self.random.standard_normal())
        return normal * {"normal": 1.0, "tiny": 1e-30, "huge": 1e30, "zero": 0.0}[magnitude]

    def _laid_out(self, tensor: Tensor) -> Tensor:
        """The same shape in another place: not contiguous, with an offset, or with equal memory for many entries."""
        layout = self.pick(LAYOUTS)
        if tensor.dim() == 0 or layout == "plain":
            return tensor
        if layout == "transposed":
            return tensor.permute(*reversed(range(tensor.dim()))).contiguous().permute(*reversed(range(tensor.dim())))
        if layout == "strided":
            return torch.stack([tensor, torch.zeros_like(tensor)], -1)[..., 0]
        if layout == "offset":
            return torch.cat([torch.zeros_like(tensor[:1]), tensor])[1:] if len(tensor) else tensor
        dim = int(self.random.integers(tensor.dim()))
        return tensor.narrow(dim, 0, min(1, tensor.shape[dim])).expand(tensor.shape)


def working(tensor: Tensor) -> Tensor:
    """As the library computes with it: 16 bits become 32."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def tolerance(tensor: Tensor) -> float:
    return 1e-9 if tensor.dtype == torch.float64 else 2e-5


def same(found: Tensor, wanted: Tensor, relative: float, what: str, tiny: float = 1e-300) -> None:
    """Equal up to `relative` of the largest finite number or `tiny`, and not finite in the same places."""
    assert found.shape == wanted.shape, f"{what}: shape {tuple(found.shape)} instead of {tuple(wanted.shape)}"
    found, wanted = found.detach().double(), wanted.detach().double()
    there = torch.isfinite(wanted)
    assert torch.equal(torch.isfinite(found), there), f"{what}: not finite elsewhere: {found} instead of {wanted}"
    if not there.any():
        return
    found, wanted = found[there], wanted[there]
    error = (found - wanted).abs().max()
    assert error <= relative * wanted.abs().max() + tiny, f"{what}: {found} instead of {wanted}"
