"""Arguments as callers pass them: is it a tensor, a number, one of the words? Nested tensors become padded ones.

Each check gives its argument back, or raises an error that says where, what came, and what to pass instead. None reads
a tensor on a device back to the host, but for a setting that comes in one instead of as a number. Nothing else in the
library knows how nested tensors, in jagged layout, are stored.
"""

import inspect
import math
import operator
from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ._targets import changed
from .errors import ArgumentError, ShapeError


def real_tensor(thing: Any, name: str, where: str) -> Tensor:
    """`thing`, if it is a tensor of numbers that have an order."""
    if not isinstance(thing, Tensor):
        raise ArgumentError(f"{where}: {name} have to be a tensor, got {type(thing).__name__}.")
    if thing.is_complex():
        raise ArgumentError(f"{where}: {name} are {thing.dtype}. Complex numbers have no order.")
    return thing


def dense_tensor(thing: Any, name: str, where: str, *, allow_meta: bool = False) -> Tensor:
    """`thing`, if it is a real tensor that is neither nested nor sparse, nor (unless allowed) on the meta device."""
    tensor = real_tensor(thing, name, where)
    if tensor.is_nested:
        raise ArgumentError(
            f"{where}: {name} are a nested tensor. Pad it to a dense one, or pass one sample at a time."
        )
    if tensor.layout != torch.strided:
        raise ArgumentError(f"{where}: {name} are a sparse tensor. Pass a dense one: tensor.to_dense().")
    if tensor.device.type == "meta" and not allow_meta:
        raise ArgumentError(f"{where}: {name} are on the meta device and have no values. Move them to a real device.")
    return tensor


def check_mask(mask: object, shape: torch.Size, name: str, where: str) -> None:
    """Raise unless a mask is boolean and has the shape of what it is for, the `name`."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentError(f"{where}: the mask is {kind}. Pass a boolean tensor, True for {name} that exist.")
    if mask.shape != shape:
        raise ShapeError(
            f"{where}: the mask has shape {tuple(mask.shape)} for {name} of shape {tuple(shape)}. "
            "They need the same shape: one boolean for each."
        )


def positive_number(thing: Any, name: str, where: str) -> float:
    """`thing` as a number, if it is a positive and finite one: Python's, NumPy's, or a tensor of one element."""
    if isinstance(thing, Tensor) and thing.requires_grad:
        raise ArgumentError(f"{where}: {name} requires a gradient. It is a plain number and gets none: pass its value.")
    try:
        number = math.nan if _reads_as_a_number(thing) else float(thing)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ArgumentError(f"{where}: {name}={thing!r} is not a positive finite number.")
    return number


def whole_number(thing: Any, name: str, where: str, least: int) -> int:
    """`thing` as an integer, if it is one, Python's or NumPy's, and not below `least`."""
    try:
        number = least - 1 if _reads_as_a_number(thing) else operator.index(thing)
    except TypeError:
        number = least - 1
    if number < least:
        raise ArgumentError(f"{where}: {name} is {thing!r}. It is a whole number, at least {least}.")
    return number


def _reads_as_a_number(thing: Any) -> bool:
    """Whether Python would make a number of what is none: of texts and truths."""
    if isinstance(thing, (bool, str, bytes)):
        return True
    return not isinstance(thing, (int, float)) and str(getattr(thing, "dtype", "")).endswith("bool")


def one_of(thing: Any, choices: Iterable[str], name: str, where: str) -> Any:
    """`thing`, if it is one of the words."""
    choices = tuple(choices)
    if not isinstance(thing, str) or thing not in choices:
        listed = ", ".join(map(repr, choices))
        raise ArgumentError(f"{where}: {name}={thing!r} is not known. Choose one of {listed}.")
    return thing


class WithTargets(partial):  # type: ignore[type-arg]
    """A loss with targets of this call that came by name: unlike what users bind themselves, one entry per sample.

    Python makes one partial of two, so the names say which of the keywords are targets.
    """

    names: frozenset[str] = frozenset()

    @property
    def targets(self) -> dict[str, Any]:
        return {name: self.keywords[name] for name in self.names}

    def with_each(self, change: Callable[[Any], Any]) -> "WithTargets":
        """The same loss with targets that were changed by a function; itself if it leaves all as they are."""
        new = {name: change(target) for name, target in self.targets.items()}
        if all(new[name] is target for name, target in self.targets.items()):
            return self
        found: WithTargets = _with_targets(self, new)
        return found

    def of(self, loss: Any) -> "WithTargets":
        """Another loss with these targets."""
        bound = WithTargets(loss, *self.args, **self.keywords)
        bound.names = self.names
        return bound


def each_target(loss: Any, targets: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, tuple[Any, ...]]:
    """A loss and its targets, those that it takes by name only as well, each changed by a function."""
    return loss.with_each(change) if isinstance(loss, WithTargets) else loss, tuple(map(change, targets))


def _with_targets(loss: Any, named: dict[str, Any]) -> Any:
    if torch.compiler.is_compiling():
        return partial(loss, **named)
    if isinstance(loss, WithTargets):  # of a partial with attributes, Python would make two
        named = {**loss.targets, **named}
        bound = WithTargets(loss.func, *loss.args, **{**loss.keywords, **named})
    else:
        bound = WithTargets(loss, **named)
    bound.names = frozenset(named)
    return bound


def bound_targets(
    loss: Any, y: Any, targets: tuple[Any, ...], named: dict[str, Any], mask: Any, where: str
) -> tuple[Any, tuple[Any, ...], Any]:
    """The loss, its targets by position, where some came by name, and the mask of outputs that exist.

    A loss with an argument of its own called `mask` gets it as it is. If it is boolean and has an entry for each of the
    outputs, or for each token of several, it also says which of them exist; else it is the loss's alone, as weights or
    one entry per sample are.

    >>> bound_targets(lambda y, labels, weight=1.0: y, None, (), {"weight": 2.0, "labels": 3}, None, "here")[1]
    (3, 2.0)
    """
    exists = outputs_mask(mask, y)
    if mask is not None and not hasattr(loss, "expand") and not takes_mask(loss):
        signature = signature_of(loss)
        names = [] if signature is None else list(signature.parameters)
        if "mask" in names[1 + len(targets) :]:  # and not among the targets, where it may have been given as well
            named, mask = {**named, "mask": mask}, None
    mask = mask if exists is None else exists
    return (*_by_position(loss, y, targets, named, where), mask) if named else (loss, targets, mask)


def outputs_mask(mask: Any, y: Any) -> Tensor | None:
    """Which outputs exist, by a mask with a truth for each of them or for each token `(N, T)` of several; else `None`.

    >>> outputs_mask(torch.tensor([[True, False]]), torch.zeros(1, 2, 2))
    tensor([[[ True,  True],
             [False, False]]])
    """
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool or not isinstance(y, Tensor):
        return None
    if mask.shape == y.shape:
        return mask
    size = mask.dim()
    while size > 2 and mask.shape[size - 1] == 1:  # one truth for all that a token has
        size -= 1
    if not 1 < size < y.dim() or mask.shape[:size] != y.shape[:size] or mask.dim() not in (size, y.dim()):
        return None
    return mask.reshape(*mask.shape[:size], *[1] * (y.dim() - size)).expand(y.shape)


def names_mask(loss: Any, place: int) -> bool:
    """Whether the target at this place, counted from 1, is called `mask` by the loss itself."""
    own = takes_mask(loss)
    signature = None if own and torch.compiler.is_compiling() else signature_of(loss)
    if signature is None:  # losses of this library have it behind other targets
        return own and place > 1
    return list(signature.parameters)[place : place + 1] == ["mask"]


def takes_mask(loss: Any) -> bool:
    """Whether a loss says of itself that it takes a mask of outputs, as the library's do, with targets bound or not."""
    return bool(getattr(loss.func if isinstance(loss, partial) else loss, "takes_mask", False))


def name_of(loss: Any) -> str:
    """How an error message calls a loss."""
    return name_of(loss.func) if isinstance(loss, partial) else getattr(loss, "__name__", type(loss).__name__)


def check_targets(loss: Any, y: Any, targets: tuple[Any, ...]) -> None:
    """Raise if the loss cannot be called with so many targets; asked after a call that has failed."""
    signature = signature_of(loss)
    if signature is None:
        return
    try:
        signature.bind(y, *targets)
    except TypeError as error:
        listed = ", ".join(signature.parameters)
        raise ArgumentError(
            f"The loss {name_of(loss)}({listed}) was called with the outputs and {len(targets) or 'no'} "
            f"target{'' if len(targets) == 1 else 's'}: {error}. Targets follow the outputs, by position or by name."
        ) from None


def signature_of(loss: Any) -> inspect.Signature | None:
    """What a loss is called with; a builtin does not say."""
    if isinstance(loss, partial) and isinstance(loss.func, torch.nn.Module):
        loss = partial(loss.func.forward, *loss.args, **loss.keywords)
    called = loss.forward if isinstance(loss, torch.nn.Module) else loss
    function = called.__func__ if isinstance(called, MethodType) else called
    if torch.compiler.is_compiling() or not isinstance(function, FunctionType):
        return _looked_up(called)
    known = _signatures.setdefault(function, {})
    if type(called) not in known:  # of a method it is another one
        known[type(called)] = _looked_up(called)
    return known[type(called)]


def _looked_up(called: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(called)
    except (TypeError, ValueError):
        return None


# Looking one up takes as long as several operations of torch.
_signatures: "WeakKeyDictionary[Any, dict[type, inspect.Signature | None]]" = WeakKeyDictionary()


def _by_position(
    loss: Any, y: Any, targets: tuple[Any, ...], named: dict[str, Any], where: str
) -> tuple[Any, tuple[Any, ...]]:
    """`loss(y, target=t)` as `loss(y, t)`."""
    if hasattr(loss, "expand"):
        called: Callable[..., Any] = loss.expand
        own = inspect.signature(called)
        signature: inspect.Signature | None = own
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in own.parameters.values()):
            # Its targets are those of its forward, where that can be asked.
            forward = signature_of(loss) if isinstance(loss, torch.nn.Module) else None
            if forward is None or torch.compiler.is_compiling():
                return _WithNamed(loss, named), targets
            bound = _bound(forward, y, targets, named, where)
            return _WithNamed(loss, bound.kwargs) if bound.kwargs else loss, bound.args[1:]
    else:
        signature = None if torch.compiler.is_compiling() else signature_of(loss)
    if signature is None:
        return _with_targets(loss, named), targets
    # What can only be given by position has a place, too, and its name is nobody's.
    placed = [one for one in signature.parameters.values() if one.kind <= one.POSITIONAL_OR_KEYWORD]
    places = [one.name if one.kind else "" for one in placed]
    following = places[1 + len(targets) :][: len(named)]
    if following and following == list(named) and not hasattr(loss, "expand"):  # in a tenth of the time
        return loss, (*targets, *named.values())
    if hasattr(loss, "expand"):  # what it takes by name only are its options
        listed = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        signature = signature.replace(parameters=listed)
    bound = _bound(signature, y, targets, named, where)
    if hasattr(loss, "expand"):
        bound.apply_defaults()
    return _with_targets(loss, bound.kwargs) if bound.kwargs else loss, bound.args[1:]


def _bound(
    signature: inspect.Signature, y: Any, targets: tuple[Any, ...], named: dict[str, Any], where: str
) -> inspect.BoundArguments:
    try:
        return signature.bind(y, *targets, **named)
    except TypeError as error:
        names, came = ", ".join(list(signature.parameters)[1:]), ", ".join(named)
        raise ArgumentError(
            f"{where}: {error}. The loss takes the targets ({names}); named in the call: {came}."
        ) from None


class _WithNamed:
    """A loss that brings its own expansion, and takes some targets by name."""

    def __init__(self, loss: Any, named: dict[str, Any]) -> None:
        self._loss, self._named = loss, named
        self.__name__ = name_of(loss)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loss, name)

    def expand(self, y: Tensor, *targets: Any, **options: Any) -> Any:
        return self._loss.expand(y, *targets, **self._named, **options)

    def doubts(self, y: Tensor, *targets: Any) -> list[str]:
        own = getattr(self._loss, "doubts", None)
        return [] if own is None else own(y, *targets, **self._named)


def is_exchangeable(loss: object, choice: bool | None) -> bool:
    """What the caller said, else what the loss says of itself."""
    return bool(getattr(loss, "exchangeable", False) if choice is None else choice)


def with_mask(
    loss: Any, y: Tensor, targets: tuple[Any, ...], mask: Tensor | None
) -> tuple[Any, tuple[Any, ...], Tensor | None]:
    """A loss that takes a mask, with it: the library's do as the last of the targets, and any that calls one so."""
    could_be = [outputs_mask(one, y) for one in targets if mask is None]
    named = [one for place, one in enumerate(could_be, 1) if one is not None and names_mask(loss, place)]
    if not takes_mask(loss):
        mask = named[0] if named and not hasattr(loss, "expand") else mask
        if mask is not None and hasattr(loss, "expand"):
            _check_expands_with_mask(loss)
        return loss, targets, mask
    if named and named[0] is targets[-1]:
        mask, targets = named[0], targets[:-1]
    if mask is None or hasattr(loss, "expand"):
        return loss, targets, mask
    return _with_targets(loss, {"mask": mask}), targets, mask


def _check_expands_with_mask(loss: Any) -> None:
    """Raise if a loss that brings its own expansion has no place for a mask in it."""
    kinds = inspect.signature(loss.expand).parameters
    if "mask" not in kinds and all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in kinds.values()):
        raise ArgumentError(
            f"The loss {name_of(loss)} brings its own derivatives, and its method expand takes no mask. Without a mask "
            "all outputs count, padded ones as well; lists of different lengths have to come in batches of one length."
        )


# Nested tensors


def is_nested(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_nested


def pad_nested(nested: Tensor, name: str, where: str, fill: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Lists `(N, j)` as `(N, n)`, their mask, and the offsets of them one behind the other; gradients flow back."""
    if not nested.is_nested or nested.layout is not torch.jagged:
        raise ArgumentError(
            f"{where}: {name} are {'a nested tensor in strided layout' if nested.is_nested else 'not nested'}. "
            "Use layout=torch.jagged, or pad the lists and pass a mask."
        )
    if nested.ndim != 2:
        raise ShapeError(f"{where}: nested {name} have {nested.ndim} dimensions. Pass lists of numbers, shape (N, j).")
    offsets: Tensor = nested.offsets()  # type: ignore[attr-defined]
    lengths: Tensor | None = nested.lengths()  # type: ignore[attr-defined]
    padded, mask = pad_values(nested.values(), offsets, fill, lengths)
    if lengths is not None:  # there are holes behind the lists, and not behind what is made from them
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return padded, mask, offsets


def pad_values(
    values: Tensor, offsets: Tensor, fill: float = 0.0, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Lists one behind the other, `(Σ nᵢ,)`, as `(N, n)` and their mask; list i begins at offset i.

    Without `lengths` it goes to offset i + 1.
    """
    lengths = offsets.diff() if lengths is None else lengths
    width = max(1, int(lengths.max())) if len(lengths) else 1
    place = torch.arange(width, device=values.device)
    mask = place < lengths.unsqueeze(-1)
    if values.shape[0] == 0:
        none = values.new_full(mask.shape, fill)
        return none + values.sum() if values.is_floating_point() else none, mask  # with a graph, of nothing
    index = (offsets[:-1].unsqueeze(-1) + place).clamp(max=values.shape[0] - 1)
    return torch.where(mask, values[index], torch.as_tensor(fill, dtype=values.dtype, device=values.device)), mask


def padded_outputs(
    y: Tensor, targets: tuple[Any, ...], named: dict[str, Any], mask: Tensor | None, where: str
) -> tuple[Tensor, tuple[Any, ...], dict[str, Any], Tensor]:
    """Nested outputs and targets, by position and by name, as padded ones, and which outputs exist."""
    if mask is not None:
        raise ArgumentError(f"{where}: nested outputs say themselves which of them exist. Pass no mask with them.")
    padded, exists, _ = pad_nested(y, "outputs", where)

    def pad(target: Any) -> Any:
        if not is_nested(target):
            return target
        other, same, _ = pad_nested(target, "targets", where)
        if same.shape != exists.shape or bool((same != exists).any()):
            raise ShapeError(f"{where}: the nested outputs and targets have lists of different lengths.")
        return other

    # Within containers, too.
    others = tuple(changed(target, pad) for target in targets)
    return padded, others, {name: changed(target, pad) for name, target in named.items()}, exists
