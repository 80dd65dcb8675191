"""A loss together with its targets, to be asked at other outputs, for fewer samples and in another precision.

Asking is all that happens here: what the answers mean is in the other modules. Every call of a probe draws the same
random numbers, so that a loss that draws noise is a fixed function until its `seed` is changed.
"""

import contextlib
import copy
import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeGuard

import numpy
import torch
from torch import Tensor, nn

from .._arguments import WithTargets, each_target, name_of
from .._differences import beside, unit_of
from .._random import seeded
from .._targets import cast, changed, picked, traces
from .._unchanged import generators_of, seed_generator, state_of, unchanged
from ..curvature import (
    Curvature,
    CurvatureKind,
    Dense,
    Expandable,
    Expansion,
    Loss,
    LowRank,
    Products,
    Reduction,
    check_loss,
    expand,
    finite,
    loss_values,
    resolve_reduction,
)
from ..errors import ArgumentError

# Called before each call of the loss: what is being measured, and how often the loss was called before.
Progress = Callable[[str, int], None]

# Samples whose values are compared with those that they have within the batch, or half of the batch.
COMPARED = 4
DIFFERS = "has other values than within it"


class Counter:
    """How often the loss was called, and what for."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress
        self.stage, self.calls = "the loss itself", 0

    def count(self) -> None:
        if self.progress is not None:
            self.progress(self.stage, self.calls)
        self.calls += 1


@dataclass(frozen=True)
class Probe:
    """`loss(y, *targets)` at outputs `y` `(N, ...)`; other outputs are given flat, as `(N, m)`."""

    loss: Loss | Expandable
    y: Tensor
    targets: tuple[Any, ...]
    reduction: Reduction | None
    seed: int = 0
    counter: Counter = field(default_factory=Counter, compare=False)

    @property
    def count(self) -> int:
        return self.y.shape[0]

    @property
    def flat(self) -> Tensor:
        return self.y.reshape(self.count, -1)

    @property
    def size(self) -> int:
        return self.flat.shape[1]

    @cached_property
    def scale(self) -> Tensor:
        """The unit `(m,)` of moves."""
        return unit_of(self.flat)

    def values(self, flat: Tensor) -> Tensor:
        """ℓᵢ `(N,)`. Those of a reduced loss are its mean, as one number without storage of its own."""
        # A loss that brings its own expansion often has cheaper values in its forward pass.
        loss = _hidden(self.loss) if can_be_called(self.loss) else self.loss
        reduction = resolve_reduction(self.loss, self.reduction)
        with self._asked():
            return loss_values(loss, flat.reshape(self.y.shape), *self.targets, reduction=reduction).detach()

    def expand(self, flat: Tensor, kind: CurvatureKind | None) -> Expansion:
        with self._asked():
            outputs = flat.reshape(self.y.shape)
            found = expand(self.loss, outputs, *self.targets, curvature=kind, reduction=self.reduction)
        # Parameters of the loss leave a graph, which is of no use here.
        return Expansion(found.value.detach(), found.gradient.detach(), _detached(found.curvature))

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        self.counter.count()
        _seed_all(self.loss, self.seed, self.y.device)
        yield

    @cached_property
    def here(self) -> Expansion:
        """Values and gradients at the outputs themselves: most measurements need them, computed once."""
        return self.expand(self.flat, None)

    def gradient(self, flat: Tensor) -> Tensor:
        return self.expand(flat, None).gradient

    def part(self, samples: int) -> "Probe":
        """The same for at most that many samples, evenly spread over the batch."""
        return self if samples >= self.count else self._picked(self.places(samples))

    def places(self, samples: int) -> Tensor:
        """Where in the batch the samples of a part are."""
        return torch.linspace(0, self.count - 1, max(samples, 1), device=self.y.device).round().long()

    def finite(self) -> "Probe":
        """The same for the samples with a finite value and gradient; for all if there are none."""
        kept = finite(self.here)
        return self._picked(kept.nonzero()[:, 0]) if bool(kept.any()) and not bool(kept.all()) else self

    def at(self, index: int) -> "Probe":
        """One sample alone."""
        return self._picked(torch.tensor([index], device=self.y.device))

    def beside(self, seed: int) -> "Probe":
        """The same at outputs a thousandth of their scale away: what was at a kink or a tie is not any more."""
        return replace(self, y=beside(self.flat, self.scale, seed).reshape(self.y.shape))

    def _picked(self, chosen: Tensor) -> "Probe":
        loss, targets = each_target(self.loss, self.targets, lambda target: picked(target, chosen, self.count))
        return replace(self, loss=loss, y=self.y[chosen], targets=targets)

    def to(self, dtype: torch.dtype) -> "Probe":
        """The same numbers in another precision: outputs, floating targets, and what the loss stores."""
        loss = self.loss
        own = loss.func if isinstance(loss, WithTargets) else loss
        if isinstance(own, nn.Module) and any(t.is_floating_point() and t.dtype != dtype for t in _stored(own)):
            own = copy.deepcopy(own).to(dtype)
            loss = loss.of(own) if isinstance(loss, WithTargets) else own
        loss, targets = each_target(loss, self.targets, lambda target: cast(target, dtype))
        y = self.y.to(dtype)
        same = loss is self.loss and y is self.y and all(map(operator.is_, targets, self.targets))
        return self if same else replace(self, loss=loss, y=y, targets=targets)


def curvature_of(expansion: Expansion) -> Curvature:
    """The curvature of an expansion that was asked for with one."""
    assert expansion.curvature is not None
    return expansion.curvature


def can_be_called(loss: object) -> TypeGuard[Loss]:
    """Whether it is a function of the outputs, and not just a holder of an `expand`."""
    return callable(loss) and not (isinstance(loss, nn.Module) and type(loss).forward is nn.Module.forward)


def is_reduced(values: Tensor) -> bool:
    """Whether these values are one mean, spread over the samples."""
    return len(values) > 1 and values.stride() == (0,)


def mean_finite(values: Tensor) -> float:
    kept = values.detach()[torch.isfinite(values)]
    return float(kept.double().mean()) if len(kept) else float("nan")


def _hidden(loss: Loss) -> Loss:
    """The loss without its `expand`, under its own name in errors."""

    def call(y: Tensor, *targets: Any) -> Tensor:
        return loss(y, *targets)

    call.__name__ = name_of(loss)
    return call


def _detached(form: Curvature | None) -> Curvature | None:
    if isinstance(form, Dense):
        return Dense(form.matrix.detach(), form.semidefinite, form.count)
    if isinstance(form, LowRank):
        return LowRank(form.factor.detach(), None if form.scale is None else form.scale.detach(), form.first)
    if isinstance(form, Products):
        return replace(form, function=lambda rows: form.function(rows).detach())
    return None if form is None else Dense(form.dense().detach())


def _stored(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


# Random numbers -----------------------------------------------------------------------------------------------------


def _seed_all(loss: object, seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    for generator in generators_of(loss):
        seed_generator(generator, seed)
    numpy.random.seed(seed)  # noqa: NPY002 — what a user's loss draws from
    random.seed(seed)


@contextlib.contextmanager
def undisturbed(loss: object, device: torch.device) -> Iterator[None]:
    """Leave what the loss keeps as it was, and every random state: torch's, NumPy's, Python's.

    On one thread: sums in another order would send a loss with plateaus to another one.
    """
    numpys, pythons, threads = numpy.random.get_state(), random.getstate(), torch.get_num_threads()  # noqa: NPY002
    with unchanged(loss), seeded(0, device):
        try:
            torch.set_num_threads(1)
            yield
        finally:
            torch.set_num_threads(threads)
            numpy.random.set_state(numpys)  # noqa: NPY002
            random.setstate(pythons)


def draws_noise(probe: Probe) -> bool:
    """Whether the loss gives another answer with other random numbers, or just when it is asked again."""
    first = probe.here
    others = (replace(probe, seed=seed).expand(probe.flat, None) for seed in (0, 1, 2, 3))
    return not all(_same(first.value, o.value) and _same(first.gradient, o.gradient) for o in others)


def _takes_random_numbers(probe: Probe) -> bool:
    """Whether a call moves a random state on; few draws can give the same whole numbers by chance."""

    def states() -> list[str]:
        gpu = [torch.cuda.get_rng_state(probe.y.device)] if probe.y.is_cuda else []
        own = [state_of(generator) for generator in generators_of(probe.loss)]
        every = (torch.get_rng_state(), *gpu, *own)
        torchs = [str(state.tolist() if isinstance(state, Tensor) else state) for state in every]
        return [*torchs, str(numpy.random.get_state()), str(random.getstate())]  # noqa: NPY002

    _seed_all(probe.loss, probe.seed, probe.y.device)
    before = states()
    probe.values(probe.flat)  # seeds alike before it calls
    return before != states() or draws_noise(probe)


def is_symmetric(probe: Probe) -> bool | None:
    """Whether the loss stays the same when each sample's outputs are permuted together with targets of their shape.

    By one random permutation per sample and one call. `None` for a single output, for values that are not finite, and
    for a loss that does not take the permuted targets.
    """
    value = probe.here.value
    if probe.size < 2 or not bool(torch.isfinite(value).any()):
        return None
    place = torch.rand(probe.flat.shape, generator=torch.Generator().manual_seed(0)).argsort(1)
    kept = (place == torch.arange(probe.size)).all(1, keepdim=True)
    place = torch.where(kept, place.flip(1), place).to(probe.y.device)  # the identity would say nothing

    def permute(part: Any) -> Any:
        if isinstance(part, Tensor) and part.shape == probe.y.shape:
            return part.reshape(probe.flat.shape).gather(1, place.to(part.device)).reshape(part.shape)
        if isinstance(part, numpy.ndarray) and part.shape == probe.y.shape:
            rows = part.reshape(probe.flat.shape)
            return numpy.take_along_axis(rows, place.cpu().numpy(), 1).reshape(part.shape)
        return part

    loss, targets = each_target(probe.loss, probe.targets, lambda target: changed(target, permute))
    moved = replace(probe, loss=loss, targets=targets)
    try:
        found = moved.values(probe.flat.gather(1, place))
    except Exception:  # the loss is the caller's, and may raise anything
        return None
    tolerance = float(value[torch.isfinite(value)].abs().amax()) * torch.finfo(value.dtype).eps ** 0.5
    return torch.allclose(value, found, rtol=0.0, atol=tolerance, equal_nan=True)


def _same(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.nan_to_num(), second.nan_to_num())


def check_parts(probe: Probe) -> bool:
    """Whether the loss leaves its targets as they are.

    Raises where a few samples, with the targets picked for them, differ from what they are within the batch. Something
    that all samples share was cut then, or something of each was not. Every other measurement relies on it. The whole
    batch is asked first, so that errors of the loss name the shapes that the caller knows.
    """
    given = probe.targets, probe.loss.targets if isinstance(probe.loss, WithTargets) else None
    before = traces(given)
    whole = probe.values(probe.flat)
    if traces(given) != before:
        return False
    samples = min(COMPARED, probe.count // 2)
    fault = _fault(probe, whole, samples) if samples else None
    if fault is None or (fault == DIFFERS and _takes_random_numbers(probe)):
        return True
    if can_be_called(probe.loss):  # a loss that mixes its samples, or does without them, has another fault
        check_loss(probe.loss, probe.y, *probe.targets, reduction=probe.reduction)
    if fault == DIFFERS and _is_rounding(probe, samples):
        return True
    raise ArgumentError(
        f"diagnose asks for fewer samples than the batch of {probe.count}, and for {samples} of them the loss {fault}: "
        "a target has one entry per sample (a tensor, an array or a list, also within dicts and tuples). What all "
        "samples share, such as a table of prototypes, belongs in the loss itself: a closure or a module."
    )


def _fault(probe: Probe, whole: Tensor, samples: int) -> str | None:
    """What is wrong with the loss of a few samples alone; of a reduced one only that it fails."""
    part = probe.part(samples)
    try:
        alone = part.values(part.flat)
    except Exception as error:  # the loss is the caller's, and may raise anything
        return f"fails ({type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')})"
    if is_reduced(whole):
        return None
    size = whole[torch.isfinite(whole)].abs()
    tolerance = float(size.amax()) * torch.finfo(whole.dtype).eps ** 0.5 if len(size) else 0.0
    same = torch.allclose(whole[probe.places(samples)], alone, rtol=0.0, atol=tolerance, equal_nan=True)
    return None if same else DIFFERS


def _is_rounding(probe: Probe, samples: int) -> bool:
    """Whether the values agree in float64."""
    try:
        wide = probe.to(torch.float64)
        return wide is not probe and _fault(wide, wide.values(wide.flat), samples) is None
    except Exception:  # a loss that holds float32 tensors
        return False
