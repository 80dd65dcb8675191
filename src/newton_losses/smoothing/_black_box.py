"""What all smoothed black boxes share: settings, checks, the one call of the user's function, and the autograd node.

Noise and estimators are in `_draws.py`; the public classes made of them are in `_smoothed.py`.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Never, NoReturn, TypedDict

import numpy
import torch
from torch import Tensor, nn

from .._arguments import dense_tensor, name_of, one_of, positive_number, signature_of, whole_number
from .._by_hand import NoSecondDerivative
from .._random import seeded
from .._targets import changed, is_listed
from .._unchanged import same_draws, unchanged
from ..curvature import full_precision, widen
from ..errors import ArgumentError, DerivativeError, NewtonLossesError, SeparabilityError, ShapeError
from ._distributions import Distribution, Gaussian
from ._draws import VARIANCE_REDUCTIONS, Noise, VarianceReduction, leave_one_out, make_sampler

BlackBox = Callable[..., Any]
# Of what a black box returns: up to this share, another batch may change it, as an iteration that ends for all at once.
SAME = 1e-3

_GAUSSIAN = Gaussian()


class SmoothingOptions(TypedDict, total=False):
    """The settings that all smoothed black boxes share; `Smoothed` says what they mean."""

    distribution: Distribution
    variance_reduction: VarianceReduction
    antithetic: bool
    quasi: bool
    generator: torch.Generator | None


class Smoothed(nn.Module):
    """A black box under noise: y ↦ E[fn(y + ε)] with ε = scale·z, estimated from `num_samples` draws of z.

    - `distribution` of z, independent in all coordinates: one of this package's, or any object with the two methods
      of `Distribution`.
    - `variance_reduction`: the baseline that is subtracted from fn(y + ε) in all derivatives. "leave_one_out" is the
      mean of the other draws; "value" is fn(y), the paper's, at the cost of one more evaluation per sample; "none" is
      none. All are unbiased. The default "auto" is "leave_one_out" with 3 draws or more and "value" below that (and
      for draws that do not form two independent groups: 2 antithetic ones, an odd number of quasi-random ones).
    - `antithetic`: draws come in pairs of u and 1−u, which for a symmetric distribution is ε and −ε.
    - `quasi`: the draws of a sample are randomly shifted Sobol points instead of independent.
    - `generator` of the noise, on the device of y. With it the global generator is never touched. It belongs to the
      caller: its state is not part of the module's `state_dict`.

    `fn` is called once, under `no_grad`, with all draws in one batch `(B, *shape)`: draws and samples are flattened
    together, and every tensor or NumPy array among the targets, `(N, ...)`, is repeated to match, also inside tuples,
    lists and dicts, so any function of a batch works unchanged. It may return integers, booleans or NumPy arrays. Its
    own parameters get no gradient.
    """

    def __init__(
        self,
        fn: BlackBox,
        scale: float = 0.1,
        num_samples: int = 10,
        *,
        distribution: Distribution = _GAUSSIAN,
        variance_reduction: VarianceReduction = "auto",
        antithetic: bool = False,
        quasi: bool = False,
        generator: torch.Generator | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        if kwargs:  # Python would name the class that this method is inherited from
            _refuse_options(type(self), kwargs)
        if not callable(fn):
            raise ArgumentError(f"{owner}: fn is {fn!r}. Pass a function of a batch of inputs.")
        if isinstance(distribution, type) or not isinstance(distribution, Distribution):
            raise ArgumentError(
                f"{owner}: distribution is {distribution!r}. Pass an object with the methods sample and derivatives, "
                f"for example nl.smoothing.Gaussian()."
            )
        if generator is not None and not isinstance(generator, torch.Generator):
            raise ArgumentError(f"{owner}: generator is {generator!r}. Pass a torch.Generator, or None.")
        one_of(variance_reduction, VARIANCE_REDUCTIONS, "variance_reduction", owner)
        self.fn = fn
        self.scale = positive_number(scale, "scale", owner)
        self.distribution = distribution
        self.generator = generator
        num_samples = whole_number(num_samples, "num_samples", owner, least=1)
        self.sampler, self.variance_reduction = make_sampler(num_samples, antithetic, quasi, variance_reduction)

    def extra_repr(self) -> str:
        sampler = self.sampler
        return (
            f"scale={self.scale}, num_samples={sampler.num_samples}, distribution={self.distribution}, "
            f"variance_reduction={self.variance_reduction!r}, antithetic={sampler.antithetic}, "
            f"quasi={sampler.quasi}"
        )

    @property
    def _signed_scale(self) -> float:
        return self.scale

    @property
    def _needs_centre(self) -> bool:
        return self.variance_reduction == "value"

    def _check(self, y: Tensor) -> None:
        owner = type(self).__name__
        dense_tensor(y, "the outputs y", owner)
        if not y.is_floating_point() or y.element_size() < 2 or y.dim() == 0:
            raise ShapeError(
                f"{owner}: the outputs y have shape {tuple(y.shape)} and dtype {y.dtype}. Pass a batch of real "
                f"outputs, (N, ...), of at least 16 bits."
            )
        if self.generator is not None and self.generator.device.type != y.device.type:
            raise ArgumentError(
                f"{owner}: the generator is on {self.generator.device} and y on {y.device}. "
                f"Make it with torch.Generator(device={y.device.type!r})."
            )

    def _given(self, y: Tensor, targets: tuple[Any, ...], named: Mapping[str, Any]) -> "Targets":
        """What fn takes beside y, if y can be differentiated at and this can be repeated for the draws."""
        self._check(y)
        given = Targets(targets, named)
        given.check(y.shape[0], type(self).__name__)
        return given

    def _draw(self, y: Tensor) -> Noise:
        """Noise for the batch y, `(N, ...)`."""
        return self.sampler.draw(flatten_from(y, 1), self._signed_scale, self.distribution, self.generator)

    def _call(self, y: Tensor, noise: Noise, centre: bool, targets: "Targets | None" = None) -> Tensor:
        """fn at the draws, preceded by fn at y if `centre`: `(S or 1+S, N, ...)`, in the dtype it returned."""
        flat = flatten_from(y, 1)
        inputs = flat + noise.perturbation()
        if centre:
            inputs = torch.cat([flat.unsqueeze(0), inputs])
        rows, batch = inputs.shape[:2]
        inputs = inputs.reshape(rows * batch, *y.shape[1:])
        shape = tuple(inputs.shape)
        targets = targets or Targets()
        repeated = targets.repeated(rows, batch)
        try:
            returned = self.fn(inputs, *repeated.placed, **repeated.named)
        except Exception as error:
            if isinstance(error, TypeError):
                targets.check_call(self.fn, type(self).__name__)
            if not isinstance(error, NewtonLossesError):
                error.add_note(self._how_it_was_called(inputs, repeated, rows - centre, batch))
            raise
        output = self._as_tensor(returned, y)
        self._check_output(output, shape)
        return output.reshape(rows, batch, *output.shape[1:])

    def _unmixed(self, y: Tensor, targets: "Targets | None" = None) -> Tensor | None:
        """fn at y itself, `(N, ...)`, after checking that a sample's row stays when the outputs of others change.

        `None` where it cannot be known: of a single sample, and of an fn with noise of its own or not of this form.
        """
        flat = flatten_from(widen(y.detach()), 1)
        even = (torch.arange(len(flat), device=flat.device) % 2 == 0)[:, None]
        moved = [torch.where(kept, flat, flat.roll(1, 0)) for kept in (even, ~even)]
        if all(torch.equal(flat, one) for one in moved):
            return None
        given, found = targets or Targets(), []
        with torch.no_grad(), full_precision(flat), unchanged(self):
            for at in (flat, flat, *moved):
                with seeded(0, flat.device), same_draws(self):
                    output = self._as_tensor(self.fn(at.reshape(y.shape).clone(), *given.placed, **given.named), y)
                if output.dim() == 0 or len(output) != len(flat):
                    return None
                found.append(output.to(torch.float64, copy=True))  # the next one may be in the same memory
        first, again, *others = found
        if not torch.equal(first, again):
            return None
        scale = float(first.abs().max())
        if any(
            not torch.allclose(first[kept[:, 0]], one[kept[:, 0]], rtol=SAME, atol=SAME * scale, equal_nan=True)
            for kept, one in zip((even, ~even), others, strict=True)
        ):
            raise SeparabilityError(
                f"{type(self).__name__}: {name_of(self.fn)} mixes the samples of the batch: what it returns for some "
                "rows changed when only other rows did. It gets all draws of all samples as one batch. Does it reduce, "
                "rank or normalise over the first dimension? (costs.min() is over everything; costs.amin(-1) is not.)"
            )
        return first

    def _how_it_was_called(self, inputs: Tensor, targets: "Targets", draws: int, batch: int) -> str:
        """For an error that fn raised, and which knows nothing of draws."""
        also = " and the outputs themselves" if len(inputs) > draws * batch else ""
        return (
            f"{type(self).__name__}: {name_of(self.fn)} raised this when it was called with a batch "
            f"{described(inputs)} and {targets.described()}. All draws of all samples come in one call, stacked along "
            f"the first dimension: here {draws} draw{'' if draws == 1 else 's'}{also}, for a batch of {batch}. Targets "
            f"that are passed to the {type(self).__name__} are repeated to match; those in a closure are not. It must "
            f"return {self._wanted(tuple(inputs.shape))}. If it is made for one sample, call it for each row and join "
            f"what it returns with torch.stack."
        )

    def _as_tensor(self, output: Any, y: Tensor) -> Tensor:
        try:
            if isinstance(output, list | tuple) and output and isinstance(output[0], numpy.ndarray):
                output = numpy.asarray(output)  # torch would go through every number of every array
            return torch.as_tensor(output, device=y.device)
        except (TypeError, ValueError, RuntimeError) as error:
            is_rows = isinstance(output, list | tuple) and any(isinstance(one, Tensor) for one in output)
            raise ArgumentError(
                f"{type(self).__name__}: fn returned {type(output).__name__}. "
                f"It must return a tensor (or an array) with one entry for each row of its input"
                f"{': of one tensor per row, return their torch.stack' if is_rows else ''}."
            ) from error

    def _check_output(self, output: Tensor, shape: tuple[int, ...]) -> None:
        """Raise a ShapeError unless fn's output fits its inputs of this shape, `(B, *shape)`."""
        raise NotImplementedError

    def _wanted(self, shape: tuple[int, ...]) -> str:
        """What fn has to return for inputs of this shape, `(B, *shape)`."""
        raise NotImplementedError

    def _weights(self, values: Tensor, centred: bool) -> Tensor:
        """The values at the draws minus their baseline. `centred` says that the value at y comes before them."""
        if centred:
            return values[1:] - values[0]
        return leave_one_out(values, self.sampler.groups) if self.variance_reduction == "leave_one_out" else values


def _refuse_options(owner: type, unknown: Mapping[str, object]) -> NoReturn:
    """Raise a TypeError, as Python would, that names the class as its user knows it."""
    known = [
        name
        for base in owner.__mro__
        if issubclass(base, nn.Module) and base is not nn.Module
        for name, one in inspect.signature(base.__init__).parameters.items()
        if one.kind is one.KEYWORD_ONLY
    ]
    known = ["scale", "num_samples", *dict.fromkeys(known)]
    name = next(iter(unknown))
    close = difflib.get_close_matches(name, known, 1)
    raise TypeError(
        f"{owner.__name__} has no option {name!r}. {f'Did you mean {close[0]!r}? ' if close else ''}"
        f"Its options are {', '.join(known)}."
    )


@dataclass(frozen=True)
class Targets:
    """What a black box takes beside its inputs: `placed` by position, `named` by name.

    >>> Targets((torch.arange(2), "all"), {"weights": [torch.ones(2)]}).repeated(2, 2)
    Targets(placed=(tensor([0, 1, 0, 1]), 'all'), named={'weights': [tensor([1., 1., 1., 1.])]})
    """

    placed: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    def but_the_first(self) -> "Targets":
        """What a solver takes beside its costs, where the wanted solution comes first."""
        return Targets(self.placed[1:], self.named)

    def check(self, count: int, owner: str) -> None:
        """Raise unless all can be repeated for the draws of `count` samples."""

        def look(part: Any) -> Any:
            if is_listed(part, count):
                return None  # what is within has no entry per sample, and need not
            if not isinstance(part, Tensor | numpy.ndarray):
                return part
            # Also within a container: what all samples share would be repeated in a batch of its length.
            has_rows = part.shape[:1] == (count,)
            if part.ndim > 0 and not has_rows and not _is_unusual(part):
                raise ShapeError(
                    f"{owner}: a target has shape {tuple(part.shape)} for {count} samples. Targets have one "
                    f"entry per sample; bind what all samples share to fn, for example with functools.partial."
                )
            if _is_unusual(part) and (has_rows or part is target):
                raise ArgumentError(
                    f"{owner}: a target is nested, sparse or on the meta device, so it cannot be repeated for every "
                    f"draw. Pass a dense tensor with one entry per sample, or bind it to fn."
                )
            if isinstance(part, Tensor) and part.requires_grad and torch.is_grad_enabled():
                raise ArgumentError(
                    f"{owner}: a target requires a gradient, but a black box gives one only to y. "
                    f"Pass target.detach(), or make it a part of y."
                )
            return part

        for target in (*self.placed, *self.named.values()):
            changed(target, look)

    def repeated(self, times: int, count: int) -> "Targets":
        """All that has one entry for each of `count` samples so many times, one batch behind the other."""

        def repeat(part: Any) -> Any:
            if not isinstance(part, Tensor | numpy.ndarray) or part.ndim == 0 or part.shape[0] != count:
                return part
            if isinstance(part, Tensor):
                return torch.cat([part] * times)
            return numpy.concatenate([part] * times)

        def every(target: Any) -> Any:
            return changed(target, repeat, is_whole=lambda part: is_listed(part, count))

        return Targets(tuple(map(every, self.placed)), {name: every(target) for name, target in self.named.items()})

    def check_call(self, fn: BlackBox, owner: str) -> None:
        """Raise if fn cannot be called with these targets; asked after a call that has failed."""
        signature = signature_of(fn)
        if signature is None:
            return
        try:
            signature.bind(None, *self.placed, **self.named)
        except TypeError as error:
            listed = ", ".join(signature.parameters)
            raise ArgumentError(
                f"{owner}: {name_of(fn)}({listed}) was called with the outputs and {self.described()}: {error}. "
                f"They follow the outputs, by position or by name, as in its own signature; what it has in a closure "
                f"is not passed."
            ) from None

    def described(self) -> str:
        named = (f"{name}, {described(target)}" for name, target in self.named.items())
        given = [*(described(target) for target in self.placed), *named]
        return f"the target{'s' if len(given) > 1 else ''} {'; '.join(given)}" if given else "no targets"


def _is_unusual(target: Tensor | numpy.ndarray[Any, Any]) -> bool:
    """Whether it has no plain memory that could be repeated."""
    if isinstance(target, numpy.ndarray):
        return False
    return target.is_nested or target.layout != torch.strided or target.device.type == "meta"


def described(thing: Any) -> str:
    """How an error message calls an input or a target."""
    if not isinstance(thing, Tensor | numpy.ndarray):
        return f"a {type(thing).__name__}"
    return f"of shape {tuple(thing.shape)} and dtype {str(thing.dtype).removeprefix('torch.')}"


def flatten_from(tensor: Tensor, dim: int) -> Tensor:
    """All dimensions from `dim` on as one, of length 1 if there are none."""
    return tensor.flatten(dim) if tensor.dim() > dim else tensor.unsqueeze(-1)


# --- autograd ---

Evaluate = Callable[[Tensor], tuple[Tensor, ...]]
PullBack = Callable[..., Tensor]


def estimated(y: Tensor, evaluate: Evaluate, pull_back: PullBack, reason: str) -> Tensor:
    """The first tensor of `evaluate(y)`, with `pull_back(gradient, *the others)` as its backward.

    Estimated derivatives have no derivatives of their own in the graph. A second derivative through them would be
    silently wrong, so it raises a `DerivativeError` with this `reason`, in reverse and in forward mode.
    """
    outputs: tuple[Tensor, ...] = _Estimated.apply(y, evaluate, pull_back, reason)  # type: ignore[no-untyped-call]
    return outputs[0]


class _Estimated(torch.autograd.Function):
    @staticmethod
    def forward(y: Tensor, evaluate: Evaluate, pull_back: PullBack, reason: str) -> tuple[Tensor, ...]:
        return evaluate(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        y, _, ctx.pull_back, ctx.reason = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(y, *output[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if gradients[0] is None:
            return None, None, None, None
        y, *saved = ctx.saved_tensors
        pulled = ctx.pull_back(gradients[0], *saved).reshape(y.shape).to(y.dtype)
        once = NoSecondDerivative.apply(pulled, y, ctx.reason)  # type: ignore[no-untyped-call]
        return once, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise DerivativeError(ctx.reason)

    @staticmethod
    def vmap(info: Any, in_dims: Any, y: Tensor, evaluate: Evaluate, pull_back: PullBack, reason: str) -> Any:
        raise DerivativeError(
            f"torch.vmap cannot map a black box: call it with the whole batch. If this came from a second derivative "
            f"(torch.func.hessian maps), there is none. {reason}"
        )
