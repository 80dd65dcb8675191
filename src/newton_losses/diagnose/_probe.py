"""A loss together with its targets, to be asked at other outputs, for fewer samples and in another precision.

Asking is all that happens here; what the answers mean is in the modules of the single measurements.
"""

import contextlib
import copy
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from .._random import seeded
from ..curvature import (
    Curvature,
    CurvatureKind,
    Dense,
    Expandable,
    Expansion,
    Loss,
    LowRank,
    Reduction,
    as_curvature,
    expand,
    finite,
    full_precision,
    loss_values,
    make_total,
    resolve_reduction,
)
from ._targets import cast, picked


@dataclass(frozen=True)
class Probe:
    """`loss(y, *targets)` at outputs `y` `(N, ...)`; other outputs are given flat, as `(N, m)`."""

    loss: Loss | Expandable
    y: Tensor
    targets: tuple[Any, ...]
    reduction: Reduction | None

    @property
    def count(self) -> int:
        return self.y.shape[0]

    @property
    def flat(self) -> Tensor:
        return self.y.reshape(self.count, -1)

    @property
    def size(self) -> int:
        return self.flat.shape[1]

    @property
    def spread(self) -> float:
        """The standard deviation of all outputs, a scale for moves; 1 where all outputs are equal."""
        found = float(self.flat.double().std(correction=0))
        return found if found > 0 else 1.0

    def values(self, flat: Tensor) -> Tensor:
        """ℓᵢ `(N,)`. Those of a reduced loss are its mean, as one number without storage of its own."""
        if not can_be_called(self.loss):
            return loss_values(self.loss, flat.reshape(self.y.shape), *self.targets, reduction=self.reduction)
        # A loss that brings its own expansion often has cheaper values in its forward pass.
        reduction = resolve_reduction(self.loss, self.reduction)
        with torch.no_grad(), full_precision(flat):
            return make_total(self.loss, self.y.shape, self.targets, reduction)(flat)[1]

    def expand(self, flat: Tensor, kind: CurvatureKind | None) -> Expansion:
        outputs = flat.reshape(self.y.shape)
        found = expand(self.loss, outputs, *self.targets, curvature=kind, reduction=self.reduction)
        # Parameters of the loss leave a graph that nobody wants here.
        curvature = None if found.curvature is None else _detached(as_curvature(found.curvature))
        return Expansion(found.value.detach(), found.gradient.detach(), curvature)

    @cached_property
    def here(self) -> Expansion:
        """Values and gradients at the outputs themselves: asked for by most measurements, computed once."""
        return self.expand(self.flat, None)

    def gradient(self, flat: Tensor) -> Tensor:
        return self.expand(flat, None).gradient

    def part(self, samples: int) -> "Probe":
        """The same for at most so many samples, evenly spread over the batch."""
        if samples >= self.count:
            return self
        return self._picked(self.places(samples))

    def places(self, samples: int) -> Tensor:
        """Where in the batch the samples of a part are."""
        return torch.linspace(0, self.count - 1, max(samples, 1), device=self.y.device).round().long()

    def finite(self) -> "Probe":
        """The same for the samples with a finite value and gradient; for all where there is none."""
        kept = finite(self.here)
        return self._picked(kept.nonzero()[:, 0]) if bool(kept.any()) and not bool(kept.all()) else self

    def at(self, index: int) -> "Probe":
        """One sample alone."""
        return self._picked(torch.tensor([index], device=self.y.device))

    def _picked(self, chosen: Tensor) -> "Probe":
        targets = tuple(picked(target, chosen, self.count) for target in self.targets)
        return replace(self, y=self.y[chosen], targets=targets)

    def to(self, dtype: torch.dtype) -> "Probe":
        """The same numbers in another precision: outputs, floating targets, and what the loss stores."""
        loss = self.loss
        if isinstance(loss, nn.Module) and any(t.is_floating_point() and t.dtype != dtype for t in _stored(loss)):
            loss = copy.deepcopy(loss).to(dtype)
        y, targets = self.y.to(dtype), tuple(cast(target, dtype) for target in self.targets)
        same = loss is self.loss and y is self.y and all(map(operator.is_, targets, self.targets))
        return self if same else Probe(loss, y, targets, self.reduction)


def _detached(form: Curvature) -> Curvature:
    if isinstance(form, Dense):
        return replace(form, matrix=form.matrix.detach(), mean=None)
    if isinstance(form, LowRank):
        return replace(form, factor=form.factor.detach(), scale=None if form.scale is None else form.scale.detach())
    return replace(form, function=lambda rows: form.function(rows).detach())


def can_be_called(loss: object) -> TypeGuard[Loss]:
    """Whether it is a function of the outputs, and not just a holder of an `expand`."""
    return callable(loss) and not (isinstance(loss, nn.Module) and type(loss).forward is nn.Module.forward)


def is_reduced(values: Tensor) -> bool:
    """Whether these values are one mean, spread over the samples."""
    return len(values) > 1 and values.stride() == (0,)


def owned_generators(loss: object) -> list[torch.Generator]:
    parts = loss.modules() if isinstance(loss, nn.Module) else [loss]
    return [own for part in parts if isinstance(own := getattr(part, "generator", None), torch.Generator)]


@contextlib.contextmanager
def undisturbed(loss: object, device: torch.device) -> Iterator[None]:
    """Leave the global random state, and the generators that the loss owns, as they were."""
    owned = owned_generators(loss)
    states = [generator.get_state() for generator in owned]
    with seeded(0, device):
        try:
            yield
        finally:
            for generator, state in zip(owned, states, strict=True):
                generator.set_state(state)


def _stored(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def thinned(seconds: float, calls: int, budget: float, count: int, least: int = 2) -> int:
    """How many of `count` samples to take so that `calls` calls, of `seconds` for all, stay within the budget."""
    affordable = int(count * budget / max(seconds * calls, 1e-9))
    return min(count, max(least, affordable))


def mean_finite(values: Tensor) -> float:
    kept = values.detach()[torch.isfinite(values)]
    return float(kept.double().mean()) if len(kept) else float("nan")
