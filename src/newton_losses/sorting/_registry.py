"""From the name of an algorithm to its relaxation."""

from typing import Literal

from ..errors import ArgumentError
from ._laplace import LaplaceSort
from ._network import SortingNetwork
from ._network_distributions import DISTRIBUTIONS
from ._neuralsort import NeuralSort
from ._relaxation import Relaxation
from ._softsort import SoftSort

AlgorithmName = Literal[
    "neuralsort", "softsort", "laplace", "logistic", "logistic_phi", "gaussian", "cauchy", "reciprocal", "optimal"
]


def choose(
    algorithm: AlgorithmName | Relaxation,
    temperature: float | None,
    steepness: float | None,
    where: str,
) -> Relaxation:
    """The relaxation of that name: "neuralsort", "softsort" and "laplace" take a temperature, a network a steepness.

    The name of a distribution stands for an odd-even network of any size that uses it.
    """
    if isinstance(algorithm, Relaxation):
        if temperature is not None or steepness is not None:
            raise ArgumentError(f"{where}: {algorithm} already has its temperature or steepness; pass neither.")
        return algorithm
    if not isinstance(algorithm, str):
        raise ArgumentError(f"{where}: the algorithm is {algorithm!r}. Pass a name, or a relaxation.")
    if algorithm in DISTRIBUTIONS:
        if temperature is not None:
            raise ArgumentError(
                f"{where}: {algorithm!r} is a sorting network, which takes steepness, the inverse of a "
                f"temperature. Did you mean steepness={1 / temperature if temperature else temperature}?"
            )
        name: str = algorithm
        return SortingNetwork(None, "odd_even", name, 10.0 if steepness is None else steepness)  # type: ignore[arg-type]
    if steepness is not None:
        raise ArgumentError(f"{where}: {algorithm!r} takes temperature, not steepness.")
    if algorithm == "neuralsort":
        return NeuralSort(1.0 if temperature is None else temperature)
    if algorithm == "laplace":
        return LaplaceSort(0.1 if temperature is None else temperature)
    if algorithm == "softsort":
        return SoftSort(0.1 if temperature is None else temperature)
    names = ", ".join(map(repr, ("neuralsort", "softsort", "laplace", *DISTRIBUTIONS)))
    raise ArgumentError(f"{where}: algorithm={algorithm!r} is not known. Choose one of {names}, or pass a relaxation.")
