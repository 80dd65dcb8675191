"""What a loss keeps between calls, put back after calls that are no part of training.

Buffers, generators, and attributes that are numbers, flags, words or tensors. Looked for in the loss itself and one
level within it: what a partial binds, whose method it is, what a function closes over, and the attributes of an object.
Lists, what is bound in a closure itself, globals, and tensors of more than 16 million entries stay as the calls left
them.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import MethodType, ModuleType
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Given = ParamSpec("Given")
T = TypeVar("T")
GENERATORS = (torch.Generator, numpy.random.Generator, numpy.random.RandomState, random.Random)
PLAIN = (bool, int, float, complex, str, bytes, Tensor)
# Of larger tensors no copy is made.
MOST_NUMBERS = 2**24


def _parts(loss: object) -> list[object]:
    """The loss and what it holds, with all modules that are in either."""
    found: list[object] = [loss]
    while isinstance(loss, partial):
        found += [*loss.args, *loss.keywords.values(), loss.func]
        loss = loss.func
    owner, function = (loss.__self__, loss.__func__) if isinstance(loss, MethodType) else (loss, loss)
    found += [owner, *getattr(owner, "__dict__", {}).values()]
    found += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
    within = [one for part in found if isinstance(part, nn.Module) for one in part.modules()]
    return list({id(one): one for one in (*found, *within)}.values())


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that is bound later
        return False


def generators_of(loss: object) -> list[Any]:
    """Those that the loss holds, or one of the modules in it: torch's, NumPy's and Python's.

    >>> noise = torch.Generator()
    >>> generators_of(partial(torch.normal, generator=noise)) == [noise]
    True
    """
    parts = _parts(loss)
    kept = [*parts, *(one for part in parts if isinstance(part, nn.Module) for one in vars(part).values())]
    found = {id(one): one for one in kept if isinstance(one, GENERATORS)}
    return [one for one in found.values() if not isinstance(one, random.SystemRandom)]  # which has no state


def state_of(generator: Any) -> Any:
    """Where a generator of any kind is."""
    if isinstance(generator, numpy.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def put_state(generator: Any, state: Any) -> None:
    if isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def seed_generator(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)


@contextmanager
def same_draws(loss: object) -> Iterator[None]:
    """Put the loss's generators back at the end, so that the next call draws the same."""
    states = [(generator, state_of(generator)) for generator in generators_of(loss)]
    try:
        yield
    finally:
        for generator, state in states:
            put_state(generator, state)


@contextmanager
def unchanged(loss: object) -> Iterator[None]:
    """Put back at the end what the loss keeps: buffers, plain attributes, what is in either, and generators.

    All of it or nothing: a mean without the number of calls that it is a mean over would be worse than both changed.
    """
    parts = _parts(loss)
    buffers = [(one._buffers, dict(one._buffers)) for one in parts if isinstance(one, nn.Module)]
    attributes = [(found, _plain(found)) for part in parts if (found := _attributes(part)) is not None]
    kept = [*buffers, *attributes]
    tensors = {id(one): one for _, before in kept for one in before.values() if isinstance(one, Tensor)}
    contents = [(one, one.detach().clone()) for one in tensors.values() if _can_be_copied(one)]
    with same_draws(loss):
        try:
            yield
        finally:
            for there, before in kept:
                for name in set(_plain(there)) - set(before):
                    del there[name]
                there.update(before)
            for one, content in contents:
                _put_back(one, content)


def _attributes(part: object) -> dict[str, Any] | None:
    found = getattr(part, "__dict__", None)
    return None if isinstance(part, type | ModuleType) or type(found) is not dict else found


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """Those that are numbers, flags, words or tensors."""
    return {name: one for name, one in attributes.items() if one is None or isinstance(one, PLAIN)}


def _can_be_copied(tensor: Tensor) -> bool:
    return not is_lazy(tensor) and tensor.numel() <= MOST_NUMBERS


def _put_back(tensor: Tensor, content: Tensor) -> None:
    """What was in a tensor, if it is not there any more: nothing is written to memory that may only be read."""
    with torch.inference_mode(tensor.is_inference()):
        if tensor.shape != content.shape:
            tensor.data = content
            return
        is_dense = tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)
        if not (is_dense and torch.equal(tensor, content)):
            # As data: a graph that holds the tensor, of the caller's own last call, need not hear of this.
            tensor.data.copy_(content)


def leaves_unchanged(check: Callable[Concatenate[Any, Given], T]) -> Callable[Concatenate[Any, Given], T]:
    """A check that is called with a loss first, and leaves it as it was.

    >>> norm = nn.BatchNorm1d(2)
    >>> called = leaves_unchanged(lambda loss, y: loss(y))(norm, torch.ones(3, 2))
    >>> norm.num_batches_tracked
    tensor(0)
    """

    @wraps(check)
    def wrapped(loss: Any, *given: Given.args, **options: Given.kwargs) -> T:
        with unchanged(loss):
            return check(loss, *given, **options)

    return wrapped  # type: ignore[return-value]
