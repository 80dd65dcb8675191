"""Whether torch is running operators, or only looking at them or recording them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .errors import ArgumentError


def sees_operators() -> bool:
    """Whether a compiler or a transform of torch.func is at work: kernels of one's own would be invisible to it."""
    return torch.compiler.is_compiling() or bool(torch._C._are_functorch_transforms_active())


def is_watched(tensor: Tensor) -> bool:
    """Whether somebody records operators or puts others in their place, so that a kernel has to be one.

    Elsewhere it is called as the function it is: torch's operators of our own import its compiler at their first call,
    which takes seconds.
    """
    if sees_operators() or type(tensor) is not Tensor:  # in this order: a compiler cannot ask the rest
        return True
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None


def is_captured(device: torch.device) -> bool:
    """Whether a CUDA graph is being recorded, in which nothing may be read back, nor the random state be touched."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


# What packs the tensors that are saved for the way back, as a checkpoint does.
top_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)


def unpacked_saves() -> AbstractContextManager[Any]:
    """A context in which tensors are saved as they are, and not counted.

    A checkpoint does, and wants as many when it computes once more.
    """
    is_packed = top_hooks(True) is not None
    return torch.autograd.graph.saved_tensors_hooks(_itself, _itself) if is_packed else nullcontext()


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def refuse_export() -> None:
    """Raise where `torch.export` is recording a program. (Versions before 2.7 do not tell.)

    Inside torch.compile, some versions take every question of this kind for true.
    """
    if torch.compiler.is_dynamo_compiling():
        return
    if torch.compiler.is_compiling() and getattr(torch.compiler, "is_exporting", bool)():
        raise ArgumentError(
            "NewtonLoss: torch.export cannot record the derivatives of a loss that a Newton step is made of. Export "
            "the network without it, or the loss's value alone, under torch.no_grad()."
        )


def inside_transform() -> bool:
    """Whether a transform of torch.func is at work, also while it is compiled."""
    return bool(torch._C._are_functorch_transforms_active())


def inside_vmap() -> bool:
    """Whether a `torch.func.vmap` is active, inside of which no tensor has one value."""
    levels = torch._C._functorch.get_interpreter_stack() or []
    return any(level.key() == torch._C._functorch.TransformType.Vmap for level in levels)


def is_differentiated_otherwise() -> bool:
    """Whether a transform of torch.func or forward mode is at work, which `requires_grad` does not show."""
    return inside_transform() or torch.autograd.forward_ad._current_level >= 0
