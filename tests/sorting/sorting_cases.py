"""The catalogue of relaxations that the tests of sorting run over."""

import torch
from torch import Tensor

from newton_losses.sorting import NeuralSort, Relaxation, SoftSort, SortingNetwork

DISTRIBUTIONS = ("logistic", "logistic_phi", "gaussian", "cauchy", "reciprocal", "optimal")
NAMES = ("neuralsort", "softsort", "softsort-2", *DISTRIBUTIONS)
SIZES = (2, 3, 5, 8, 10)


def make(name: str, sharpness: float = 1.0, network: str = "odd_even", n: int | None = None) -> Relaxation:
    """A relaxation by name; `sharpness` is the steepness or the inverse temperature."""
    if name == "neuralsort":
        return NeuralSort(1 / sharpness)
    if name.startswith("softsort"):
        return SoftSort(1 / sharpness, p=2 if name.endswith("2") else 1)
    return SortingNetwork(n, network, name, sharpness)


def scores_and_values(count: int, n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Scores without ties, and values in random order."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, n, generator=generator, dtype=torch.float64)
    values = torch.rand(count, n, generator=generator).argsort(-1)
    return scores.to(dtype), values


def numbers(expansion):
    """Values, gradients and the curvature's matrix by name."""
    curvature = expansion.curvature.dense()
    return {"value": expansion.value, "gradient": expansion.gradient, "curvature": curvature}
