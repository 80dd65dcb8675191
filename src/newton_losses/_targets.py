"""The targets of a loss for fewer samples and in another precision, whatever containers they come in."""

import copy
import dataclasses
import operator
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy
import torch
from torch import Tensor


def picked(target: Any, chosen: Tensor, count: int) -> Any:
    """The target of the `chosen` ones of `count` samples. What has one entry per sample is known by its length alone.

    >>> picked({"rank": torch.arange(3), "names": ["a", "b", "c"], "top": 2}, torch.tensor([0, 2]), 3)
    {'rank': tensor([0, 2]), 'names': ['a', 'c'], 'top': 2}
    """

    def pick(part: Any) -> Any:
        if isinstance(part, Tensor) and _has_rows(part, count):
            return part[chosen.to(part.device)]
        if isinstance(part, numpy.ndarray) and _has_rows(part, count):
            return part[chosen.cpu().numpy()]
        if is_listed(part, count):
            return type(part)(part[index] for index in chosen.tolist())
        return part

    return changed(target, pick)


def is_listed(part: Any, count: int) -> bool:
    """Whether this is a list of one entry per sample, and not of tensors that have one each, alone or among others."""
    if type(part) not in (list, tuple) or len(part) != count:
        return False
    tensors = [isinstance(one, Tensor | numpy.ndarray) for one in part]
    return not any(tensors) or (all(tensors) and not all(_has_rows(one, count) for one in part))


def cast(target: Any, dtype: torch.dtype) -> Any:
    """The same target with its floating tensors and arrays of that type; itself if there is nothing to change."""

    def convert(part: Any) -> Any:
        if isinstance(part, Tensor) and part.is_floating_point():
            return part.to(dtype)
        if isinstance(part, numpy.ndarray) and part.dtype.kind == "f":
            return part.astype(torch.empty(0, dtype=dtype).numpy().dtype, copy=False)
        return part

    return changed(target, convert)


def _has_rows(part: Any, count: int) -> bool:
    return isinstance(part, Tensor | numpy.ndarray) and part.ndim > 0 and part.shape[0] == count


def changed(
    target: Any,
    change: Callable[[Any], Any],
    *,
    is_whole: Callable[[Any], bool] | None = None,
    above: frozenset[int] = frozenset(),
) -> Any:
    """`change` for the target or, where it leaves that as it is, for all that is within; not for what `is_whole`.

    What contains itself is looked into once.
    """
    done = change(target)
    if done is not target or id(target) in above or (is_whole is not None and is_whole(target)):
        return done

    def within(part: Any) -> Any:
        return changed(part, change, is_whole=is_whole, above=above | {id(target)})

    if isinstance(target, list | tuple):
        entries = [within(entry) for entry in target]
        if all(map(operator.is_, entries, target)):
            return target
        return getattr(type(target), "_make", type(target))(entries)  # a named tuple takes no list
    rebuilt: Any = target
    if isinstance(target, MutableMapping):
        inside = {key: within(value) for key, value in target.items()}
        new = {key: value for key, value in inside.items() if value is not target[key]}
        rebuilt = copy.copy(target) if new else target
        for key, value in new.items():
            rebuilt[key] = value
    if dataclasses.is_dataclass(target) and not isinstance(target, type):  # which may be a mapping, too
        for one in dataclasses.fields(target):
            old = getattr(target, one.name, None)
            value = within(old)
            if value is not old:
                rebuilt = copy.copy(target) if rebuilt is target else rebuilt
                object.__setattr__(rebuilt, one.name, value)  # also into a frozen one, and past its __post_init__
    return rebuilt


def own_copy(target: Any) -> Any:
    """A copy that a loss may change: its tensors, arrays, lists and dictionaries are its own.

    >>> batch = {"rank": torch.arange(2), "top": [3]}
    >>> copied = own_copy(batch)
    >>> copied["rank"] += 1
    >>> copied["top"].append(4)
    >>> batch
    {'rank': tensor([0, 1]), 'top': [3]}
    """

    def copied(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.clone()
        if isinstance(part, numpy.ndarray):
            return part.copy()
        if type(part) is list:
            return [own_copy(entry) for entry in part]
        return {key: own_copy(value) for key, value in part.items()} if type(part) is dict else part

    return changed(target, copied)


class _Same:
    """Equal to what holds the same object, and no other: unlike its id, which another one may get after its end."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.part is other.part

    __hash__ = None  # type: ignore[assignment]


def traces(target: Any) -> list[Any]:
    """What differs once the target has been changed: its parts, and how often its tensors were written to.

    >>> batch = {"rank": torch.arange(2)}
    >>> before = traces(batch)
    >>> batch["rank"] -= 1
    >>> traces(batch) == before
    False
    """
    found: list[Any] = []

    def look(part: Any) -> Any:
        version = part._version if isinstance(part, Tensor) and not part.is_inference() else None
        numbers = part.tobytes() if isinstance(part, numpy.ndarray) else None
        found.append((_Same(part), version, numbers))
        return part

    changed(target, look)
    return found
