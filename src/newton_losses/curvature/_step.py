"""The damped Newton step of a batch from its expansion, with bad samples contained."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ArgumentError
from ._damping import DampingRule, NormalizedDamping, apply_rule
from ._expansion import Expansion, finite
from ._forms import LowRank, as_curvature
from ._loss_contract import full_precision
from ._solve import Spectrum, check_spectrum, damped_solve, solve_gradients


@dataclass(frozen=True)
class Step:
    """`rows` `(N, m)`: the rule's length times (C + λI)⁻¹∇ℓᵢ, zero where not `kept` `(N,)`; `count`: the N of means."""

    rows: Tensor
    kept: Tensor
    count: Tensor


def newton_step(expansion: Expansion, damping: float | Tensor | DampingRule, spectrum: Spectrum | None = None) -> Step:
    """Solve for the Newton step of each sample. Without a `spectrum`, it is the one that goes with the damping.

    A sample with a non-finite value or gradient, or whose system has no finite solution, gets a zero
    row. `count`, at least 1, is the N of the batch without the samples that were not finite to begin with.

    >>> expansion = Expansion(torch.ones(2), torch.tensor([[2.0], [torch.inf]]), torch.tensor([[3.0]]))
    >>> newton_step(expansion, damping=1.0)
    Step(rows=tensor([[0.5000],
            [0.0000]]), kept=tensor([ True, False]), count=tensor(1.))
    """
    if expansion.curvature is None:
        raise ArgumentError("A Newton step needs an expansion with a curvature.")
    curvature = as_curvature(expansion.curvature)
    if spectrum is None:
        spectrum = "absolute" if isinstance(damping, NormalizedDamping) else "raw"
    check_spectrum(spectrum)
    usable = finite(expansion)
    gradient = torch.where(usable[:, None], expansion.gradient, 0.0)
    with full_precision(gradient):
        damping, length = apply_rule(damping, expansion)
        if isinstance(curvature, LowRank) and curvature.scale is not None:
            solved = solve_gradients(curvature, len(gradient), damping).to(gradient.dtype)
        else:
            solved = damped_solve(curvature, gradient, damping, spectrum)
        solved = solved * length
    kept = usable & torch.isfinite(solved).all(1)
    return Step(torch.where(kept[:, None], solved, 0.0), kept, usable.sum().clamp(min=1).to(gradient.dtype))
