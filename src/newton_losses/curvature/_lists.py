"""The curvature of lists: samples that lack some outputs, and outputs whose order has no meaning.

What the two forms stand for is in `_forms.py`. Here they are made from the derivatives of a batch.
"""

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from .._arguments import name_of
from ..errors import ArgumentError, ShapeError
from ._derivatives import Derivatives, first_order, has_tape, is_finite, is_finite_twice, second_products
from ._forms import PROBES, Exchangeable, Masked, signs, symmetric, widened
from ._loss_contract import Total, one_thread
from ._passes import footprint, products_at_once

# Samples of one batched solve times the size of their matrices.
CELLS_AT_ONCE = 2**24


def exchangeable_curvature(trace: Tensor, total: Tensor, kept: Tensor, size: int, mask: Tensor | None) -> Exchangeable:
    """From each sample's tr Hᵢ and 1ᵀHᵢ1, both `(N,)`; samples that are not `kept` `(N,)` are left out."""
    trace, total = widened(trace), widened(total)
    length = torch.full_like(trace, size) if mask is None else mask.sum(-1).to(trace.dtype)
    kept = kept & (length > 0)
    common = torch.where(kept, total / length.clamp(min=1), 0.0)
    among = torch.where(kept, trace, 0.0) - common
    lists, freedom = kept.sum().to(trace.dtype), torch.where(kept, length - 1, 0.0).sum()
    return Exchangeable(
        among.sum() / freedom.clamp(min=1), common.sum() / lists.clamp(min=1), size, lists, freedom, mask
    )


class ExchangeableFisher(Exchangeable):
    """The empirical Fisher of lists. Nothing is computed before it is used, and a step may do without.

    Of samples that are not `kept`, or whose `value` or gradient is not finite, nothing enters. Like the Fisher's
    other forms it is not made from its fields, so `dataclasses.replace` does not work on it.
    """

    semidefinite = True

    def __init__(self, gradient: Tensor, kept: Tensor | None, value: Tensor | None, mask: Tensor | None) -> None:
        self.__dict__.update(gradient=gradient, kept=kept, value=value, mask=mask, size=gradient.shape[-1])

    def __getattr__(self, name: str) -> Tensor:
        """One of the four numbers, all of which are made when the first is asked for."""
        if name not in ("among", "common", "lists", "freedom"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        made = _fisher_of_lists(**{one: self.__dict__[one] for one in ("gradient", "kept", "value", "mask")})
        self.__dict__.update({one: getattr(made, one) for one in ("among", "common", "lists", "freedom")})
        found: Tensor = self.__dict__[name]
        return found


def exchangeable_fisher(
    gradient: Tensor, kept: Tensor | None = None, mask: Tensor | None = None, *, value: Tensor | None = None
) -> Exchangeable:
    """The empirical Fisher of gradients `(N, m)`, averaged over the orders of each list.

    `mask` `(N, m)` says which outputs exist; the gradients of the others have to be zero. Samples that are not `kept`
    `(N,)` are left out; with the values `(N,)` of the losses, so are those without a finite value and gradient.

    >>> exchangeable_fisher(torch.tensor([[1.0, -1.0], [2.0, -2.0]])).dense()
    tensor([[ 2.5000, -2.5000],
            [-2.5000,  2.5000]], dtype=torch.float64)
    """
    given = gradient, kept, value, mask
    # A compiler would want all fields at once.
    return _fisher_of_lists(*given) if torch.compiler.is_compiling() else ExchangeableFisher(*given)


def _fisher_of_lists(gradient: Tensor, kept: Tensor | None, value: Tensor | None, mask: Tensor | None) -> Exchangeable:
    if value is not None:
        finite = is_finite(Derivatives(value, gradient))
        kept = finite if kept is None else kept & finite
    elif kept is None:
        kept = torch.ones(gradient.shape[:-1], dtype=torch.bool, device=gradient.device)
    wide = widened(torch.where(kept.unsqueeze(-1), gradient, 0.0))
    return exchangeable_curvature(wide.square().sum(-1), wide.sum(-1).square(), kept, gradient.shape[-1], mask)


def masked_mean(total: Tensor, mask: Tensor, kept: Tensor) -> Masked:
    """From Σ Hᵢ `(m, m)` over the samples that are `kept` `(N,)`."""
    exists = widened((mask & kept.unsqueeze(-1)).to(total.dtype))
    pairs = exists.mT @ exists
    return Masked(symmetric(widened(total)) / pairs.clamp(min=1), mask, pairs)


class MaskedFisher(Masked):
    """The empirical Fisher of outputs that may not exist, computed when it is used, as `ExchangeableFisher`."""

    semidefinite = True

    def __init__(self, gradient: Tensor, value: Tensor, mask: Tensor) -> None:
        self.__dict__.update(gradient=gradient, value=value, mask=mask)

    @property
    def size(self) -> int:
        return self.mask.shape[-1]

    def __getattr__(self, name: str) -> Tensor:
        """`matrix` or `pairs`, both of which are made when the first is asked for."""
        if name not in ("matrix", "pairs"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        made = _fisher_of_pairs(*(self.__dict__[one] for one in ("gradient", "value", "mask")))
        self.__dict__.update(matrix=made.matrix, pairs=made.pairs)
        found: Tensor = self.__dict__[name]
        return found


def masked_fisher(gradient: Tensor, value: Tensor, mask: Tensor) -> Masked:
    """The empirical Fisher of gradients `(N, m)` where the outputs in `mask` `(N, m)` exist.

    Samples without a finite `value` `(N,)` and gradient are left out.

    >>> gradient, mask = torch.tensor([[2.0, 1.0], [4.0, 0.0]]), torch.tensor([[True, True], [True, False]])
    >>> masked_fisher(gradient, torch.zeros(2), mask).dense()  # (4 + 16)/2, 2/√2 and 1
    tensor([[10.0000,  1.4142],
            [ 1.4142,  1.0000]], dtype=torch.float64)
    """
    given = gradient, value, mask
    return _fisher_of_pairs(*given) if torch.compiler.is_compiling() else MaskedFisher(*given)


def _fisher_of_pairs(gradient: Tensor, value: Tensor, mask: Tensor) -> Masked:
    """Each output's gradients are divided by √n_j, so that no eigenvalue is negative."""
    exists = mask & is_finite(Derivatives(value, gradient)).unsqueeze(-1)
    wide, counted = widened(torch.where(exists, gradient, 0.0)), widened(exists.to(gradient.dtype))
    pairs = counted.mT @ counted
    scaled = wide / pairs.diagonal().clamp(min=1).sqrt()
    return Masked(scaled.mT @ scaled, mask, pairs, semidefinite=True)


def brought_sums(
    loss: object, y: Tensor, targets: tuple[Any, ...], mask: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """tr Hᵢ and 1ᵀHᵢ1, both `(N,)`, of a loss that knows them in closed form.

    Such a loss has a method `hessian_sums(y, *targets, mask=mask)`, which returns both, or `None` where it does not.
    """
    known, named = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
    if y.ndim != 2 or not hasattr(known, "hessian_sums"):
        return None
    with torch.no_grad():
        sums: tuple[Tensor, Tensor] | None = known.hessian_sums(
            y, *targets, **(named if mask is None else {**named, "mask": mask})
        )
    if sums is not None and not sums[0].shape == sums[1].shape == y.shape[:1]:
        raise ShapeError(
            f"{name_of(known)}.hessian_sums returned shapes {tuple(sums[0].shape)} and {tuple(sums[1].shape)} for "
            f"outputs of shape {tuple(y.shape)}. It returns tr H and 1ᵀH1 of each sample, ({len(y)},) both."
        )
    return sums


def list_derivatives(
    total: Total,
    flat: Tensor,
    loss: object,
    kind: Literal["hessian", "fisher"] | None,
    mask: Tensor | None,
    exchangeable: bool,
    matrix_free: bool,
    sums: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Exchangeable | Masked | None]:
    """Values `(N,)`, gradients and a curvature of lists, at flat outputs `(N, m)`.

    Outputs that do not exist are constants to the loss: no derivative of any order leaks from them. With the `sums`
    that an exchangeable curvature is made of, first derivatives are enough.
    """
    if sums is not None or kind != "hessian":
        found = first_order(total, flat)
        if mask is not None:
            found = found._replace(gradient=torch.where(mask, found.gradient, 0.0))
        if sums is None:
            return found.value, found.gradient, None if kind is None else list_fisher(found, mask, exchangeable)
        kept = is_finite(found) & torch.isfinite(sums[0]) & torch.isfinite(sums[1])
        return found.value, found.gradient, exchangeable_curvature(*sums, kept, flat.shape[1], mask)
    if mask is not None:
        all_outputs, exists = total, mask

        def total(outputs: Tensor) -> "tuple[Tensor, Tensor]":  # in quotes for the compiler
            return all_outputs(torch.where(exists, outputs, flat))

    found, product = second_products(total, flat, loss)
    kept, size = is_finite_twice(found), flat.shape[1]
    if exchangeable and matrix_free:
        # 1ᵀH1 exactly, and the trace from probes of ±1.
        probes = torch.cat([flat.new_ones(1, size), signs(PROBES, size, flat)])
        along = [(product(probe.unsqueeze(0)).squeeze(0) * probe).sum(-1) for probe in probes]
        means = torch.stack(along[1:]).mean(0), along[0]
        return found.value, found.gradient, exchangeable_curvature(*means, kept, size, mask)
    if matrix_free:
        raise ArgumentError(
            f"A mask needs the Hessian of {size} outputs as a matrix, unless they are exchangeable. Pass "
            "exchangeable=True for outputs that are a set, or curvature='fisher'."
        )
    trace, whole, mean = flat.new_zeros(len(flat)), flat.new_zeros(len(flat)), []
    directions = torch.eye(size, dtype=flat.dtype, device=flat.device)
    needed = footprint(total, flat, loss, has_tape=has_tape(flat))
    for rows in torch.split(directions, products_at_once(flat, needed, CELLS_AT_ONCE)):
        with one_thread(flat, needed.largest):
            second = product(rows)
        if exchangeable:
            trace, whole = trace + (second * rows.unsqueeze(1)).sum((0, 2)), whole + second.sum((0, 2))
        else:
            mean.append(torch.where(kept[None, :, None], second, 0.0).sum(1))
    if exchangeable:
        return found.value, found.gradient, exchangeable_curvature(trace, whole, kept, size, mask)
    assert mask is not None
    return found.value, found.gradient, masked_mean(torch.cat(mean), mask, kept)


def list_fisher(found: Derivatives, mask: Tensor | None, exchangeable: bool) -> Exchangeable | Masked:
    """The empirical Fisher of lists from their gradients."""
    if exchangeable:
        return exchangeable_fisher(found.gradient, mask=mask, value=found.value.detach())
    assert mask is not None
    return masked_fisher(found.gradient, found.value.detach(), mask)
