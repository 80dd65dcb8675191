"""The Newton step in which each sample is solved with its own part of the empirical Fisher, from the gradients alone.

    (gᵢgᵢᵀ/N + λI)⁻¹gᵢ = gᵢ/(λ + ‖gᵢ‖²/N)

There is no matrix and nothing to solve: O(N·m). Gradients are divided by their largest entry first, so that no square
leaves the range of numbers. `_host.py` has a short form of it for batches without bad samples on a CPU.
"""

import math

import torch

from ._damping import NormalizedDamping, RelativeDamping, Rule, apply_rule
from ._expansion import Expansion
from ._fisher import Solved
from ._forms import OwnParts, widened
from ._options import NUMBERS


def sample_step(parts: OwnParts, damping: Rule, *, mean: bool = False) -> Solved:
    """The step of each sample from `parts`; with `mean` divided by the number of samples.

    With a relative damping λ = factor · √((1/m) Σ (‖gᵢ‖²/N)²): the scale of the empirical Fisher's eigenvalues as if
    all gradients were orthogonal, which does not depend on their directions.

    >>> sample_step(OwnParts(torch.tensor([[3.0, 4.0], [0.0, 1.0]])), 0.5).rows  # ‖gᵢ‖²/N = 12.5 and 0.5
    tensor([[0.2308, 0.3077],
            [0.0000, 1.0000]])
    """
    usable, gradient = parts.usable(), parts.gradient.detach()
    own_count = usable.sum().clamp(min=1)
    rows = widened(torch.where(usable[:, None], gradient, 0.0))
    one = rows.new_ones(())
    number, length, factor = one, one, None
    if type(damping) in (NormalizedDamping, RelativeDamping):
        factor = damping.factor  # type: ignore[union-attr]
    elif isinstance(damping, NUMBERS):
        number = widened(one * damping)
    else:
        value = rows.new_zeros(len(rows)) if parts.value is None else parts.value
        number, length = (widened(one * found) for found in apply_rule(damping, Expansion(value, gradient, parts)))
    # Only what this process has can be divided by its scale; sums over the ranks are made without one.
    scale = one
    if parts.sums is None and rows.numel() > 0:
        scale = rows.abs().amax()
        scale = scale if factor is not None else torch.maximum(scale, number.sqrt())
        scale = torch.where(scale > 0, scale, 1.0)
        rows = rows / scale
    squares = rows.square().sum(1)
    if parts.sums is not None:
        fourth, second, outputs, count = parts.sums.unbind()
    else:
        outputs, count = (found.to(rows.dtype) for found in parts.counted(usable))
        fourth, second = squares.square().sum(), squares.sum()
    count, outputs = count.clamp(min=1), outputs.clamp(min=1)
    number = number / scale / scale
    length = length / scale
    if factor is not None:
        spread = (fourth / (count * outputs)).sqrt()
        number = factor * spread
        if isinstance(damping, NormalizedDamping):
            number = number * damping.stretch
            number = torch.where(spread == 0, 1.0, number)
            unit = (second / outputs).sqrt()
            length = torch.where(unit == 0, 1.0, number / unit)
    factors = length / (number + squares / count)
    factors = torch.where((number > 0) & torch.isfinite(number), factors, math.nan)
    rows = rows * (factors / own_count if mean else factors)[:, None]
    rows = rows.to(gradient.dtype)
    kept = usable & torch.isfinite(rows).all(1)
    return Solved(torch.where(kept[:, None], rows, 0.0), kept, own_count.to(gradient.dtype))
