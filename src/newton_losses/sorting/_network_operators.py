"""Triton's kernels of a sorting network (`_network_triton.py`) as torch operators.

The same in torch's own operators is in `_network_derivatives.py`.
"""

import torch
from torch import Tensor

# Beyond this many items a sample's matrix does not fit into a program of the kernels.
LARGEST = 64


@torch.library.custom_op("newton_losses::sorting_network_differences", mutates_args=())
def differences_operator(values: Tensor, partners: Tensor, scale: Tensor, law: str) -> Tensor:
    """The differences that the comparators see, `(layers, n, N)`, of `(n, N)` values in float64.

    `scale` `(layers, n)` is the steepness, negative for the wire that gets the smaller value.
    """
    from ._network_triton import network_differences

    return network_differences(values, partners, scale, law)


@differences_operator.register_fake
def _fake_differences(values: Tensor, partners: Tensor, scale: Tensor, law: str) -> Tensor:
    return values.new_empty(*partners.shape, values.shape[1])


@torch.library.custom_op("newton_losses::sorting_network", mutates_args=())
def network_operator(
    partners: Tensor, logs: Tensor, firsts: Tensor, seconds: Tensor, target: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses `(N,)`, gradients `(N, n)` and the sum of the Hessians, `(n, n)`; all but `partners` in float64.

    `logs` `(2, layers, n, N)` are the logarithms k and s of a comparator; `firsts` and `seconds` `(3, layers, n, N)`
    the derivatives by d of k, s and of the move q. The gradients are empty without `firsts`, the sum without
    `seconds`.
    """
    from ._network_triton import network_losses

    return network_losses(partners, logs, firsts, seconds, target, cells)


@network_operator.register_fake
def _fake_losses(
    partners: Tensor, logs: Tensor, firsts: Tensor, seconds: Tensor, target: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    count, n = target.shape[:2]
    size = n if seconds.shape[0] else 0
    return target.new_empty(count), target.new_empty(count, n if firsts.shape[0] else 0), target.new_empty(size, size)
