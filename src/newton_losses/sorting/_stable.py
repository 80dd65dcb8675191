"""Two elementary pieces of arithmetic with logarithms that the relaxations share."""

import torch
from torch import Tensor
from torch.nn.functional import softplus as torch_softplus

# exp(−FAR) is 0 in every dtype, and sums of it stay finite: −inf would make NaN out of −inf − (−inf).
FAR = 1e30


def softplus(u: Tensor) -> Tensor:
    """log(1 + eᵘ) with derivatives of any order.

    The default threshold of torch's function, 20, would be seen in float64; e⁵⁰ is far from overflow in
    float32. torch's own `logsigmoid` has the same values, and is several times slower on a CPU.
    """
    return torch_softplus(u, threshold=50.0)


def log_add(first: Tensor, second: Tensor) -> Tensor:
    """log(e^first + e^second) with derivatives of any order, also where the two are equal or far apart.

    `torch.logaddexp` has ∞/∞ as its second derivative where one of the two vanishes beside the other, and
    a maximum plus log(1 + e^−|difference|) has none at all where they are equal.
    """
    ahead = first >= second
    larger, smaller = torch.where(ahead, first, second), torch.where(ahead, second, first)
    return larger + softplus(smaller - larger)
