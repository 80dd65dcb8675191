"""The Newton step with the empirical Fisher, from the gradients alone: F is made, damped and solved with in one go.

    (F + λI)⁻¹gᵢ,   F = (1/N) Σ gᵢgᵢᵀ

Where N < m, F itself is never formed: (GᵀG + λI)⁻¹Gᵀ = Gᵀ(GGᵀ + λI)⁻¹, and nothing is subtracted, so that this stays
right where F is many orders of magnitude above λ. The system is divided by its own scale before it is solved, so
that no square leaves the range of numbers.

Three ways compute the same thing: one Triton kernel on CUDA for small systems, one in CUDA C for those of up to 147
unknowns (`_block_step.py`), and plain operators for everything else, transforms included. On a CPU most batches have no
bad sample, and go the short way of `_host.py`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._backends import HAS_TRITON
from .._tracing import sees_operators
from ._damping import AUTO, NormalizedDamping, RelativeDamping, Rule, RunningDamping
from ._expansion import FisherFactor, FisherMatrix, empirical_fisher
from ._forms import widened
from ._lists import ExchangeableFisher
from ._solve import definite_of, has_inverse

# How far λ may lie below the scale r of C until float32 is not enough for float32 gradients. With λ = factor·r the
# condition number of C + λI is at most 1 + √m/factor, unless C keeps negative eigenvalues.
LEAST_FACTOR = 0.1
# Unknowns that the kernel eliminates in its registers, those that it can iterate with, and numbers that each of its
# programs reads.
LARGEST_KERNEL = 64
LARGEST_ITERATION = 128
# The same for a stored matrix, of which an iteration of products takes the absolute value.
LARGEST_MATRIX = 32
MOST_NUMBERS = 2**17
# The kernel in blocks of threads: unknowns that it holds in their registers; the longer side of the gradients, all of
# which each of them multiplies, and by which there are more of them than multiprocessors; and the dtypes it is for.
LARGEST_BLOCK = 147
LONGEST_BLOCK = 896
BLOCK_TYPES = (torch.float32, torch.float64)
# Below this λ a step may leave the range of float32, sample by sample; that kernel leaves all out together.
LEAST_NUMBER = 1e-70


class Solved(NamedTuple):
    """The step of a batch, and what else one look at its gradients gives.

    - `rows` `(N, m)`: the steps in the dtype of the gradients, zero where not `kept`; with `mean` divided by `count`.
    - `kept` `(N,)` boolean, or `None` where all are.
    - `count`: the number of samples that are finite, at least 1.
    - `value`: the mean of the values that are finite, if it was made on the way.
    - `counted`: whether the samples that are not kept have been added to the `counter`.
    """

    rows: Tensor
    kept: Tensor | None
    count: Tensor | int  # type: ignore[assignment]
    value: Tensor | None = None
    counted: bool = False

    def times(self, unit: Tensor | float) -> "Solved":
        """With the rows multiplied by `unit`."""
        return self if isinstance(unit, (int, float)) and unit == 1 else self._replace(rows=self.rows * unit)


class _Plan(NamedTuple):
    """A damping: λ itself (a number, or in a tensor), or `factor` times F's scale, with a step in units of ρ or not."""

    number: float = 0.0
    tensor: Tensor | None = None
    factor: float = 0.0
    normalized: bool = False


def knows_damping(damping: Rule) -> bool:
    """Whether it is a number or a rule of this library; a rule of the user's own needs an expansion."""
    return _plan(damping) is not None


def can_solve(fisher: FisherMatrix | FisherFactor, gradient: Tensor, damping: Rule) -> bool:
    """Whether this is the Fisher of these gradients, and a damping that is known here."""
    return fisher.gradient is gradient and gradient.numel() > 0 and knows_damping(damping)


def fisher_step(
    gradient: Tensor,
    value: Tensor | None,
    damping: Rule,
    *,
    kept: Tensor | None = None,
    mean: bool = False,
    counter: Tensor | None = None,
    unit: Tensor | float = 1.0,
) -> Solved:
    """The step of each sample from `gradient`, `(N, m)`, which is not empty, times `unit`.

    A sample takes no part where its value or its gradient is not finite, or where it is not in `kept`. `counter` may
    be increased by the samples that are left out; the result tells whether it was.

    >>> fisher_step(torch.tensor([[2.0], [4.0]]), None, 1.0).rows  # F = 10
    tensor([[0.1818],
            [0.3636]])
    """
    if type(damping) is RunningDamping:
        damping = damping.in_batch(empirical_fisher(gradient), gradient)
    plan = _plan(damping)
    assert plan is not None
    is_plain = type(gradient) is Tensor and not torch._C._are_functorch_transforms_active()
    if (torch.compiler.is_compiling() or is_plain) and gradient.device.type == "cuda":
        if _fits_kernel(gradient, plan):
            return _by_kernel(gradient, value, plan, kept, mean, counter, unit=unit)
        found = _by_block(gradient, value, plan, kept, mean, counter, unit=unit)
        if found is not None:
            return found
    return _by_operators(gradient, value, plan, kept, mean).times(unit)


def default_fisher_step(gradient: Tensor, mean: bool) -> Tensor | None:
    """The rows of `fisher_step` with the default's rule, where one kernel makes them of CUDA tensors `(N, m)`.

    Python that asks less: in an eager loop each of its lines costs about as much as the kernel takes.
    """
    if type(gradient) is not Tensor or not gradient.is_cuda or gradient.dim() != 2 or gradient.dtype not in BLOCK_TYPES:
        return None
    count, size = gradient.shape
    plan = _Plan(factor=AUTO.factor * math.sqrt(max(1.0, size / max(1, count))), normalized=True)
    if gradient.numel() == 0 or torch._C._are_functorch_transforms_active() or not _fits_kernel(gradient, plan):
        return None
    from ._fisher_triton import launch_fisher

    return launch_fisher(gradient, None, None, 0.0, plan.factor, True, mean, None)[0]


def _plan(damping: Rule) -> _Plan | None:
    """What the damping comes to, or `None` for a rule of the user's own, which needs an expansion."""
    kind = type(damping)
    if kind is float or kind is int:
        return _Plan(number=float(damping))  # type: ignore[arg-type]
    if kind is NormalizedDamping or kind is RunningDamping:
        factor = damping.factor * damping.stretch  # type: ignore[union-attr]
        is_alone = damping.group is None and not isinstance(factor, Tensor)  # type: ignore[union-attr]
        return _Plan(factor=factor, normalized=True) if is_alone else None
    if kind is RelativeDamping:
        return _Plan(factor=damping.factor)  # type: ignore[union-attr]
    return _Plan(tensor=damping.detach().reshape(())) if isinstance(damping, Tensor) else None


def _by_operators(gradient: Tensor, value: Tensor | None, plan: _Plan, kept: Tensor | None, mean: bool) -> Solved:
    """With masks and without looking at a number: nothing waits for a device."""
    usable = torch.isfinite(gradient).all(1)
    if value is not None:
        usable = usable & torch.isfinite(value)
    if kept is not None:
        usable = usable & kept
    count = usable.sum().clamp(min=1)
    rows = widened(torch.where(usable[:, None], gradient.detach(), 0.0))
    scale = rows.abs().amax()
    number = rows.new_zeros(())
    if not plan.factor:
        number = number + (plan.number if plan.tensor is None else plan.tensor)
        number = torch.where((number > 0) & torch.isfinite(number), number, math.nan)
        scale = torch.maximum(scale, number.sqrt())
    scale = torch.where(scale > 0, scale, 1.0)
    rows = rows / scale
    few = gradient.shape[0] < gradient.shape[1]
    square = (rows @ rows.mT if few else rows.mT @ rows) / count
    length: Tensor = 1 / scale
    if plan.factor:
        spread = (square.square().sum() / gradient.shape[1]).sqrt()
        damping = plan.factor * spread
        if plan.normalized:
            damping = torch.where(spread == 0, 1.0, damping)
            unit = (square.diagonal().sum() / gradient.shape[1]).sqrt()
            length = torch.where(unit == 0, 1.0, damping / unit)
    else:
        damping = number / scale / scale
    square = square + torch.diag(damping.expand(len(square)))
    factor, failed = torch.linalg.cholesky_ex(square)
    is_solved = has_inverse(square, factor, failed) & (damping > 0)
    solved = torch.cholesky_solve(rows if few else rows.mT, factor)
    length = length / count if mean else length
    solved = torch.where(is_solved, (solved if few else solved.mT) * length, math.nan)
    solved = solved.to(gradient.dtype)
    usable = usable & torch.isfinite(solved).all(1)
    return Solved(torch.where(usable[:, None], solved, 0.0), usable, count)


def _fits_kernel(gradient: Tensor, plan: _Plan) -> bool:
    if not HAS_TRITON or gradient.device.type != "cuda" or gradient.numel() > MOST_NUMBERS:
        return False
    # An iteration needs a system that is well conditioned, as in float32.
    can_iterate = plan.normalized and plan.factor >= LEAST_FACTOR and gradient.dtype == torch.float32
    return min(gradient.shape) <= (LARGEST_ITERATION if can_iterate else LARGEST_KERNEL)


def matrix_step(
    matrix: Tensor,
    kind: str,
    gradient: Tensor,
    value: Tensor,
    damping: Rule,
    *,
    mean: bool = False,
    counter: Tensor | None = None,
    unit: Tensor | float = 1.0,
) -> Solved | None:
    """The step with a stored curvature as one kernel, where that can be; `kind` is "definite" or a spectrum."""
    plan = _plan(damping)
    if plan is None or gradient.device.type != "cuda" or matrix.device != gradient.device:
        return None
    if gradient.numel() == 0 or sees_operators():
        return None
    matrix = matrix.detach()
    if gradient.shape[1] > LARGEST_MATRIX:
        return _by_block(gradient, value, plan, None, mean, counter, matrix, kind, unit)
    if kind == "raw" or not HAS_TRITON or gradient.numel() > MOST_NUMBERS:
        return None
    return _by_kernel(gradient, value, plan, None, mean, counter, matrix, kind, unit)


def lists_step(
    curvature: ExchangeableFisher,
    gradient: Tensor,
    value: Tensor,
    damping: Rule,
    *,
    mean: bool = False,
    counter: Tensor | None = None,
    unit: Tensor | float = 1.0,
) -> Solved | None:
    """The step with the Fisher of lists as one kernel, where that can be."""
    plan = _plan(damping)
    if plan is None or not HAS_TRITON or gradient.device.type != "cuda" or type(gradient) is not Tensor:
        return None
    is_own = curvature.gradient is gradient and curvature.kept is None
    if not is_own or not 0 < gradient.numel() <= MOST_NUMBERS or torch._C._are_functorch_transforms_active():
        return None
    from ._lists_triton import launch_lists

    tensor, in_kernel = _on_device_of(gradient, plan.tensor), unit if isinstance(unit, Tensor) else None
    given = (gradient.detach(), value.detach(), curvature.mask, tensor, plan.number, plan.factor, plan.normalized)
    found = _as_solved(launch_lists(*given, mean, counter, in_kernel), True, counter)
    return found if in_kernel is not None else found.times(unit)


def _by_block(
    gradient: Tensor,
    value: Tensor | None,
    plan: _Plan,
    kept: Tensor | None,
    mean: bool,
    counter: Tensor | None,
    matrix: Tensor | None = None,
    kind: str = "definite",
    unit: Tensor | float = 1.0,
) -> Solved | None:
    """By the kernel for systems of middle size, or `None` where it does not serve."""
    unknowns = min(gradient.shape) if matrix is None else gradient.shape[1]
    if not _fits_block(gradient, value, unknowns):
        return None
    if matrix is None and plan.tensor is None and not plan.factor and plan.number < LEAST_NUMBER:
        return None
    if kind == "clip" and plan.factor:  # relative to eigenvalues that are gone then
        return None
    if torch.compiler.is_compiling():
        return _by_kernel(gradient, value, plan, kept, mean, counter, unit=unit)
    from ._block_step import block_kernels, launch_block

    kernels = block_kernels(gradient, unknowns)
    if kernels is None:
        return None
    if matrix is not None and kind in ("absolute", "clip"):
        matrix = definite_of(matrix.double(), kind)
    tensor, value = _on_device_of(gradient, plan.tensor), None if value is None else value.detach()
    given = (gradient.detach(), value, kept, tensor, plan.number, plan.factor, plan.normalized, mean, counter)
    in_kernel, unit = (unit, 1.0) if isinstance(unit, Tensor) else (None, unit)
    launched = launch_block(kernels, *given, matrix, kind == "raw", in_kernel)
    return _as_solved(launched, value is not None, counter).times(unit)


def _fits_block(gradient: Tensor, value: Tensor | None, unknowns: int) -> bool:
    """Whether it is for such tensors; not yet, whether the GPU can run it."""
    is_cuda = gradient.device.type == "cuda" and torch.version.cuda is not None
    has_types = gradient.dtype in BLOCK_TYPES and (value is None or value.dtype == gradient.dtype)
    return is_cuda and has_types and unknowns <= LARGEST_BLOCK and max(gradient.shape) <= LONGEST_BLOCK


def _on_device_of(gradient: Tensor, damping: Tensor | None) -> Tensor | None:
    if damping is None or damping.device == gradient.device:
        return damping
    # One number from the host, which becomes an argument of a kernel; a copy could not be captured.
    return damping + gradient.new_zeros((), dtype=torch.float64)


def new_results(gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a kernel writes for contiguous gradients: rows, kept, and (count, mean value) in their dtype."""
    used = torch.empty(len(gradient), dtype=torch.bool, device=gradient.device)
    return torch.empty_like(gradient), used, torch.empty(2, dtype=gradient.dtype, device=gradient.device)


def _as_solved(launched: tuple[Tensor, Tensor, Tensor], has_value: bool, counter: Tensor | None) -> Solved:
    rows, used, numbers = launched
    count, mean_value = numbers.unbind()
    return Solved(rows, used, count, mean_value if has_value else None, counted=counter is not None)


def _by_kernel(
    gradient: Tensor,
    value: Tensor | None,
    plan: _Plan,
    kept: Tensor | None,
    mean: bool,
    counter: Tensor | None,
    matrix: Tensor | None = None,
    kind: str = "definite",
    unit: Tensor | float = 1.0,
) -> Solved:
    tensor = _on_device_of(gradient, plan.tensor)
    value = None if value is None else value.detach()
    gradient = gradient.detach()
    if kept is not None:  # not in the kernel: triton's products of float64 do not bear a mask of bytes beside them
        gradient = torch.where(kept[:, None], gradient, math.nan)
    given = (gradient, value, tensor, plan.number, plan.factor, plan.normalized, mean)
    if torch.compiler.is_compiling():  # it needs the operator, which without one would only be a detour
        launched = fisher_kernel(*given)
        counter = None
    else:
        from ._fisher_triton import launch_fisher

        in_kernel, unit = (unit, 1.0) if isinstance(unit, Tensor) else (None, unit)
        launched = launch_fisher(*given, counter, matrix, kind, in_kernel)
    return _as_solved(launched, value is not None, counter).times(unit)


@torch.library.custom_op("newton_losses::fisher_kernel", mutates_args=())
def fisher_kernel(
    gradient: Tensor,
    value: Tensor | None,
    damping: Tensor | None,
    number: float,
    factor: float,
    normalized: bool,
    mean: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`fisher_step` as one kernel: rows, kept, and (count, mean value) in the dtype of the gradients."""
    plan = _Plan(number, damping, factor, normalized)
    if not gradient.is_cuda or _fits_kernel(gradient, plan):  # on a CPU only Triton's interpreter comes here
        from ._fisher_triton import launch_fisher

        return launch_fisher(gradient, value, damping, number, factor, normalized, mean, None)
    from ._block_step import block_kernels, launch_block

    kernels = block_kernels(gradient, min(gradient.shape))
    if kernels is not None:
        return launch_block(kernels, gradient, value, None, damping, number, factor, normalized, mean, None)
    found = _by_operators(gradient, value, plan, None, mean)
    assert found.kept is not None
    value = gradient.new_zeros(1) if value is None else torch.where(torch.isfinite(value), value, math.nan)
    numbers = torch.stack([torch.as_tensor(found.count).to(gradient.dtype), value.nanmean().to(gradient.dtype)])
    return found.rows, found.kept, numbers


@fisher_kernel.register_fake
def _(
    gradient: Tensor,
    value: Tensor | None,
    damping: Tensor | None,
    number: float,
    factor: float,
    normalized: bool,
    mean: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    used = gradient.new_empty(len(gradient), dtype=torch.bool)
    return gradient.new_empty(gradient.shape), used, gradient.new_empty(2)
