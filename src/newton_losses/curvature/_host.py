"""The Newton step on a CPU, where results may be looked at: a few calls of NumPy in place of many operators of torch.

    length · (C + λI)⁻¹gᵢ

For the empirical Fisher, its samples' own parts and stored matrices, if everything in the batch is finite and far from
the ends of the range of numbers. Otherwise there is no result, and `_running.py`, `_fisher.py`, `_sample.py` and
`_step.py`, whose operators have masks and scales, take its place.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._damping import AUTO, NormalizedDamping, RelativeDamping, Rule, RunningDamping
from ._expansion import FisherFactor, FisherMatrix
from ._fisher import LEAST_FACTOR, Solved
from ._forms import Dense, Masked, OwnParts
from ._lists import ExchangeableFisher, MaskedFisher
from ._loss_contract import full_precision, one_thread
from ._options import Spectrum

try:  # without the front of `np.linalg.inv`, which takes as long as the inverse of a small matrix
    from numpy.linalg import _umath_linalg

    _invert: Any = _umath_linalg.inv
except (ImportError, AttributeError):
    _invert = np.linalg.inv

# Within these bounds squares of gradients, λ and steps are far from the ends of float32.
SAFE = (1e-25, 1e25)
# The same in float32, where their squares must be in range, too.
SAFE_SQUARES = (1e-15, 1e15)
# Of a definite matrix: what λ is at least, in units of the eigenvalues' root mean square. Below, rounding decides
# whether there is a solution, and a factorisation that can fail has to say so.
LEAST_DAMPING = 1e-12
# Multiplications in a product of matrices up to which NumPy's library keeps to one thread, whatever torch's number of
# threads is. What is larger goes through the same lines in torch.
LARGEST_IN_NUMPY = 2**18
# Numbers whose squares NumPy's library adds up on one thread.
LARGEST_PRODUCT = 2**13
# The rounding of numbers with so many bytes.
EPSILON = {4: 2.0**-23, 8: 2.0**-52}
# Unknowns up to which the rows are multiplied by the inverse of a stored matrix, instead of solving for each.
LARGEST_INVERSE = 256

# Of the running unit: how slowly it changes.
DECAY = 0.999
# Neither a sample nor a whole batch counts for more than this many times the usual energy of a batch, N·m·ρ².
LIMIT = 10.0
# No batch makes ρ² more than this many times larger. Samples enter it as they are: with those that are large left out,
# it would fall with what the others still have to learn, and a rare class would count for less and less.
GROWTH = 2.0


def host_step(
    curvature: Any,
    gradient: Tensor,
    value: Tensor | None,
    damping: Rule,
    spectrum: Spectrum | None = None,
    *,
    mean: bool = False,
    state: Tensor | None = None,
    update: bool = False,
) -> Solved | None:
    """The step of each sample, with `mean` divided by N; `None` where it cannot be computed here.

    With the `state` of a run, a normalised step is in its unit, and with `update` the batch enters it. Not for
    compilers.
    """
    form = type(curvature)
    is_fisher = form is FisherMatrix or form is FisherFactor or form is ExchangeableFisher
    is_masked = form is Masked or form is MaskedFisher
    if not (is_fisher or is_masked or form in (Dense, OwnParts)) or not may_look(gradient):
        return None
    rule = factor_or_number(damping, curvature, gradient)
    if rule is None:
        return None
    count, size = gradient.shape
    least, given = min(count, size), None
    if is_fisher:
        if curvature.gradient is not gradient or not (curvature.kept is None or bool(curvature.kept.all())):
            return None
    elif form is OwnParts:
        if not _is_of_all_samples(curvature, gradient):
            return None
    elif form is MaskedFisher:
        if curvature.gradient is not gradient or value is None or value.data_ptr() != curvature.value.data_ptr():
            return None
    elif form is Dense:
        if size > LARGEST_INVERSE or type(curvature.matrix) is not Tensor:
            return None
        least, given = size, curvature.matrix
    mean_value = None if value is None else value.detach().mean()
    if mean_value is not None and not math.isfinite(mean_value.item()):
        return None
    rows, options = gradient.detach(), (mean, state, update)
    kind = "definite" if getattr(curvature, "semidefinite", True) else spectrum or ("absolute" if rule[2] else "raw")
    if form is ExchangeableFisher:
        from ._host_lists import solved_lists  # which takes from this file

        mask = None if curvature.mask is None else curvature.mask.numpy()
        found = solved_lists(rows.numpy().astype(np.float64), mask, rule, *options)
        found = None if found is None else torch.from_numpy(found)
    elif form is OwnParts:
        found = solved_samples(rows, rule, *options, curvature.mask)
    elif is_masked:
        from ._host_lists import masked_rows

        found = masked_rows(curvature, rows, rule, kind, *options)
    else:
        in_numpy = least * least * max(count, size) <= LARGEST_IN_NUMPY
        is_exact = in_numpy or torch.get_float32_matmul_precision() == "highest"
        if kind == "raw" or 0 < rule[0] < LEAST_FACTOR or not is_exact:
            rows = rows.double()
        if given is not None:
            given = given.detach().to(rows.dtype, copy=True)  # which changes on the way
        if in_numpy:
            found = solved(rows.numpy(), None if given is None else given.numpy(), rule, kind, *options)
            found = None if found is None else torch.from_numpy(found)
        else:
            with one_thread(gradient, max(gradient.numel(), least * least)), full_precision(gradient):
                found = solved(rows, given, rule, kind, *options)
    if found is None:
        return None
    steps = found if found.dtype is gradient.dtype else found.to(gradient.dtype)
    return Solved(steps, None, count, mean_value, counted=True)


def host_fisher(
    gradient: Tensor,
    mean: bool,
    rule: float | RunningDamping = AUTO,
    state: Tensor | None = None,
    update: bool = False,
) -> Tensor | None:
    """`host_step` with the Fisher of a few float32 gradients `(N, m)`, for a λ or the default's rule: the steps alone.

    These are the lines of `solved` for that case, and change with them. Kept short: one that Python has not run for a
    while costs as much as a NumPy operation on a small batch.

    >>> host_fisher(torch.tensor([[2.0]]), mean=False)  # F = λ = 4 and ρ = 2, the batch's own
    tensor([[0.5000]])
    """
    rows = gradient.numpy()
    count, size = rows.shape
    few = count < size
    energy = float(np.vdot(rows, rows))
    low, high = SAFE_SQUARES
    if not low < energy < high:
        return None
    matrix = rows.dot(rows.T) if few else rows.T.dot(rows)  # N·F, or of the same eigenvalues
    spread = math.sqrt(float(np.vdot(matrix, matrix)) / size)
    if type(rule) is float:
        factor, number = 0.0, count * rule
    else:
        factor = rule.factor * math.sqrt(size / count) if few else rule.factor  # type: ignore[union-attr]
        number = factor * spread
    if not (LEAST_FACTOR * spread <= number < high and spread < high):
        numbers = factor, number / count, factor > 0
        found = solved(rows.astype(np.float64), None, numbers, "definite", mean, state, update)
        return None if found is None else torch.from_numpy(found.astype(np.float32))
    diagonal = matrix.ravel()[:: len(matrix) + 1]
    diagonal += number
    inverse = _invert(matrix)
    length: float = count
    if factor:
        square = energy / (count * size)
        unit = square if state is None else taken_in(state, square, update)
        if unit is None:
            return None
        length = number / math.sqrt(unit)
    inverse *= length / count if mean else length
    if len(inverse) == 1:  # of a long vector, a product of matrices wakes other threads
        return torch.from_numpy(rows * inverse)
    return torch.from_numpy(inverse.dot(rows) if few else rows.dot(inverse))


def solved(
    rows: Any,
    given: Any,
    rule: tuple[float, float, bool],
    kind: str,
    mean: bool,
    state: Tensor | None,
    update: bool,
) -> Any:
    """The steps with a matrix that is `given`, or with the rows' Fisher. The same lines serve NumPy and torch."""
    factor, number, is_normalized = rule
    count, size = rows.shape
    few, weight, matrix = False, 1, given
    energy = energy_of(rows)
    low, high = SAFE if rows.dtype.itemsize == 8 else SAFE_SQUARES
    if not low < energy < high:  # NumPy warns of an overflow, so nothing that it multiplies may be large
        return None
    if matrix is None:
        few, weight = count < size, count
        matrix = rows @ rows.T if few else rows.T @ rows  # N·F, or of the same eigenvalues
    spread = math.sqrt(energy_of(matrix) / size)
    number = factor * spread if factor else weight * number
    if not (SAFE[0] < number < SAFE[1] and spread < high):
        return None
    if number < LEAST_FACTOR * spread and rows.dtype.itemsize < 8:
        return solved(_doubled(rows), _doubled(given), rule, kind, mean, state, update)
    inverse = _inverse(matrix, number, spread, kind)
    # A matrix that is not definite can be close to a singular one.
    if inverse is None or (kind == "raw" and not float(abs(inverse).max()) * math.sqrt(energy) < SAFE[1]):
        return None
    length: float = weight
    if is_normalized:
        square = energy / (count * size)
        unit = square if state is None else taken_in(state, square, update)
        if unit is None:
            return None
        length = number / math.sqrt(unit)
    inverse *= length / count if mean else length
    if len(inverse) == 1:
        return rows * inverse
    return inverse @ rows if few else rows @ inverse


def _doubled(numbers: Any) -> Any:
    """A copy in float64, if there are any."""
    if numbers is None:
        return None
    return numbers.to(torch.float64, copy=True) if isinstance(numbers, Tensor) else numbers.astype(np.float64)


def solved_samples(
    gradient: Tensor,
    rule: tuple[float, float, bool],
    mean: bool,
    state: Tensor | None,
    update: bool,
    mask: Tensor | None = None,
) -> Tensor | None:
    """The steps with each sample's own part of the Fisher, length · gᵢ/(λ + ‖gᵢ‖²/N): nothing is solved.

    Where outputs do not exist, N is the number of samples that have any, and m how many they have on average.
    """
    factor, number, is_normalized = rule
    count, outputs = len(gradient), gradient.numel()
    divisor = count if mean else 1
    if mask is not None:
        exists = mask.numpy()
        count, outputs = max(1, int(exists.any(1).sum())), int(exists.sum())
    rows = gradient.numpy()
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    energy = float(np.add.reduce(squares))  # here and in `energy_of`, nothing warns of an overflow
    low, high = SAFE
    if not low < energy < high:
        return None
    total = count * number  # N·λ
    if factor:
        total = factor * math.sqrt(energy_of(squares) * count / outputs)
    if not low < total / count < high:
        return None
    length = length_in_unit(total / count, energy / outputs, state, update) if is_normalized else 1.0
    if length is None:
        return None
    squares += total
    factors = np.divide(length * count / divisor, squares).astype(rows.dtype)[:, None]
    if gradient.numel() <= LARGEST_IN_NUMPY:
        return torch.from_numpy(rows * factors)
    return gradient * torch.from_numpy(factors)


def _is_of_all_samples(parts: OwnParts, gradient: Tensor) -> bool:
    """Whether these are the parts of this gradient's samples, all of them finite, in one process."""
    if parts.gradient is not gradient or parts.sums is not None:
        return False
    if gradient.dtype.itemsize < 4:
        return False
    return parts.value is None or math.isfinite(parts.value.sum().item())


def energy_of(rows: Any) -> float:
    """The sum of squares, infinite where it is too large: neither of these two functions warns of an overflow.

    Of more than 10 000 numbers NumPy's own product of vectors wakes other threads, which takes 10 ms. And `einsum` adds
    them up one behind the other, in which float32 would lose digits; but it takes three times as long for few.
    """
    if isinstance(rows, Tensor):
        return float(rows.reshape(-1).dot(rows.reshape(-1)))
    flat = rows.ravel()
    if len(flat) <= LARGEST_PRODUCT:
        return float(np.vdot(flat, flat))
    return float(np.einsum("i,i", flat, flat, dtype=np.float64))


def _inverse(matrix: Any, damping: float, spread: float, kind: str) -> Any:
    """(C + λI)⁻¹ with C's eigenvalues as `kind` says, or `None` where there is none; `matrix` may be changed."""
    linalg: Any = torch.linalg if isinstance(matrix, Tensor) else np.linalg
    if (kind == "absolute" or kind == "clip") and not _is_semidefinite(matrix, damping):
        values, vectors = linalg.eigh(matrix)
        values = abs(values) if kind == "absolute" else values.clip(0)
        return (vectors / (values + damping)) @ vectors.T
    _diagonal(matrix)[:] += damping
    if kind == "definite" and damping < LEAST_DAMPING * spread:
        return None
    if kind == "definite" and linalg is torch.linalg:  # in half of the time
        factor, failed = torch.linalg.cholesky_ex(matrix)
        return None if int(failed) else torch.cholesky_inverse(factor)
    try:
        # One without a negative eigenvalue is definite now, and needs none of the questions that the front asks.
        return _invert(matrix) if linalg is np.linalg and kind in ("absolute", "clip") else linalg.inv(matrix)
    except (np.linalg.LinAlgError, torch.linalg.LinAlgError):
        return None


def _diagonal(matrix: Any) -> Any:
    """To write to, in whichever order the matrix is stored."""
    return matrix.diagonal() if isinstance(matrix, Tensor) else np.einsum("ii->i", matrix)


def _is_semidefinite(matrix: Any, damping: float) -> bool:
    """Whether no eigenvalue is negative by more than rounding beside λ: a quarter of the time that they all take."""
    wide = _doubled(matrix)
    _diagonal(wide)[:] += damping * EPSILON[matrix.dtype.itemsize]
    if isinstance(matrix, Tensor):
        return int(torch.linalg.cholesky_ex(wide)[1]) == 0
    try:
        np.linalg.cholesky(wide)
    except np.linalg.LinAlgError:
        return False
    return True


def may_look(gradient: Tensor) -> bool:
    """Whether these are numbers on a CPU, which costs nothing to read. (Outside of compilers; ask those first.)"""
    return (
        type(gradient) is Tensor
        and gradient.is_cpu
        and gradient.numel() > 0
        and not torch._C._are_functorch_transforms_active()
    )


def suits_numpy(gradient: Tensor) -> bool:
    """Whether these are a few float32 numbers `(N, m)` on a CPU, as `host_fisher` takes them."""
    if gradient.dtype is not torch.float32 or gradient.dim() != 2 or not may_look(gradient):
        return False
    count, size = gradient.shape
    return count * size * min(count, size) <= LARGEST_IN_NUMPY


def factor_or_number(damping: Rule, curvature: Any, gradient: Tensor) -> tuple[float, float, bool] | None:
    """λ in units of C's scale or as a number, and whether the step is normalised; `None` for a user's own rule."""
    kind: Any = type(damping)
    rule: Any = damping
    if kind is RunningDamping and rule.group is None:
        return rule.factor * _stretch(rule, curvature, gradient), 0.0, True
    if kind is float or kind is int:
        return 0.0, rule, False
    if kind is NormalizedDamping and rule.group is None:
        return rule.factor * float(rule.stretch), 0.0, True
    if kind is RelativeDamping:
        return rule.factor, 0.0, False
    return (0.0, float(rule), False) if isinstance(rule, Tensor) else None


def _stretch(rule: RunningDamping, curvature: Any, gradient: Tensor) -> float:
    """`rule.stretch_in`; with a mask, of samples all of which are finite, without an operator of torch."""
    form, mask = type(curvature), getattr(curvature, "mask", None)
    if mask is not None and (form is MaskedFisher or (form is OwnParts and curvature.sums is None)):
        exists = mask.numpy()
        samples = max(1, int(exists.sum(0).max() if form is MaskedFisher else exists.any(1).sum()))
        size = max(1.0, int(exists.sum()) / samples)
        return math.sqrt(size / min(samples, size))
    # Of a Hessian, λ is the one of the batch alone.
    return float(rule.stretch_in(curvature, gradient)) if getattr(curvature, "semidefinite", True) else 1.0


def length_in_unit(number: float, square: float, state: Tensor | None, update: bool) -> float | None:
    """λ/ρ, by which a normalised step is multiplied; `None` where `taken_in` has no unit."""
    unit = square if state is None else taken_in(state, square, update)
    return None if unit is None else number / math.sqrt(unit)


def taken_in(state: Tensor, mean: float, update: bool) -> float | None:
    """ρ² of the run with a batch of this mean square in it; `None` for the first batch, and for one beyond the limit.

    Where a whole batch is within the limit, so is each of its samples.
    """
    numbers = state.numpy()
    total, weight = numbers.tolist()
    if weight == 0 or not 0 < mean <= LIMIT * total / weight:
        return None
    most = GROWTH * total / weight
    weight = DECAY * weight + (1 - DECAY)
    square: float = min((DECAY * total + (1 - DECAY) * mean) / weight, most)
    if update:
        numbers[0], numbers[1] = square * weight, weight  # a slice would first make an array of them
    return square
