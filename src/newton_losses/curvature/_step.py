"""The damped Newton step of a batch from its expansion, with bad samples contained.

Here is what any curvature takes. On a CPU, `_host.py` has a short form of it for batches without bad samples; the
empirical Fisher on other devices, and with bad samples, is in `_fisher.py`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ArgumentError
from ._damping import NormalizedDamping, Rule, RunningDamping, apply_rule, whole_samples
from ._expansion import Expansion, FisherFactor, FisherMatrix, finite
from ._fisher import Solved, can_solve, fisher_step, lists_step, matrix_step
from ._forms import Dense, LowRank, OwnParts
from ._host import host_step
from ._lists import ExchangeableFisher
from ._loss_contract import full_precision
from ._options import Spectrum, check_spectrum
from ._sample import sample_step
from ._solve import damped_solve, solve_gradients


@dataclass(frozen=True)
class Step:
    """`rows` `(N, m)`: the rule's length times (C + λI)⁻¹∇ℓᵢ, zero where not `kept` `(N,)`; `count`: the N of means."""

    rows: Tensor
    kept: Tensor
    count: Tensor


def newton_step(expansion: Expansion, damping: Rule, spectrum: Spectrum | None = None) -> Step:
    """Solve for the Newton step of each sample. Without a `spectrum`, it is the one that goes with the damping.

    A sample with a non-finite value or gradient, or whose system has no finite solution, gets a zero
    row. `count`, at least 1, is the N of the batch without the samples that were not finite to begin with.

    >>> expansion = Expansion(torch.ones(2), torch.tensor([[2.0], [torch.inf]]), torch.tensor([[3.0]]))
    >>> newton_step(expansion, damping=1.0)
    Step(rows=tensor([[0.5000],
            [0.0000]]), kept=tensor([ True, False]), count=tensor(1.))
    """
    if spectrum is not None:
        check_spectrum(spectrum)
    found = solve_step(expansion, damping, spectrum)
    rows, kept = found.rows, found.kept
    kept = torch.ones(len(rows), dtype=torch.bool, device=rows.device) if kept is None else kept
    return Step(rows, kept, torch.as_tensor(found.count, device=rows.device).to(rows.dtype))


def solve_step(
    expansion: Expansion,
    damping: Rule,
    spectrum: Spectrum | None = None,
    *,
    mean: bool = False,
    counter: Tensor | None = None,
    unit: Tensor | float = 1.0,
) -> Solved:
    """`newton_step` times `unit`, with what else was found; with `mean` the rows are divided by the count."""
    if expansion.curvature is None:
        raise ArgumentError("A Newton step needs an expansion with a curvature.")
    curvature, value, gradient = expansion.curvature, expansion.value, expansion.gradient
    if spectrum is None:
        spectrum = "absolute" if isinstance(damping, NormalizedDamping) else "raw"
    with full_precision(gradient):
        if not torch.compiler.is_compiling():
            found = host_step(curvature, gradient, value, damping, spectrum, mean=mean)
            if found is not None:
                return found.times(unit)
        if isinstance(curvature, (FisherMatrix, FisherFactor)) and can_solve(curvature, gradient, damping):
            return fisher_step(gradient, value, damping, kept=curvature.kept, mean=mean, counter=counter, unit=unit)
        if isinstance(curvature, ExchangeableFisher):  # which no compiler has
            found = lists_step(curvature, gradient, value, damping, mean=mean, counter=counter, unit=unit)
            if found is not None:
                return found
        # Of a Hessian that is stored, the default's λ is the one of the batch alone.
        if type(damping) is RunningDamping and not (isinstance(curvature, Dense) and not curvature.semidefinite):
            damping = damping.in_batch(curvature, gradient)
        if isinstance(curvature, OwnParts):
            return sample_step(curvature, damping, mean=mean).times(unit)
        if isinstance(curvature, Dense) and gradient.device.type == "cuda":
            kind = "definite" if curvature.semidefinite else spectrum
            given = curvature.matrix, kind, gradient, value, damping
            found = matrix_step(*given, mean=mean, counter=counter, unit=unit)
            if found is not None:
                return found
        return _by_operators(expansion, damping, spectrum, mean).times(unit)


def _by_operators(expansion: Expansion, damping: Rule, spectrum: Spectrum, mean: bool) -> Solved:
    """With masks and without looking at a number: nothing waits for a device."""
    curvature = expansion.curvature
    assert curvature is not None
    usable = finite(expansion)
    count = usable.sum()
    gradient = torch.where(usable[:, None], expansion.gradient, 0.0)
    if isinstance(damping, NormalizedDamping) and type(damping) in (NormalizedDamping, RunningDamping):
        number, length = damping.damped(curvature.mean_square().sqrt(), gradient, whole_samples(expansion, usable))
    else:
        number, length = apply_rule(damping, expansion)
    if isinstance(curvature, LowRank) and curvature.scale is not None:
        solved = solve_gradients(curvature, len(gradient), number).to(gradient.dtype)
    else:
        solved = damped_solve(curvature, gradient, number, spectrum)
    if isinstance(damping, NormalizedDamping) or not isinstance(length, float) or length != 1:
        solved = solved * length
    kept = usable & (solved.abs() < torch.inf).all(1)
    count = count.clamp(min=1).to(gradient.dtype)
    solved = torch.where(kept[:, None], solved, 0.0)
    return Solved(solved / count if mean else solved, kept, count)
