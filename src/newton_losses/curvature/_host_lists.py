"""The Newton step of lists on a CPU; `_host.py` says for which batches.

Where the order of a list has no meaning, its curvature has two eigenvalues. Otherwise, where outputs are missing, one
factorisation serves padded lists of all lengths, and any other masks have one small system for each set of outputs that
exist. What is computed is `_solve_masked` of `_solve.py`, in the unit of the run.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._forms import Masked
from ._host import EPSILON, LARGEST_IN_NUMPY, SAFE, energy_of, length_in_unit
from ._lists import MaskedFisher
from ._loss_contract import one_thread

# Of a definite matrix that is singular: what λ is at least, in units of the eigenvalues' root mean square. The inverse
# loses the square of the condition number, and the factors of Cholesky, elsewhere, lose it once.
LEAST_SHARE = 1e-6
# Entries of all samples' matrices together.
MOST_CELLS = 2**22


def solved_lists(
    rows: Any, mask: Any, rule: tuple[float, float, bool], mean: bool, state: Tensor | None, update: bool
) -> Any:
    """The steps with the Fisher of lists, which has two eigenvalues: one for a list's mean, one for what differs."""
    factor, number, is_normalized = rule
    energy = energy_of(rows)
    count, size = rows.shape
    lengths = np.full(count, size) if mask is None else mask.sum(1)
    items, lists = int(lengths.sum()), int((lengths > 0).sum())
    if not SAFE[0] < energy < SAFE[1] or items == 0:
        return None
    sums = rows.sum(1)
    means = sums / np.maximum(lengths, 1)
    shared = float(np.einsum("i,i", sums, means))  # as in `energy_of`
    among, common = max(0.0, energy - shared) / max(1, items - lists), shared / lists
    spread = math.sqrt(((items - lists) * among**2 + lists * common**2) / items)
    number = factor * spread if factor else number
    if not SAFE[0] < number < SAFE[1]:
        return None
    length = length_in_unit(number, energy / items, state, update) if is_normalized else 1.0
    if length is None:
        return None
    length = length / count if mean else length
    # Of one item nothing is left beside the mean, however small λ is: the mean is taken out first.
    steps = (rows - means[:, None]) * (length / (among + number))
    steps += (means * (length / (common + number)))[:, None]
    if mask is not None:
        steps *= mask
    return steps


def masked_rows(
    curvature: Masked,
    gradient: Tensor,
    rule: tuple[float, float, bool],
    kind: str,
    mean: bool,
    state: Tensor | None,
    update: bool,
) -> Tensor | None:
    """The steps, if all gradients are finite and the numbers far from the ends of their range.

    Negative eigenvalues, of which a "definite" one has none, count as zero ("clip") or without their sign ("absolute").
    """
    factor, number, is_normalized = rule
    count, size = gradient.shape
    mask = curvature.mask.numpy()
    is_padded = not (mask[:, 1:] & ~mask[:, :-1]).any()  # the first outputs of each sample exist
    has_room = size**3 <= LARGEST_IN_NUMPY and count * size**2 <= MOST_CELLS
    if kind == "raw" or not (is_padded or has_room):
        return None
    with one_thread(gradient, gradient.numel()):
        rows, exists, matrix, pairs = _matrices(curvature, gradient)
        energy, items = energy_of(rows), float(exists.sum())
        if not SAFE[0] < energy < SAFE[1]:
            return None
        if matrix is None:
            pairs = exists.T @ exists
            scaled = rows / pairs.diagonal().clip(1) ** 0.5
            matrix = scaled.T @ scaled
        spread = math.sqrt(float((matrix * matrix * pairs).sum()) / max(1.0, float(pairs.trace())))
        number = factor * spread if factor else number
        if not SAFE[0] < number < SAFE[1] or (kind == "definite" and number < LEAST_SHARE * spread):
            return None
        steps = _steps_of_padded(rows, exists, matrix, number, kind) if is_padded else None
        if steps is None and not has_room:
            return None
        length = length_in_unit(number, energy / items, state, update) if is_normalized else 1.0
        if length is None:
            return None
        if steps is None:
            steps = _steps_of_each(rows, mask, matrix, number, kind)
        steps = torch.as_tensor(steps * (length / count if mean else length))
    return torch.where(curvature.mask, steps, 0.0).to(gradient.dtype)


def _matrices(curvature: Masked, gradient: Tensor) -> tuple[Any, Any, Any, Any]:
    """The gradients, which outputs exist, and the matrix and its pairs where it was not made of these gradients.

    In float64, and in NumPy where products of them are small.
    """
    found: list[Any] = [gradient.double(), curvature.mask.double()]
    if type(curvature) is not MaskedFisher:  # which is of samples all of which are finite
        found += [curvature.matrix.detach().double(), curvature.pairs.double()]
    if gradient.numel() * gradient.shape[1] <= LARGEST_IN_NUMPY:
        found = [one.numpy() for one in found]
    return (*found, None, None)[:4]


def _steps_of_padded(rows: Any, exists: Any, matrix: Any, damping: float, kind: str) -> Any:
    """(Cᵢ + λI)⁻¹gᵢ where sample i has its first kᵢ outputs, as padded lists do: one factorisation serves all lengths.

    The first k rows and columns of C + λI = LLᵀ have those of L as their factor, so that every Cᵢ is solved with by
    L⁻ᵀ·(mask · L⁻¹gᵢ). `None` where an eigenvalue of C is negative, by more than rounding beside λ.
    """
    library: Any = torch if isinstance(matrix, Tensor) else np
    unit = library.eye(len(matrix), dtype=library.float64)
    try:
        if kind != "definite":
            library.linalg.cholesky(matrix + damping * EPSILON[8] * unit)
        inverse = library.linalg.inv(library.linalg.cholesky(matrix + damping * unit))
    except (np.linalg.LinAlgError, torch.linalg.LinAlgError):
        return None
    return (exists * (rows @ inverse.T)) @ inverse


def _steps_of_each(rows: Any, mask: Any, matrix: Any, damping: float, kind: str) -> Tensor:
    """The same for any masks: one system for each set of outputs."""
    packed = np.ascontiguousarray(np.packbits(mask, axis=1))
    keys = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    own = torch.from_numpy(mask[first])
    parts = torch.where(own[:, :, None] & own[:, None, :], torch.as_tensor(matrix), 0.0)
    inverses = _inverses(parts, damping, kind)
    steps: Tensor = (inverses[torch.from_numpy(which)] @ torch.as_tensor(rows)[:, :, None])[:, :, 0]
    return steps


def _inverses(matrices: Tensor, damping: float, kind: str) -> Tensor:
    """(C + λI)⁻¹ of each, `(K, m, m)`, of C's eigenvalues as `kind` says.

    Most have no negative one by more than rounding beside λ, which takes a third of the time to see.
    """
    unit = torch.eye(matrices.shape[-1], dtype=matrices.dtype)
    inverses: Tensor = torch.linalg.inv_ex(matrices + damping * unit)[0]
    if kind == "definite":
        return inverses
    failed = torch.linalg.cholesky_ex(matrices + damping * EPSILON[8] * unit)[1] != 0
    if bool(failed.any()):
        values, vectors = torch.linalg.eigh(matrices[failed])
        values = values.abs() if kind == "absolute" else values.clamp(min=0)
        inverses[failed] = (vectors / (values + damping)[:, None, :]) @ vectors.mT
    return inverses
