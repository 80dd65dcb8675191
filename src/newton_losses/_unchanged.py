"""What a loss keeps between calls, put back after calls that are no part of training: buffers and random generators.

Looked for in the loss itself and one level within it: what a partial binds, whose method it is, what a function closes
over, and the attributes of an object. Numbers, lists and tensors that are no buffers stay as the calls left them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import MethodType
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Given = ParamSpec("Given")
T = TypeVar("T")


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


def generators_of(loss: object) -> list[torch.Generator]:
    """Those that the loss holds, or one of the modules in it.

    >>> noise = torch.Generator()
    >>> generators_of(partial(torch.normal, generator=noise)) == [noise]
    True
    """
    parts = _parts(loss)
    kept = [*parts, *(one for part in parts if isinstance(part, nn.Module) for one in vars(part).values())]
    return list({id(one): one for one in kept if isinstance(one, torch.Generator)}.values())


@contextmanager
def unchanged(loss: object) -> Iterator[None]:
    """Put the loss's buffers, the tensors and what is in them, and its generators back at the end."""
    modules = [part for part in _parts(loss) if isinstance(part, nn.Module)]
    buffers = [(module, name, one, _copy(one)) for module in modules for name, one in module._buffers.items()]
    generators = [(generator, generator.get_state()) for generator in generators_of(loss)]
    try:
        yield
    finally:
        for generator, state in generators:
            generator.set_state(state)
        for module, name, one, content in buffers:
            if name not in module._buffers or module._buffers[name] is not one:
                module._buffers[name] = one
            if one is not None and content is not None:
                # As data: a graph that holds the buffer, of the caller's own last call, need not hear of this.
                with torch.inference_mode(one.is_inference()):
                    one.data.copy_(content)


def _copy(buffer: Tensor | None) -> Tensor | None:
    return None if buffer is None or is_lazy(buffer) else buffer.detach().clone()


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
