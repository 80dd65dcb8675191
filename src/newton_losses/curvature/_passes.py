"""How directions of a second derivative go through a loss: how many at once, and with how many threads.

A vectorised pass holds every intermediate of the loss once per direction. On CUDA the device's free memory decides, on
a CPU its caches: what is larger would be slower there.
"""

import contextlib
from functools import cache
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .._arguments import WithTargets
from .._random import seeded
from .._tracing import is_captured, sees_operators
from .._unchanged import unchanged
from ._loss_contract import ONE_THREAD_ELEMENTS, Total

T = TypeVar("T")

# Elements over all directions of a pass where the free memory is not known.
PASS_ELEMENTS = 2**22
# On a CPU: elements of the largest intermediate, over all directions of a pass, that its caches hold well. A quarter of
# that takes up to 1.7 times as long, because each pass costs as much as two directions; more gains nothing.
CACHED_ELEMENTS = 2**19
# The C library gives the memory of freed tensors back to the system, unless a larger one was freed before, and a page
# that it takes anew costs as much as computing what goes into it: a third of a pass through 128 lists of 10. Freeing
# this many bytes, which were never written to, is enough.
FREED_BYTES = 2**24
# The part of a device's free memory that a pass may fill, and how many times over it holds what the loss keeps: the
# graph of the gradient, and what a batched backward pass through that makes.
MEMORY_SHARE = 0.5
HELD = 6
# Below this many elements of all directions' outputs nothing is large, and how large is not looked at.
SMALL = 2**12


class Footprint(NamedTuple):
    """Elements that a loss keeps for its way back: of the largest tensor, and of all together."""

    largest: int
    together: int


_footprints: "WeakKeyDictionary[object, dict[torch.Size, Footprint]]" = WeakKeyDictionary()
_free_elements: dict[torch.device, int] = {}


def footprint(total: Total, flat: Tensor, loss: object, *, has_tape: bool) -> Footprint:
    """What the loss keeps, as a pairwise one N·m² and more. One call of the loss, once for each size of a batch.

    Where nothing is large, there is no tape to look at, or a graph is being recorded: the outputs themselves.
    """
    # In this order: a compiler, in which there is no tape, cannot ask whether a graph is recorded.
    is_small = flat.numel() * flat.shape[1] <= SMALL or not has_tape
    if is_small or (not flat.is_cpu and is_captured(flat.device)):
        return Footprint(flat.numel(), flat.numel())
    known = recalled(_footprints, loss) or {}
    if flat.shape not in known:
        sizes = [flat.numel()]

        def look(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        # What the loss gets wrong it will say again where it is differentiated.
        with (
            contextlib.suppress(RuntimeError, NotImplementedError),
            seeded(0, flat.device),
            unchanged(loss),
            torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor),
            torch.enable_grad(),
        ):
            total(flat.detach().requires_grad_())
        if flat.is_cpu:
            torch.empty(FREED_BYTES, dtype=torch.uint8)
        known[flat.shape] = Footprint(max(sizes), sum(sizes))
        remember(_footprints, loss, known)
    return known[flat.shape]


def directions_at_once(flat: Tensor, size: Footprint) -> int:
    """How many directions make up a pass, at least 1."""
    if flat.is_cuda:
        return max(1, _room(flat) // (HELD * size.together))
    cores = torch.get_num_threads() if size.largest > ONE_THREAD_ELEMENTS else 1
    return max(1, cores * CACHED_ELEMENTS // max(1, size.largest))


def products_at_once(flat: Tensor, size: Footprint, elements: int) -> int:
    """The same where the products of a pass are added up, of which so many `elements` may be stored."""
    return min(directions_at_once(flat, size), max(1, elements // max(1, flat.numel())))


def _room(flat: Tensor) -> int:
    """Elements of this dtype that a pass may fill on its device. Asked once: later, most of it is torch's own cache."""
    if flat.device not in _free_elements:
        if is_captured(flat.device) or sees_operators():
            return PASS_ELEMENTS
        free, _ = torch.cuda.mem_get_info(flat.device)
        _free_elements[flat.device] = int(MEMORY_SHARE * free) // 4
    return _free_elements[flat.device] * 4 // flat.element_size()


@cache
def batch_type_as() -> "torch.library.Library | None":
    """Give torch's batched gradients a rule for `type_as`. Without one they fall back to one direction at a time.

    The second derivative of softplus calls it, and so does that of every logistic loss. The rule holds for the whole
    process and changes no result: it lets the operator fall apart into others, which have rules.
    """
    try:
        if torch._C._dispatch_has_kernel_for_dispatch_key("aten::type_as", "Batched"):
            return None
        library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        library.impl("type_as", torch.library.fallthrough_kernel, "Batched")  # type: ignore[no-untyped-call]
    except RuntimeError:  # a version of torch without this key: the slow way works, too
        return None
    return library


def recalled(memory: "WeakKeyDictionary[object, T]", loss: object) -> T | None:
    """What is remembered of a loss, whatever targets came by name: of each call they make another object."""
    try:
        return memory.get(_itself(loss))
    except TypeError:  # not hashable, or cannot be referred to weakly: nothing is remembered
        return None


def remember(memory: "WeakKeyDictionary[object, T]", loss: object, known: T) -> None:
    with contextlib.suppress(TypeError):
        memory[_itself(loss)] = known


def _itself(loss: object) -> object:
    return loss.func if isinstance(loss, WithTargets) else loss


def backward_products(gradients: Any, flat: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(values, gradients, products with the Hessians), of `gradients(flat)`, which come with values.

    For compilers and transforms. Forward mode gives a target a tangent that has no memory: of `torch.nn.MSELoss`, a
    transform raises an error, and compiled code reads it all the same, a segmentation fault (in torch 2.13 still).
    """
    gradient, pull_back, value = torch.func.vjp(gradients, flat, has_aux=True)  # type: ignore[misc]
    rows = torch.zeros_like(flat) + directions.unsqueeze(1)
    return value, gradient, torch.func.vmap(lambda row: pull_back(row)[0], randomness="same")(rows)
