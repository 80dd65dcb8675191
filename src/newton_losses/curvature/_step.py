"""The damped Newton step of a batch from its expansion, with bad samples contained.

The empirical Fisher has its own way, in `_fisher.py`. Here is what any curvature takes, a short form of it for a
stored matrix on a CPU, where results may be looked at, and `settle`, which puts a batch into the unit of the run.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..errors import ArgumentError
from ._damping import DampingRule, NormalizedDamping, RelativeDamping, RunningDamping, apply_rule, whole_samples
from ._distributed import sum_over
from ._expansion import Expansion, FisherFactor, FisherMatrix, empirical_fisher, finite
from ._fisher import (
    HAS_TRITON,
    LEAST_FACTOR,
    MOST_NUMBERS,
    SAFE,
    Solved,
    can_solve,
    fisher_step,
    matrix_step,
)
from ._forms import Dense, Exchangeable, LowRank, Masked, OwnParts, as_curvature, widened
from ._lists import exchangeable_fisher, masked_fisher
from ._loss_contract import full_precision, one_thread
from ._options import Spectrum, check_spectrum
from ._sample import sample_step
from ._solve import damped_solve, solve_gradients

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Up to this many unknowns the rows are multiplied by an inverse, instead of solving for each.
LARGEST_INVERSE = 256

# Of the running unit: how slowly it changes.
DECAY = 0.999
# Neither a sample nor a whole batch counts for more than this many times the usual energy of a batch, N·m·ρ².
LIMIT = 10.0
# The first batch is as it is; ρ begins with no sample of more than this many times the energy that a tenth exceed.
FIRST_LIMIT = 1e4
# No batch makes ρ² more than this many times larger. Samples enter it as they are: with those that are large left out,
# it would fall with what the others still have to learn, and a rare class would count for less and less.
GROWTH = 2.0

Rule = float | Tensor | DampingRule


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
) -> Solved:
    """`newton_step`, with what else was found on the way; with `mean` the rows are divided by the count."""
    if expansion.curvature is None:
        raise ArgumentError("A Newton step needs an expansion with a curvature.")
    curvature = expansion.curvature
    if isinstance(curvature, Tensor):
        curvature = Dense(curvature)
    if spectrum is None:
        spectrum = "absolute" if isinstance(damping, NormalizedDamping) else "raw"
    value, gradient = expansion.value, expansion.gradient
    with full_precision(gradient):
        if isinstance(curvature, (FisherMatrix, FisherFactor)) and can_solve(curvature, gradient, damping):
            kept = curvature.kept
            return fisher_step(gradient, value, damping, kept=kept, mean=mean, counter=counter)
        # Of a Hessian that is stored, the default's λ is the one of the batch alone.
        if type(damping) is RunningDamping and not (isinstance(curvature, Dense) and not curvature.semidefinite):
            damping = damping.in_batch(curvature, gradient)
        if isinstance(curvature, OwnParts):
            return sample_step(curvature, damping, mean=mean)
        if isinstance(curvature, Dense) and _is_on_host(curvature, gradient, damping):
            with one_thread(gradient, max(gradient.numel(), gradient.shape[1] ** 2)):
                found = _on_host(curvature, value.detach(), gradient, damping, spectrum, mean)
            if found is not None:
                return found
        if isinstance(curvature, Dense) and gradient.device.type == "cuda":
            kind = "definite" if curvature.semidefinite else spectrum
            if kind != "raw":
                found = matrix_step(curvature.matrix, kind, gradient, value, damping, mean=mean, counter=counter)
                if found is not None:
                    return found
        return _by_operators(expansion, damping, spectrum, mean)


def _by_operators(expansion: Expansion, damping: Rule, spectrum: Spectrum, mean: bool) -> Solved:
    """With masks and without looking at a number: nothing waits for a device."""
    assert expansion.curvature is not None
    curvature = as_curvature(expansion.curvature)
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


def _is_on_host(curvature: Dense, gradient: Tensor, damping: Rule) -> bool:
    is_known = type(damping) in (float, int, RelativeDamping) or isinstance(damping, Tensor)
    if type(damping) in (NormalizedDamping, RunningDamping):
        is_known = damping.group is None  # type: ignore[union-attr]
    return (
        is_known
        and gradient.device.type == "cpu"
        and 0 < gradient.shape[1] <= LARGEST_INVERSE
        and len(gradient) > 0
        and not torch.compiler.is_compiling()
        and type(gradient) is type(curvature.matrix) is Tensor
        and not torch._C._are_functorch_transforms_active()
    )


def _on_host(
    curvature: Dense, value: Tensor, gradient: Tensor, damping: Rule, spectrum: Spectrum, mean: bool
) -> Solved | None:
    """On a CPU, if everything is finite and not near the ends of the range of numbers; else `None`.

    The matrix is small: the rows are multiplied by its inverse, in float64.
    """
    matrix = curvature.matrix.detach().to(torch.float64, copy=True)  # it will be changed
    count, size = gradient.shape
    spread = float(torch.linalg.vector_norm(matrix)) / math.sqrt(size)
    energy = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))  # squares of float32 numbers vanish
    inside = SAFE[0] < energy < SAFE[1] and spread < SAFE[1]  # what is not finite is not inside
    mean_value = value.mean()
    if not (inside and math.isfinite(mean_value)):
        return None
    is_relative = isinstance(damping, (NormalizedDamping, RelativeDamping))
    number = damping.factor * spread if is_relative else float(damping)  # type: ignore[union-attr, arg-type]
    if isinstance(damping, NormalizedDamping):
        number *= float(damping.stretch)
    if not SAFE[0] < number < SAFE[1]:
        return None
    length = number / (energy / math.sqrt(gradient.numel())) if isinstance(damping, NormalizedDamping) else 1.0
    length = length / count if mean else length
    inverse = _inverse(matrix, number, length, "definite" if curvature.semidefinite else spectrum)
    if inverse is None:
        return None
    is_definite = curvature.semidefinite or spectrum != "raw"
    is_well_conditioned = is_definite and is_relative and damping.factor >= LEAST_FACTOR  # type: ignore[union-attr]
    if is_well_conditioned and torch.get_float32_matmul_precision() == "highest":
        # Float32 loses nothing of float32 gradients.
        return Solved(gradient @ inverse.to(gradient.dtype), None, count, mean_value, counted=True)
    rows = (gradient.double() @ inverse).to(gradient.dtype)
    is_finite = math.isfinite(torch.linalg.vector_norm(rows, math.inf))
    return Solved(rows, None, count, mean_value, counted=True) if is_finite else None


def _inverse(matrix: Tensor, damping: float, length: float, spectrum: str) -> Tensor | None:
    """length · (C + λI)⁻¹ with C's eigenvalues as `spectrum` says, or `None` where there is none."""
    if spectrum in ("absolute", "clip"):
        values, vectors = torch.linalg.eigh(matrix)
        values = values.abs() if spectrum == "absolute" else values.clamp(min=0)
        changed: Tensor = (vectors * (length / (values + damping))) @ vectors.mT
        return changed
    matrix.diagonal().add_(damping)
    if spectrum == "definite":
        factor, failed = torch.linalg.cholesky_ex(matrix)
        return None if failed else torch.cholesky_inverse(factor).mul_(length)
    inverse: Tensor
    inverse, failed = torch.linalg.inv_ex(matrix)
    return None if failed else inverse.mul_(length)


class Settled(NamedTuple):
    """An expansion with no gradient beyond the limit, and the factor from a step in the batch's unit to the run's."""

    expansion: Expansion
    factor: Tensor | float


def settle(
    expansion: Expansion,
    kind: str,
    state: Tensor | None,
    *,
    update: bool,
    group: "ProcessGroup | None" = None,
    known: bool = False,
) -> Settled:
    """Bound the gradients of a batch by the run's, and take the batch into the run's mean square.

    Without a `state` nothing is known of other batches, and the batch's own unit stays. Nothing waits for the device.
    Where it is `known` that this is not the first batch, one kernel does it on CUDA.
    """
    gradient = expansion.gradient.detach()
    if state is None or gradient.shape[1] == 0:
        return Settled(expansion, 1.0)
    if group is None and _settles_on_host(expansion):
        found = _settled_on_host(expansion, state, update)
        if found is not None:
            return found
    if group is None and known and _fits_settling(expansion, state):
        from ._settle_triton import launch_settle

        value = expansion.value.detach()
        bounded, factor = launch_settle(gradient, value, state, update, DECAY, LIMIT, GROWTH)
        return Settled(_with_gradient(expansion, bounded, kind), factor)
    usable = finite(expansion)
    squares = torch.where(usable, widened(gradient).square().sum(1), 0.0) / gradient.shape[1]
    total, count = squares.sum(), whole_samples(expansion, usable).to(squares.dtype)
    if group is not None:
        total, count = sum_over(group, torch.stack([total, count])).unbind()
    count = torch.where(count > 0, count, 1.0)  # of lists, a part of a sample counts as such
    is_first = state[1] == 0
    old = state[0] / state[1]  # 0/0 where nothing is known yet
    limit = LIMIT * count * old
    limit = torch.where(limit > 0, limit, math.inf)
    bounded = torch.minimum(squares, limit).sum()
    if group is not None:
        bounded = sum_over(group, bounded)
    own, mean = bounded / count, total / count
    first = own
    if group is None and len(squares) > 0:
        # Most samples may have no gradient, or one that is only rounding; the few that explode are above this one.
        usual = squares.topk(min(len(squares), 1 + math.ceil(len(squares) / 10))).values[-1]
        first = torch.where(usual > 0, torch.minimum(squares, FIRST_LIMIT * usual), squares).sum() / count
    # A batch without any gradient says nothing of its size.
    enters = (mean > 0) & torch.isfinite(mean)
    weight = torch.lerp(torch.ones_like(own), state[1], DECAY)
    run = torch.minimum(torch.lerp(mean, state[0], DECAY) / weight, GROWTH * old)
    run = torch.where(is_first, first, run)
    if update:
        state.copy_(torch.where(enters, torch.stack([run * weight, weight]), state))
    factor = (own / run).sqrt().clamp(max=math.sqrt(LIMIT))
    factor = torch.where(enters & ~is_first, factor, 1.0).to(gradient.dtype)
    shares = torch.where(squares > limit, (limit / squares).sqrt(), 1.0).to(gradient.dtype)
    return Settled(_with_gradient(expansion, expansion.gradient * shares[:, None], kind), factor)


def _settles_on_host(expansion: Expansion) -> bool:
    gradient = expansion.gradient
    return (
        gradient.device.type == "cpu"
        and gradient.numel() > 0
        and not torch.compiler.is_compiling()
        and type(gradient) is Tensor
        and getattr(expansion.curvature, "mask", None) is None
        and not torch._C._are_functorch_transforms_active()
    )


def _fits_settling(expansion: Expansion, state: Tensor) -> bool:
    gradient = expansion.gradient
    return (
        HAS_TRITON
        and gradient.device.type == "cuda"
        and 0 < gradient.numel() <= MOST_NUMBERS
        and state.dtype == torch.float64
        and not torch.compiler.is_compiling()
        and getattr(expansion.curvature, "mask", None) is None
        and not torch._C._are_functorch_transforms_active()
    )


def _settled_on_host(expansion: Expansion, state: Tensor, update: bool) -> Settled | None:
    """The same where numbers may be looked at; `None` where a sample is beyond the limit or not finite."""
    gradient = expansion.gradient.detach()
    count, size = gradient.shape
    numbers = state.numpy()  # NumPy reads, writes and sums these few numbers in a tenth of the time
    total, weight = float(numbers[0]), float(numbers[1])
    if weight == 0:
        return None
    norms = torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64).numpy()
    mean, old = float(norms @ norms) / (count * size), total / weight
    is_small = float(norms.max()) ** 2 <= LIMIT * count * size * old  # what is not finite is not small
    if mean == 0 or not is_small or not math.isfinite(expansion.value.detach().numpy().sum()):
        return None
    weight = DECAY * weight + (1 - DECAY)
    run = min((DECAY * total + (1 - DECAY) * mean) / weight, GROWTH * old)
    if update:
        numbers[:] = run * weight, weight
    return Settled(expansion, math.sqrt(min(mean / run, LIMIT)))


def _with_gradient(expansion: Expansion, gradient: Tensor, kind: str) -> Expansion:
    """The expansion with other gradients, and with their curvature where it is made of them."""
    curvature = expansion.curvature
    if isinstance(curvature, OwnParts):
        curvature = replace(curvature, gradient=gradient)
    elif kind == "fisher" and isinstance(curvature, (FisherMatrix, FisherFactor)):
        curvature = empirical_fisher(gradient, curvature.kept, value=curvature.value)
    elif kind == "fisher" and isinstance(curvature, Exchangeable):
        curvature = exchangeable_fisher(gradient, finite(expansion), curvature.mask)
    elif kind == "fisher" and isinstance(curvature, Masked):
        curvature = masked_fisher(gradient, curvature.mask, finite(expansion))
    return Expansion(expansion.value, gradient, curvature)
