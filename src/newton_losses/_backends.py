"""Packages that make things faster where they are installed, and are imported only where they are used.

Here is what keeps one from being used, whether Triton's kernels run, how they are launched, and how numba compiles one.
The kernels live with what they compute.
"""

import importlib.util
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from ._arguments import one_of
from ._tracing import sees_operators
from .errors import ArgumentError

# Torch's operators, or Triton's kernels instead; "auto" is Triton on CUDA and torch elsewhere.
TritonOrTorch = Literal["auto", "triton", "torch"]
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


# Asked once: a compiler does not look into a cached function.
HAS_TRITON = obstacle("triton") is None


def triton_or_torch(backend: str, where: str) -> TritonOrTorch:
    """`backend`, if it exists and is installed."""
    chosen: TritonOrTorch = one_of(backend, ("auto", "triton", "torch"), "backend", where)
    if chosen == "triton" and (reason := obstacle(chosen)):
        raise ArgumentError(
            f"{where}: backend 'triton' {reason}. backend='torch' needs nothing and gives the same numbers."
        )
    return chosen


def takes_triton(backend: TritonOrTorch, tensor: Tensor, size: int, largest: int) -> bool:
    """Whether Triton's kernels compute with this tensor, for problems of this size.

    They step aside on other devices than CUDA, for problems that do not fit into a program, and where a compiler or a
    transform of torch.func needs to see the operators. Triton's interpreter runs them on the CPU.
    """
    if backend == "torch" or size > largest or sees_operators():
        return False
    device = tensor.device.type
    interpreted = backend == "triton" and device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    return (device == "cuda" or interpreted) and not obstacle("triton")


_launched: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, programs: int, given: tuple[Any, ...], constants: dict[str, Any], warps: int) -> None:
    """Launch one of Triton's kernels; `given` begins with a tensor on the current device, and `constants` follow it.

    Triton looks the compiled kernel up at every launch, which takes as long as ten operations. Here that is done once
    per specialization; its switches for debugging have no effect on what was looked up before.
    """
    key = (id(kernel), given[0].get_device(), warps, *constants.values(), *map(_specialization_of, given))
    cached = _launched.get(key)
    if cached is not None:
        compiled_kernel, constant_values = cached
        compiled_kernel[programs, 1, 1](*given, *constant_values)
        return
    compiled_kernel = kernel[programs,](*given, **constants, num_warps=warps)
    if compiled_kernel is not None:  # Triton's interpreter compiles nothing
        names = kernel.arg_names[len(given) :]
        _launched[key] = compiled_kernel, tuple(constants[name] for name in names)


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """Kernels are launched on the current device; changing it costs more than the launch, and is seldom needed."""
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


def parts_of(number: int, part: int) -> int:
    """⌈number / part⌉. (Triton's own function takes as long as an operation.)"""
    return -(-number // part)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`, which is positive."""
    return 1 << (number - 1).bit_length()


def _specialization_of(argument: Any) -> object:
    """What Triton compiles for: the dtype and alignment of a tensor, and what it knows of a whole number."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if type(argument) is int:
        return argument == 1, argument % 16 == 0, -(2**31) <= argument < 2**31
    return type(argument)


_one_at_a_time = threading.Lock()
# Seconds after which somebody who waits for a compiler wants to know what for.
PATIENCE = 2.0


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Around the first call of what numba compiles: one thread at a time, and without its warnings."""
    sentence = f"newton_losses is compiling {what} for this machine, about ten seconds; numba keeps the result."
    notice = threading.Timer(PATIENCE, logging.getLogger("newton_losses").warning, [sentence])
    notice.daemon = True
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        notice.start()
        try:
            yield
        finally:
            notice.cancel()


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
