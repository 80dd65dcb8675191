"""Which wires the layers of a sorting network compare. How a comparison is softened is not known here."""

from typing import Literal

import torch
from torch import Tensor

from .._arguments import one_of
from ..errors import ArgumentError

NetworkName = Literal["odd_even", "bitonic"]


def wiring(network: NetworkName, n: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """`partner` and `sign` of each layer and wire, both `(layers, n)`.

    Wire w is compared with wire `partner`, itself where it passes the layer unmatched, and gets the
    smaller value where `sign` is +1, the larger where it is −1. Computed by arithmetic on the device,
    without a copy from the host, so that it can be part of a captured CUDA graph.

    >>> wiring("odd_even", 3)[0].tolist()
    [[1, 0, 2], [0, 2, 1], [1, 0, 2]]
    """
    one_of(network, ("odd_even", "bitonic"), "network", "SortingNetwork")
    if network == "odd_even":
        return _odd_even(n, device)
    return _bitonic(n, device)


def strides(network: NetworkName, n: int) -> list[int]:
    """How far apart the wires are that each layer compares.

    >>> strides("bitonic", 8)
    [1, 2, 1, 4, 2, 1]
    """
    if network == "odd_even":
        return [1] * n
    return [1 << step for block in range(n.bit_length() - 1) for step in reversed(range(block + 1))] or [1]


def exchanged(rows: Tensor, partner: Tensor, stride: int) -> Tensor:
    """The row of each wire's partner, `rows.index_select(0, partner)`, for partners `stride` apart.

    torch's compiler for CPUs, as of 2.13, writes beyond its buffers or loses a gradient without a word where gradients
    are added up at places that an index names, and as of 2.11 cannot compile what it makes of some rows taken by an
    index. Any compiler gets the same in other words, which it can put together with what is around.
    """
    if not torch.compiler.is_compiling():
        return rows.index_select(0, partner)
    ahead = (partner - torch.arange(len(partner), device=partner.device)).view(-1, *[1] * (rows.ndim - 1))
    below = torch.where(ahead < 0, rows.roll(stride, 0), rows)
    return torch.where(ahead > 0, rows.roll(-stride, 0), below)


def _odd_even(n: int, device: torch.device | None) -> tuple[Tensor, Tensor]:
    wire = torch.arange(n, device=device)
    layer = torch.arange(n, device=device).unsqueeze(-1)
    sign = 1 - 2 * ((wire + layer) % 2)
    partner = wire + sign
    exists = (partner >= 0) & (partner < n)
    return torch.where(exists, partner, wire), sign


def _bitonic(n: int, device: torch.device | None) -> tuple[Tensor, Tensor]:
    blocks = n.bit_length() - 1
    if n != 1 << blocks:
        raise ArgumentError(
            f"SortingNetwork: a bitonic network sorts a power of two of items, not n={n}. "
            "Use network='odd_even', which sorts any number."
        )
    wire = torch.arange(n, device=device)
    # One item needs no comparison; a layer in which it meets itself spares everyone the empty case.
    partners, signs = ([], []) if blocks else ([wire], [torch.ones_like(wire)])
    for block in range(blocks):
        for step in reversed(range(block + 1)):
            stride = 1 << step
            lower = (wire & stride) == 0
            ascending = (wire & (2 << block)) == 0
            partners.append(wire ^ stride)
            signs.append(torch.where(lower == ascending, 1, -1))
    return torch.stack(partners), torch.stack(signs)
