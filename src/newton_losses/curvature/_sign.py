"""The sign of a symmetric matrix by products alone, with nothing that depends on its values."""

import math

import torch
from torch import Tensor

# What is below this part of the matrix's norm may end with a sign between −1 and 1: an error of |C| as small.
LOWEST = 1e-10
# Eigenvalues in [LOWEST, 1] are at their sign after this many rounds.
ROUNDS = 30
# √3 would take the largest eigenvalues back to zero, and their sign would be lost to rounding.
STEEPEST = 1.65


def matrix_sign(matrix: Tensor) -> Tensor:
    """The sign of a symmetric matrix, or of each in a batch, V sign(e) Vᵀ.

    The Newton-Schulz iteration X ← (3X − X³)/2 starts with all eigenvalues in [−1, 1] and takes each to its sign, but
    small ones grow by 3/2 a round only. Here X is first multiplied with

        ρ = min(1.65, √(3 / (1 + ℓ + ℓ²))),   ℓ ← ρℓ(3 − ρ²ℓ²)/2

    where ℓ is what the least of the eigenvalues above 1e-10 has become: small ones grow by 2.5 a round, and large ones,
    which may go down again, stay above 0.2. What is left below ±1 after 30 rounds was smaller than 1e-10 of the
    norm, so |C| = C·sign(C) has an error below that.

    >>> matrix_sign(torch.tensor([[0.0, 2.0], [2.0, 0.0]], dtype=torch.float64))
    tensor([[0., 1.],
            [1., 0.]], dtype=torch.float64)
    """
    scale = torch.linalg.matrix_norm(matrix, keepdim=True)
    sign = torch.where(scale > 0, matrix / scale, 0.0)
    low = LOWEST
    for _ in range(ROUNDS):
        steep = min(STEEPEST, math.sqrt(3 / (1 + low + low**2)))
        sign = (1.5 * steep) * sign - (0.5 * steep**3) * (sign @ sign @ sign)
        low = steep * low * (3 - (steep * low) ** 2) / 2
    return sign
