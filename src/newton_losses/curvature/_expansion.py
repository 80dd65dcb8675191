"""What an expansion of a loss is, and `expand`, which makes one of any loss.

Values, per-sample gradients and one curvature for the batch: the mean Hessian, or the empirical Fisher in whichever
form is smaller, both of which are here. The derivatives themselves are in `_derivatives.py`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from .._arguments import bound_targets, check_mask, name_of
from ..errors import ArgumentError, ShapeError
from ._derivatives import (
    Derivatives,
    SecondProduct,
    first_order,
    has_tape,
    is_finite,
    is_finite_twice,
    mean_hessian,
    second_products,
)
from ._forms import Curvature, Dense, Exchangeable, LowRank, OwnParts, Products, widened
from ._lists import (
    brought_sums,
    exchangeable_curvature,
    exchangeable_fisher,
    list_derivatives,
    list_fisher,
)
from ._loss_contract import (
    Loss,
    flatten_outputs,
    full_precision,
    make_total,
    outside_inference_mode,
)
from ._options import Reduction, check_is_loss, resolve_reduction
from ._passes import Footprint, footprint, products_at_once

CurvatureKind = Literal["hessian", "fisher", "sample"]
# What a loss that brings its own expansion is asked for: the parts of single samples are made from its gradients.
OwnKind = Literal["hessian", "fisher"]


@dataclass(frozen=True)
class Expansion:
    """The second-order Taylor expansion of a batch of losses at the outputs ȳ.

    With N samples of m outputs each and ℓᵢ the loss of sample i:

    - `value` is `(N,)`: ℓᵢ(ȳᵢ).
    - `gradient` is `(N, m)`: ∇ℓᵢ(ȳᵢ), of the sample's own loss, without any factor 1/N.
    - `curvature` is one curvature for the batch, with the factor 1/N: the mean Hessian
      (1/N) Σ ∇²ℓᵢ(ȳᵢ), the empirical Fisher (1/N) Σ ∇ℓᵢ ∇ℓᵢᵀ or each sample's own part of it. One of the
      forms in `newton_losses.curvature`: `Dense` is stored, others (`LowRank`, `Products`, `OwnParts`) stand for a
      matrix without storing it; all have `dense()` and `product(vectors)`. An `(m, m)` tensor that is given becomes
      `Dense`. `None` where it was not asked for.
    """

    value: Tensor
    gradient: Tensor
    curvature: Curvature | None = None

    if TYPE_CHECKING:  # what may be given, beside what is kept

        def __init__(self, value: Tensor, gradient: Tensor, curvature: Tensor | Curvature | None = None) -> None: ...

    def __post_init__(self) -> None:
        given: Any = self.curvature
        if isinstance(given, Tensor):
            object.__setattr__(self, "curvature", Dense(given))


@runtime_checkable
class Expandable(Protocol):
    """A loss that brings its own expansion. This one method is the whole plug-in protocol."""

    def expand(self, y: Tensor, *targets: Any, curvature: OwnKind | None) -> Expansion: ...


# The Fisher's forms count as the stored and the low-rank one, and are neither made from their fields nor changed by
# `replace`: nothing is computed before it is used. A compiler would want all fields of a dataclass at once.
if TYPE_CHECKING:
    _DenseForm = Dense
    _LowRankForm = LowRank
else:
    _DenseForm = object
    _LowRankForm = object


class _Fisher:
    """The mean of gᵢgᵢᵀ. Nothing is computed before it is used, and a step may do without.

    Of samples that are not `kept`, or whose `value` or gradient is not finite, nothing enters; without both, all do.
    """

    semidefinite = True

    def __init__(self, gradient: Tensor, kept: Tensor | None = None, value: Tensor | None = None) -> None:
        self.gradient, self.kept, self.value = gradient, kept, value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.gradient!r}, {self.kept!r})"


class FisherMatrix(_Fisher, _DenseForm):
    """A `Dense` curvature, from N ≥ m gradients."""

    count = None

    @property
    def matrix(self) -> Tensor:
        rows, count = _wide_rows(self)
        return rows.mT @ rows / count

    dense, product, mean_square = Dense.dense, Dense.product, Dense.mean_square


class FisherFactor(_Fisher, _LowRankForm):
    """A `LowRank` curvature, from N < m gradients: the matrix is never made."""

    first = 0

    @property
    def scale(self) -> Tensor:
        rows, count = _wide_rows(self)
        return torch.as_tensor(count, dtype=rows.dtype, device=rows.device).sqrt()

    @property
    def factor(self) -> Tensor:
        return _wide_rows(self)[0] / self.scale

    dense, product, mean_square = LowRank.dense, LowRank.product, LowRank.mean_square


Dense.register(FisherMatrix)
LowRank.register(FisherFactor)


def _wide_rows(fisher: _Fisher) -> tuple[Tensor, Tensor | int]:
    """The gradients in float64, zero where not kept, and the number of those that are."""
    gradient, kept = fisher.gradient, fisher.kept
    if fisher.value is not None:
        finite = torch.isfinite(fisher.value) & torch.isfinite(gradient).all(1)
        kept = finite if kept is None else kept & finite
    if kept is None:
        return widened(gradient), len(gradient)
    return widened(torch.where(kept[:, None], gradient, 0.0)), kept.sum().clamp(min=1)


def empirical_fisher(
    gradient: Tensor, kept: Tensor | None = None, *, value: Tensor | None = None
) -> FisherMatrix | FisherFactor:
    """The mean of gᵢgᵢᵀ over the kept samples of `gradient`, `(N, m)`.

    Where N < m it is never formed: the scaled gradients are its factor. `kept` is `(N,)` boolean;
    without it, all samples are. With the values `(N,)` of the losses, samples without a finite value and gradient are
    left out as well. Nothing is computed before the matrix or its factor is used.

    >>> empirical_fisher(torch.tensor([[1.0, 0.0], [1.0, 2.0]])).dense()
    tensor([[1., 1.],
            [1., 2.]], dtype=torch.float64)
    """
    form = FisherFactor if gradient.shape[0] < gradient.shape[1] else FisherMatrix
    return form(gradient, kept, value)


KINDS = ("hessian", "fisher", "sample", None)

# The dense Hessian is averaged from N·m² second derivatives; above this many (256 MiB in float32)
# products take its place.
DENSE_ELEMENTS = 2**26


@outside_inference_mode
def expand(
    loss: Loss | Expandable,
    y: Tensor,
    *targets: Any,
    curvature: CurvatureKind | None = "hessian",
    reduction: Reduction | None = None,
    matrix_free: bool | None = None,
    mask: Tensor | None = None,
    exchangeable: bool = False,
) -> Expansion:
    """The second-order expansion of `loss` at the outputs `y` of shape `(N, ...)`.

    Returns values ℓᵢ `(N,)`, gradients ∇ℓᵢ `(N, m)` (of each sample's own loss, no factor 1/N) and the
    batch's curvature: (1/N) Σ ∇²ℓᵢ for "hessian", (1/N) Σ ∇ℓᵢ∇ℓᵢᵀ for "fisher", and for "sample" each sample's own
    part ∇ℓᵢ∇ℓᵢᵀ/N (`OwnParts`). Samples with a non-finite value, gradient or Hessian are left out of that mean, and N
    counts the others.

    `loss(y, *targets)` returns one value per sample `(N,)`, or a scalar; `reduction` says whether that is
    their "mean" (the default, as in torch) or "sum". The values of a reduced loss are not known one
    by one; each is then the mean. A loss with a method `expand` brings its own expansion instead.
    `matrix_free` chooses products over a stored Hessian; by default it does so where N·m² is large.

    `mask`, of the shape of the outputs, is True where an output exists. The others are constants to the loss: they
    have no gradient, and the curvature is over the samples that have an output (`Masked` has the formulas).
    `exchangeable` averages the curvature over all orders of a sample's outputs, for outputs that are a set
    (`Exchangeable` has the formula).

    >>> e = expand(lambda y: (y**4).sum(1), torch.tensor([[1.0], [2.0]]))
    >>> e.value, e.gradient, e.curvature.dense()  # y⁴, 4y³, and the mean of 12y²
    (tensor([ 1., 16.]), tensor([[ 4.],
            [32.]]), tensor([[30.]]))
    """
    if curvature not in KINDS:
        raise ArgumentError(f"curvature={curvature!r}; it can be 'hessian', 'fisher', 'sample' or None.")
    check_is_loss(loss)
    loss, targets, mask = bound_targets(loss, y, targets, {}, mask, "expand")
    reduction = resolve_reduction(loss, reduction)
    return expand_bound(loss, y, targets, curvature, reduction, matrix_free, mask, exchangeable)


@outside_inference_mode
def expand_bound(
    loss: Loss | Expandable,
    y: Tensor,
    targets: tuple[Any, ...],
    curvature: CurvatureKind | None,
    reduction: Reduction | None,
    matrix_free: bool | None = None,
    mask: Tensor | None = None,
    exchangeable: bool = False,
) -> Expansion:
    """`expand` of a loss that has all its targets, for callers that have checked the arguments."""
    if mask is None and not exchangeable:
        return _expand_plain(loss, y, targets, curvature, reduction, matrix_free)
    flat = flatten_outputs(y)
    if mask is not None:
        check_mask(mask, y.shape, "outputs", "expand")
    if curvature == "sample":  # which no order of the outputs changes
        found = expand_bound(loss, y, targets, None, reduction, matrix_free, mask)
        return _by_sample(found, None if mask is None else mask.reshape(flat.shape))
    with full_precision(flat):
        flat_mask = None if mask is None else mask.reshape(flat.shape)
        if flat.numel() == 0:
            form = list_fisher(Derivatives(flat.new_zeros(len(flat)), flat), flat_mask, exchangeable)
            return Expansion(flat.new_zeros(len(flat)), flat, form if curvature else None)
        if hasattr(loss, "expand"):  # as `Expandable` says, in a hundredth of its time
            # A loss that says of itself whether its outputs are a set can average its own curvature; none has to.
            options: dict[str, Any] = {} if mask is None else {"mask": mask}
            if exchangeable and curvature is not None and hasattr(loss, "exchangeable"):
                options["exchangeable"] = True
            own = _own_expansion(loss, flat.reshape(y.shape), targets, curvature, **options)
            return own if not exchangeable or curvature is None else _averaged(own, curvature, flat_mask)
        total = make_total(loss, y.shape, targets, reduction)
        by_products = _too_large(flat) if matrix_free is None else matrix_free
        is_averaged = exchangeable and curvature == "hessian"
        sums = brought_sums(loss, flat.reshape(y.shape), targets, mask) if is_averaged else None
        return Expansion(*list_derivatives(total, flat, loss, curvature, flat_mask, exchangeable, by_products, sums))


def _averaged(own: Expansion, kind: CurvatureKind, mask: Tensor | None) -> Expansion:
    """An expansion that a loss brought, with its curvature averaged over the orders of the outputs."""
    if isinstance(own.curvature, Exchangeable):
        return own
    if kind == "fisher":
        gradient = own.gradient if mask is None else torch.where(mask, own.gradient, 0.0)
        return Expansion(own.value, gradient, exchangeable_fisher(gradient, mask=mask, value=own.value))
    if mask is not None:
        raise ArgumentError("exchangeable=True with a mask: a loss that brings its own expansion has to average it.")
    assert own.curvature is not None
    matrix, kept = own.curvature.dense(), finite(own)
    trace, total = (number.expand(len(kept)) for number in (matrix.trace(), matrix.sum()))
    return Expansion(own.value, own.gradient, exchangeable_curvature(trace, total, kept, len(matrix), None))


def _expand_plain(
    loss: Loss | Expandable,
    y: Tensor,
    targets: tuple[Any, ...],
    curvature: CurvatureKind | None,
    reduction: Reduction | None,
    matrix_free: bool | None = None,
) -> Expansion:
    """`expand` for callers that have checked the arguments."""
    if curvature == "sample":
        return _by_sample(_expand_plain(loss, y, targets, None, reduction))
    flat = flatten_outputs(y)
    with full_precision(flat):
        if flat.numel() == 0:
            return _empty(flat, curvature)
        if hasattr(loss, "expand"):
            return _own_expansion(loss, flat.reshape(y.shape), targets, curvature)
        total = make_total(loss, y.shape, targets, reduction)
        if curvature != "hessian":
            found = first_order(total, flat)
            value = found.value.detach() if found.value.requires_grad else found.value
            return Expansion(
                found.value, found.gradient, empirical_fisher(found.gradient, value=value) if curvature else None
            )
        if _too_large(flat) if matrix_free is None else matrix_free:
            found, product = second_products(total, flat, loss)
            needed = footprint(total, flat, loss, has_tape=has_tape(flat))
            return Expansion(found.value, found.gradient, _mean_products(product, is_finite_twice(found), flat, needed))
        mean = mean_hessian(total, flat, loss)
        return Expansion(mean.value, mean.gradient, Dense(mean.matrix, count=mean.count))


def loss_values(
    loss: Loss | Expandable,
    y: Tensor,
    *targets: Any,
    reduction: Reduction | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The values ℓᵢ `(N,)` alone, with the conventions of `expand` and without its derivatives."""
    check_is_loss(loss)
    flat = flatten_outputs(y)
    with torch.no_grad(), full_precision(flat):
        if flat.numel() == 0:
            return flat.new_zeros(len(flat))
        if hasattr(loss, "expand"):
            options = {} if mask is None else {"mask": mask}
            return _own_expansion(loss, flat.reshape(y.shape), targets, None, **options).value
        return make_total(loss, y.shape, targets, resolve_reduction(loss, reduction))(flat)[1]


def finite(found: Derivatives | Expansion) -> Tensor:
    """Which samples have a finite value and gradient, `(N,)` boolean."""
    return is_finite(Derivatives(found.value, found.gradient))


def _by_sample(found: Expansion, mask: Tensor | None = None) -> Expansion:
    return Expansion(found.value, found.gradient, OwnParts(found.gradient, found.value.detach(), mask))


def _too_large(flat: Tensor) -> bool:
    return flat.numel() * flat.shape[1] > DENSE_ELEMENTS


def _mean_products(product: SecondProduct, kept: Tensor, flat: Tensor, needed: Footprint) -> Products:
    count, at_once = kept.sum().clamp(min=1), products_at_once(flat, needed, DENSE_ELEMENTS // 16)

    @outside_inference_mode
    def mean_product(vectors: Tensor) -> Tensor:
        parts = torch.split(vectors, at_once)
        sums = [torch.where(kept[None, :, None], product(part), 0.0).sum(1) for part in parts]
        return torch.cat(sums) / count

    return Products(mean_product, flat.shape[1], flat)


def _empty(flat: Tensor, kind: CurvatureKind | None) -> Expansion:
    """No samples, or samples of no outputs: nothing to differentiate, and the loss is not called."""
    curvature = None if kind is None else LowRank(flat.new_zeros(0, flat.shape[1]))
    return Expansion(flat.new_zeros(len(flat)), flat, curvature)


def _own_expansion(
    loss: Expandable, y: Tensor, targets: tuple[Any, ...], kind: OwnKind | None, **options: Any
) -> Expansion:
    with torch.no_grad():
        own = loss.expand(y, *targets, curvature=kind, **options)
    count = y.shape[0]
    size = y.numel() // count
    name = f"The expansion that {name_of(loss)} brings"
    if own.value.shape != (count,) or own.gradient.shape != (count, size):
        raise ShapeError(
            f"{name} has values {tuple(own.value.shape)} and gradients {tuple(own.gradient.shape)} for "
            f"outputs of shape {tuple(y.shape)}. They have to be ({count},) and ({count}, {size})."
        )
    if kind is None:
        return own
    if own.curvature is None:
        raise ArgumentError(f"{name} has no curvature, although curvature={kind!r} was asked for.")
    curvature = own.curvature
    if type(curvature) is Dense:
        matrix = curvature.matrix
        if matrix.shape != (size, size):
            raise ShapeError(f"{name} has a curvature {tuple(matrix.shape)}; it has to be ({size}, {size}).")
        curvature = Dense(matrix, curvature.semidefinite or kind == "fisher", curvature.count)
    return Expansion(own.value, own.gradient, curvature)
