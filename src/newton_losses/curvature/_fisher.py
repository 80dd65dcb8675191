"""The empirical Fisher (1/N) Σ gᵢgᵢᵀ of per-sample gradients, in whichever form is the smaller."""

import torch
from torch import Tensor

from ._forms import Dense, LowRank, Mean


def empirical_fisher(gradient: Tensor, kept: Tensor | None = None) -> Dense | LowRank:
    """The mean of gᵢgᵢᵀ over the kept samples of `gradient`, `(N, m)`.

    Where N < m it is never formed: the scaled gradients are its factor. `kept` is `(N,)` boolean;
    without it, all samples are.

    >>> empirical_fisher(torch.tensor([[1.0, 0.0], [1.0, 2.0]])).dense()
    tensor([[1., 1.],
            [1., 2.]], dtype=torch.float64)
    """
    count: Tensor | int = len(gradient)
    if kept is not None:
        count = kept.sum().clamp(min=1)
        gradient = torch.where(kept[:, None], gradient, 0.0)
    # In float64, because a small damping has to survive next to the squares of large gradients.
    wide = gradient if gradient.device.type == "mps" else gradient.double()
    if gradient.shape[0] < gradient.shape[1]:
        scale = torch.as_tensor(count, dtype=wide.dtype, device=wide.device).sqrt()
        return LowRank(wide / scale, scale)
    matrix = wide.mT @ wide / count
    return Dense(matrix, semidefinite=True, mean=Mean(wide, kept, matrix))
