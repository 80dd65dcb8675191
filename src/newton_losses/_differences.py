"""Finite differences that are fair to a derivative: how far to move, and what counts as an error beyond rounding."""

from collections.abc import Iterator

import torch
from torch import Tensor

# Moves in units of each output's scale, tried until all agree. A true derivative agrees at one of them at least:
# large ones lose to the third derivative, small ones to rounding. A wrong one agrees at none.
MOVES = (1e-5, 1e-4, 1e-6, 1e-3, 1e-2)
TOLERANCE = 1e-3


def unit_of(flat: Tensor) -> Tensor:
    """The unit `(m,)` of moves at outputs `(N, m)`: each output's standard deviation over the batch.

    An output that is the same in all samples has that of all outputs together, or 1 if all outputs are equal.
    """
    wide = flat if flat.device.type == "mps" else flat.double()
    wide = torch.where(torch.isfinite(wide), wide, torch.nan)
    together = wide[torch.isfinite(wide)]
    common = float(together.std(correction=0)) if len(together) else 0.0
    own = (wide - wide.nanmean(0)).square().nanmean(0).sqrt()
    usable = torch.isfinite(own) & (own > 1e-12 * wide.abs().nan_to_num().amax(0)) & (own > 0)
    return torch.where(usable, own, common if common > 0 else 1.0).to(flat)


def beside(flat: Tensor, unit: Tensor, seed: int) -> Tensor:
    """Outputs a thousandth of their scale away: what was at a kink or a tie is not any more."""
    drawn = torch.randn(flat.shape, generator=torch.Generator().manual_seed(seed)).to(flat)
    return flat + 1e-3 * unit * drawn


def least(errors: Iterator[Tensor]) -> Tensor:
    """The least error over the moves, entry by entry; no further move is tried once all are small."""
    smallest = next(errors)
    for error in errors:
        if bool((smallest <= TOLERANCE / 10).all()):
            break
        smallest = torch.fmin(smallest, error)
    return smallest


def excess(difference: Tensor, rounding: Tensor, scale: Tensor) -> Tensor:
    """The difference beyond rounding, relative to the size of what is compared."""
    return (difference - rounding).clamp(min=0) / scale.clamp(min=torch.finfo(scale.dtype).tiny)
