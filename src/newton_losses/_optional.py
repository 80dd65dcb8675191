"""Packages that make things faster where they are installed, and are imported only where they are used.

Here is whether one is there, and how numba compiles a kernel. The kernels live with what they compute.
"""

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def is_installed(package: str) -> bool:
    """Whether the package could be imported; numba and triton are too slow to import to find that out."""
    return importlib.util.find_spec(package) is not None


def compiled(function: Function) -> Function:
    """Compile by numba at the first call, and keep the result on disk where that is possible.

    Without the interpreter's lock, so that work can be spread over threads; never with fast-math, which would
    change the sums; and division by zero gives infinity or NaN, as everywhere in torch.
    """
    import numba

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # numba found no folder that it could write to
        return cast(Function, numba.njit(**options)(function))
