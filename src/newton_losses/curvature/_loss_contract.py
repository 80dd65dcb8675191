"""Calling a loss so that per-sample derivatives come out: flat outputs in, the sum of per-sample losses out.

Precision, autocast, inference mode, shapes and the loss's reduction are settled here, once; the derivatives
themselves are in `_derivatives.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from .._arguments import check_targets, name_of
from ..errors import ArgumentError, NewtonLossesError, ShapeError
from ._options import Reduction

Loss = Callable[..., Tensor]
# Torch gives an operation of more elements than this to several threads. What is smaller stays with one here, and so do
# the libraries of linear algebra, which would wake the others for ten numbers: on a busy machine that costs 50 ms.
ONE_THREAD_ELEMENTS = 2**15
# Entering autocast costs more than most operations of a step.
_NOTHING_TO_DO: AbstractContextManager[Any] = nullcontext()
# Maps flat outputs (N, m) to two tensors: one whose sum is Σ ℓᵢ, which automatic differentiation works on, and the
# values (N,). The first is not summed here: the engine of autograd takes it as it is, and needs two operations less.
Total = Callable[[Tensor], tuple[Tensor, Tensor]]


def check_outputs(y: Tensor) -> None:
    """Refuse what cannot be outputs `(N, ...)`."""
    if not isinstance(y, Tensor):
        raise ArgumentError(
            f"The outputs have to be a tensor of shape (N, ...), got {type(y).__name__}. Several are joined, "
            "torch.cat([first, second], 1), and split again in the loss."
        )
    if y.is_nested:
        raise ArgumentError(
            "The outputs are a nested tensor. NewtonLoss and newton_loss take one in jagged layout; elsewhere pad it, "
            "y, mask = sorting.pad_lists(y), and pass mask= where there is one."
        )
    if y.dim() == 0:
        raise ShapeError(
            "The outputs are a scalar. They need a batch dimension first, (N, ...); "
            "y.reshape(1, 1) is one sample with one output."
        )
    if not y.dtype.is_floating_point or y.dtype.itemsize < 2:
        raise ArgumentError(
            f"The outputs are {y.dtype}; a loss is differentiated at real, floating outputs of 16 bits at least."
        )
    if not torch.compiler.is_compiling() and y.layout is not torch.strided:
        raise ArgumentError(f"The outputs are {y.layout}; a loss is differentiated at dense ones, y.to_dense().")


def flatten_outputs(y: Tensor) -> Tensor:
    """The outputs as detached `(N, m)`, in float32 at least, after checking that they can be outputs."""
    is_plain = not torch.compiler.is_compiling() and type(y) is Tensor and y.layout is torch.strided
    if is_plain and y.dtype is torch.float32 and y.dim() == 2 and not (y.is_meta or y.is_nested):  # as most are
        return y.detach()
    check_outputs(y)
    if y.is_meta:
        raise ArgumentError(
            "The outputs are on the meta device: they have a shape and no values, and a loss has no derivatives there. "
            "Move them to a device, or leave the loss out."
        )
    wide = widen(y.detach())
    if y.dim() == 2:
        return wide
    return wide.flatten(1) if y.dim() > 1 else wide.unsqueeze(1)


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which autocast does not turn matrix products into 16 bits, forward or backward."""
    if torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled():
        return torch.autocast(device_type=tensor.device.type, enabled=False)
    return _NOTHING_TO_DO


def one_thread(tensor: Tensor, elements: int) -> AbstractContextManager[Any]:
    """A context with one thread on a CPU, for work on tensors of at most so many `elements`."""
    if not tensor.is_cpu or elements > ONE_THREAD_ELEMENTS or torch.compiler.is_compiling():
        return _NOTHING_TO_DO
    threads = torch.get_num_threads()
    return _NOTHING_TO_DO if threads == 1 else _one_of(threads)


@contextmanager
def _one_of(threads: int) -> Iterator[None]:
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def widen(tensor: Tensor) -> Tensor:
    """At least float32: derivatives in 16 bits would be noise."""
    if tensor.dtype is torch.float32:
        return tensor
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def make_total(loss: Loss, shape: torch.Size, targets: tuple[Any, ...], reduction: Reduction | None) -> Total:
    """The function flat outputs ↦ (what sums to Σ ℓᵢ, values), whatever the reduction of `loss`.

    A loss that returns one value per sample is both. A mean over the batch is multiplied by N, so
    that the gradient of the total is ∇ℓᵢ again. The values of a reduced loss are not known one by
    one: each is then the batch's mean.
    """
    count = shape[0]

    # In quotes: the compiler of torch 2.6 evaluates the annotation and does not know what to make of it.
    def total(flat: Tensor) -> "tuple[Tensor, Tensor]":
        outputs = flat if flat.shape == shape else flat.reshape(shape)
        out = loss(outputs, *targets) if torch.compiler.is_compiling() else called(loss, outputs, targets)
        check_values(out, shape, reduction, loss)
        if out.dim() == 1:
            return out, out
        if reduction == "sum":
            return out, (out / count).expand(count)
        return out * count, out.expand(count)

    return total


def called(loss: Loss, outputs: Tensor, targets: tuple[Any, ...]) -> Tensor:
    """`loss(outputs, *targets)`, whose errors say what it was called with. Not for compilers."""
    try:
        return loss(outputs, *targets)
    except Exception as error:
        explain(error, loss, outputs, targets)
        raise


def explain(error: Exception, loss: Loss, outputs: Tensor, targets: tuple[Any, ...]) -> None:
    """Say with what the loss was called, beside the words of torch, which knows no outputs and targets."""
    if isinstance(error, TypeError):
        check_targets(loss, outputs, targets)
    if not isinstance(error, NewtonLossesError) and not getattr(error, "__notes__", None):
        given = ", ".join(map(_described, targets)) or "no targets"
        advice = "Do outputs and targets have the shape, dtype and range that it expects?"
        if "numpy" in str(error).lower():
            advice = "NumPy has no gradients: newton_losses.smoothing.SmoothedLoss can wrap such a function."
        if outputs.is_floating_point() and "scalar type" in str(error):
            advice += " Autocast is off in here, and outputs of 16 bits come in float32: convert with target.float()."
        stored = loss.parameters() if isinstance(loss, torch.nn.Module) else ()
        if any(one.is_floating_point() and one.dtype != outputs.dtype for one in stored):
            advice = f"Its own weights are in another precision than the outputs it gets: loss.to({outputs.dtype})."
        if "leaf Variable that requires grad is being used in an in-place" in str(error):
            advice = "It changes its outputs in place. Begin it with y = y.clone()."
        error.add_note(
            f"The loss {name_of(loss)} raised this when it was called with outputs {_described(outputs)} and {given}. "
            f"{advice}"
        )


def _described(thing: Any) -> str:
    if not isinstance(thing, Tensor):
        return f"a {type(thing).__name__}"
    return f"{tuple(thing.shape)} of {str(thing.dtype).removeprefix('torch.')}"


def check_values(out: object, shape: torch.Size, reduction: Reduction | None, loss: Loss) -> None:
    count = shape[0]
    if isinstance(out, Tensor) and out.is_floating_point():
        if out.dim() == 1 and out.shape[0] == count and reduction in (None, "none"):
            return
        if out.dim() == 0 and reduction != "none":
            return
    name, wanted = name_of(loss), f"({count},)"
    if not isinstance(out, Tensor):
        cure = "Return the loss alone" if isinstance(out, tuple | list | dict) else "Return a tensor, without .item()"
        raise ArgumentError(
            f"The loss {name} returned a {type(out).__name__}. {cure}: one value per sample, here {wanted}, or their "
            "mean as a scalar."
        )
    if not out.is_floating_point():
        raise ArgumentError(
            f"The loss {name} returned {out.dtype}; a loss has real, floating values. Is it a count or an accuracy? "
            "newton_losses.smoothing.SmoothedLoss makes one differentiable."
        )
    got = tuple(out.shape)
    if got == () and reduction == "none":
        raise ShapeError(
            f"The loss {name} returned a scalar, but reduction='none' promises one value per sample, here {wanted}."
        )
    message = (
        f"The loss {name} returned shape {got} for outputs of shape {tuple(shape)}. "
        f"A loss returns one value per sample, here {wanted}, or their mean as a scalar"
    )
    if got == (count,):
        raise ShapeError(f"{message}; it returned one per sample, although reduction={reduction!r}.")
    if got == (count, count) and got != tuple(shape):
        raise ShapeError(f"{message}. Did outputs of shape {tuple(shape)} broadcast against targets of another shape?")
    if got == (1,):
        raise ShapeError(f"{message}: .squeeze() makes one of it.")
    if got[:1] == (count,):
        raise ShapeError(f"{message}. Did it not reduce over the outputs of a sample? Try .flatten(1).sum(1).")
    raise ShapeError(f"{message}. Did it reduce over the batch dimension?")


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
