"""Packages that make things faster where they are installed, and are imported only where they are used.

Here is what keeps one from being used, and how numba compiles a kernel. The kernels live with what they compute.
"""

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def obstacle(package: str) -> str | None:
    """What keeps numba or triton from being used, as the end of a sentence; `None` if nothing does.

    Neither is imported to find that out: they are too slow. Triton comes with torch, and its earlier versions lack
    parts of the language that the kernels are written in.
    """
    if importlib.util.find_spec(package) is None:
        return f"is not installed: pip install {'newton-losses[numba]' if package == 'numba' else package}"
    if package == "triton" and torch.__version__ < "2.10":
        return f"needs torch 2.10 or later, and this is {torch.__version__}"
    if package == "triton" and torch.version.hip is not None:
        return "is for NVIDIA's GPUs alone"
    return None


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
