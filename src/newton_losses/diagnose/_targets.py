"""Targets of any kind, for fewer samples and in another precision: tensors, arrays, and lists and dicts of them.

What has one entry per sample is told by its length alone; whether that guess holds is checked in `_parts.py`.
"""

import copy
import operator
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy
import torch
from torch import Tensor

# A target or a part of it ↦ what takes its place, or itself.
Change = Callable[[Any], Any]


def picked(target: Any, chosen: Tensor, count: int) -> Any:
    """The target of the `chosen` ones of `count` samples.

    >>> picked({"rank": torch.arange(3), "names": ["a", "b", "c"], "top": 2}, torch.tensor([0, 2]), 3)
    {'rank': tensor([0, 2]), 'names': ['a', 'c'], 'top': 2}
    """

    def pick(part: Any) -> Any:
        if isinstance(part, Tensor) and _has_rows(part, count):
            return part[chosen.to(part.device)]
        if isinstance(part, numpy.ndarray) and _has_rows(part, count):
            return part[chosen.cpu().numpy()]
        # A pair of tensors for two samples each is not a list of two samples.
        if type(part) in (list, tuple) and len(part) == count and not all(_has_rows(one, count) for one in part):
            return type(part)(part[index] for index in chosen.tolist())
        return part

    return _changed(target, pick)


def cast(target: Any, dtype: torch.dtype) -> Any:
    """The same target with its floating tensors and arrays of that type; itself where there is nothing to change."""

    def convert(part: Any) -> Any:
        if isinstance(part, Tensor) and part.is_floating_point():
            return part.to(dtype)
        if isinstance(part, numpy.ndarray) and part.dtype.kind == "f":
            return part.astype(torch.empty(0, dtype=dtype).numpy().dtype, copy=False)
        return part

    return _changed(target, convert)


def _has_rows(part: Any, count: int) -> bool:
    return isinstance(part, Tensor | numpy.ndarray) and part.ndim > 0 and part.shape[0] == count


def _changed(target: Any, change: Change) -> Any:
    """`change` for the target or, where it leaves that as it is, for all that is within."""
    done = change(target)
    if done is not target:
        return done
    if isinstance(target, MutableMapping):
        inside = {key: _changed(value, change) for key, value in target.items()}
        if all(inside[key] is value for key, value in target.items()):
            return target
        rebuilt = copy.copy(target)
        rebuilt.update(inside)
        return rebuilt
    if isinstance(target, list | tuple):
        entries = [_changed(entry, change) for entry in target]
        if all(map(operator.is_, entries, target)):
            return target
        return getattr(type(target), "_make", type(target))(entries)  # a named tuple takes no list
    return target
