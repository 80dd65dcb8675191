"""Arithmetic with logarithms that the relaxations share, and the precision that it is done in."""

import torch
from torch import Tensor
from torch.nn.functional import softplus as torch_softplus
from torch.nn.functional import threshold

# exp(−FAR) is 0 in every dtype, and sums of it stay finite: −inf would make NaN out of −inf − (−inf).
FAR = 1e30


def softplus(u: Tensor) -> Tensor:
    """log(1 + eᵘ) with derivatives of any order.

    The default threshold of torch's function, 20, would be seen in float64; e⁵⁰ is far from overflow in
    float32. torch's own `logsigmoid` has the same values, and is several times slower on a CPU.
    """
    return torch_softplus(u, threshold=50.0)


def decay(u: Tensor) -> Tensor:
    """eᵘ for u ≤ 0, with a floor where it is far below the rounding of anything it is added to.

    Results that underflow take a CPU twenty to forty times as long as others. `threshold` is a clamp whose
    derivative is fast.
    """
    floor = -700.0 if u.dtype == torch.float64 else -80.0
    return threshold(u, floor, floor).exp()


def log_sum(paths: Tensor) -> Tensor:
    """log Σ eˣ over the first dimension, with derivatives of any order at equal and at distant terms.

    `torch.logaddexp` has ∞/∞ as its second derivative where one term vanishes beside the other. Here the
    maximum is a mere constant that drops out of all derivatives.
    """
    shift = paths.detach().amax(0)
    return shift + decay(paths - shift).sum(0).log()


def as_wide(scores: Tensor) -> Tensor:
    """`scores` in float64, in which log-weights are computed; in float32 on Apple's GPU, which has no float64."""
    return scores.to(torch.float32 if scores.device.type == "mps" else torch.float64)
