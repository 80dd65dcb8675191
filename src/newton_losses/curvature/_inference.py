"""Derivatives in inference mode, in which torch has no tape."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

Given = ParamSpec("Given")
T = TypeVar("T")


def outside_inference_mode(function: Callable[Given, T]) -> Callable[Given, T]:
    """`function`, which takes derivatives, called with ordinary tensors as if inference mode was off.

    In there the torch.func of older versions finds every gradient to be zero, without a word.

    >>> slope = outside_inference_mode(torch.func.grad(torch.sin))
    >>> with torch.inference_mode():
    ...     slope(torch.zeros(()))
    tensor(1.)
    """

    # In quotes for a compiler, which guards what it evaluates, and these are new objects each time.
    @wraps(function)
    def wrapped(*given: "Given.args", **options: "Given.kwargs") -> T:
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            return function(*given, **options)
        with torch.inference_mode(False):
            ordinary = (one.clone() if isinstance(one, Tensor) and one.is_inference() else one for one in given)
            return function(*ordinary, **options)  # type: ignore[arg-type]

    return wrapped
