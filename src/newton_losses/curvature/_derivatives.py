"""Per-sample gradients and Hessians of a total loss by automatic differentiation.

Every function takes `total`, which maps flat outputs `(N, m)` to what sums to Σ ℓᵢ and the values, and returns plain
tensors without a graph. Derivatives come from the classic tape, which uses what a loss has in hand-written backward
passes, and in which a loss that draws random numbers draws them once. Where there is no tape (compilers, transforms,
inference mode), and for operators that have no second derivative there, `torch.func` takes its place: forward over
reverse.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from .._backends import takes_triton
from .._tracing import sees_operators
from ..errors import DerivativeError
from ._derivative_errors import (
    cut_gradient,
    is_once_differentiable,
    is_out_of_memory,
    names_of,
    no_dependence,
    no_second_derivative,
    refused,
    with_advice,
)
from ._forms import signs, symmetric
from ._loss_contract import Total, one_thread
from ._passes import backward_products, batch_type_as, directions_at_once, footprint, recalled, remember

T = TypeVar("T")
# What `torch.autograd.grad` calls at its end: (outputs, directions, keep the graph, make a graph, leaves, leaves may be
# unused, accumulate).
_run_backward = torch.autograd.Variable._execution_engine.run_backward


class Derivatives(NamedTuple):
    """Values `(N,)`, gradients `(N, m)` and second derivatives along K directions, `(K, N, m)`."""

    value: Tensor
    gradient: Tensor
    second: Tensor | None = None


class MeanHessian(NamedTuple):
    """Values `(N,)`, gradients `(N, m)`, and (1/count) Σ ∇²ℓᵢ over the samples in which everything is finite.

    The count is `None` where that is all of them.
    """

    value: Tensor
    gradient: Tensor
    matrix: Tensor
    count: Tensor | None  # type: ignore[assignment]


# Directions (K, m), the same for all samples, to (K, N, m): ∇²ℓᵢ v for each direction v.
SecondProduct = Callable[[Tensor], Tensor]

# What the kernels for a mean Hessian on CUDA are made for; beyond, operators of torch share the work better.
MOST_SAMPLES, MOST_OUTPUTS = 4096, 512

# The levels of torch's forward mode belong to the process, not to a thread: two threads that differentiate at the same
# time end each other's, which is an error at best and a crash at worst.
_one_at_a_time = threading.RLock()
_needs_forward: "WeakKeyDictionary[object, bool]" = WeakKeyDictionary()


def first_order(total: Total, flat: Tensor) -> Derivatives:
    """Values and per-sample gradients: one forward and one backward pass of the loss."""
    if not has_tape(flat):
        return _functional_gradient(total, flat)
    try:
        return on_tape(*_tape(total, flat))
    except (RuntimeError, NotImplementedError) as error:
        try:  # as for targets that were made in inference mode, which no tape takes
            return _functional_gradient(total, flat)
        except (RuntimeError, NotImplementedError):
            raise error from None


def mean_hessian(total: Total, flat: Tensor, loss: object) -> MeanHessian:
    """Values, gradients and the mean Hessian.

    With a shift δ ∈ Rᵐ shared by all samples, the k-th direction differentiates every ∇ℓᵢ(ȳᵢ + δ) along eₖ at once, so
    m directions are enough for all N Hessians. They go through in as few passes as there is room for.
    """
    size = footprint(total, flat, loss, has_tape=has_tape(flat))
    directions = torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)
    at_once = directions_at_once(flat, size)
    parts = (directions,) if at_once >= len(directions) else torch.split(directions, at_once)

    def reverse() -> MeanHessian:
        value, gradient, product = _reverse_graph(total, flat, loss)
        with one_thread(flat, size.largest):
            return _mean(Derivatives(value, gradient), lambda: map(product, parts))

    def forward() -> MeanHessian:
        value, gradient, first = forward_products(total, flat, parts[0])
        every = [first, *(forward_products(total, flat, part)[2] for part in parts[1:])]
        return _mean(Derivatives(value, gradient), lambda: every)

    return _first_that_works(flat, loss, reverse, forward)


def _mean(found: Derivatives, passes: Callable[[], Iterable[Tensor]]) -> MeanHessian:
    """The mean over the samples of what the `passes` give, `(k, N, m)` each."""
    value, gradient = found.value, found.gradient
    if value.is_cpu and type(gradient) is Tensor and has_tape(value):
        # Summed as it goes; what is not finite shows in the sum.
        sums = [one.sum(1) for one in passes()]
        total = sums[0] if len(sums) == 1 else torch.cat(sums)
        total = total.detach()  # forward mode leaves it a graph where the loss has parameters
        if _are_finite(total, gradient.detach()) and math.isfinite(value.detach().sum().item()):
            rows = total.numpy()
            return MeanHessian(value, gradient, torch.from_numpy((rows + rows.T) * (0.5 / len(value))), None)
    second = _stored(passes(), gradient.shape[1])
    if _fits_kernels(second):
        from ._mean_hessian_triton import mean_of_finite_hessians

        matrix, count = mean_of_finite_hessians(second, value.detach(), gradient)
        return MeanHessian(value, gradient, matrix, count)
    kept = is_finite_twice(Derivatives(value, gradient, second))
    count = kept.sum()
    mean = torch.where(kept[None, :, None], second, 0.0).sum(1) / count.clamp(min=1)
    return MeanHessian(value, gradient, symmetric(mean), count)


def _are_finite(*tensors: Tensor) -> bool:
    """Whether all numbers on a CPU are finite, and their squares as well."""
    return math.isfinite(sum([float(np.vdot(one, one)) for one in [tensor.numpy() for tensor in tensors]]))


def _fits_kernels(second: Tensor) -> bool:
    """Whether a program can go through all samples, or all of one sample's Hessian, in little time."""
    outputs, samples, _ = second.shape
    is_small = 0 < samples <= MOST_SAMPLES and outputs > 0
    return type(second) is Tensor and is_small and takes_triton("auto", second, outputs, MOST_OUTPUTS)


def is_finite(found: Derivatives) -> Tensor:
    """Which samples have a finite value and gradient, `(N,)` boolean. (Of NaN, every comparison is false.)"""
    return (found.value.abs() < torch.inf) & (found.gradient.abs() < torch.inf).all(1)


def is_finite_twice(found: Derivatives) -> Tensor:
    """Which samples have second derivatives, too, that are finite as far as they are known, `(N,)` boolean."""
    assert found.second is not None
    return is_finite(found) & (found.second.abs() < torch.inf).all(2).all(0)


def _stored(passes: Iterable[Tensor], size: int) -> Tensor:
    """The products of all passes, `(m, N, m)`.

    Each is put in its place at once: kept one by one between the intermediates of the passes, they would leave an
    allocator no large piece of memory to use again.
    """
    if isinstance(passes, list):
        return passes[0] if len(passes) == 1 else torch.cat(passes)
    found, begin = None, 0
    for one in passes:
        if len(one) == size:
            return one
        found = one.new_empty(size, *one.shape[1:]) if found is None else found
        found[begin : begin + len(one)] = one
        begin += len(one)
    assert found is not None
    return found


def second_products(total: Total, flat: Tensor, loss: object) -> tuple[Derivatives, SecondProduct]:
    """Values, gradients, and a function for products with the per-sample Hessians, none of them stored.

    The second derivatives returned are those along one direction that has every output in it, `(1, N, m)`: of a
    Hessian that is not finite, that is not finite either.
    """
    probe = signs(1, flat.shape[1], flat)

    def forward() -> "tuple[Derivatives, SecondProduct]":  # in quotes for the compiler
        return Derivatives(*forward_products(total, flat, probe)), lambda rows: forward_products(total, flat, rows)[2]

    def reverse() -> "tuple[Derivatives, SecondProduct]":
        value, gradient, product = _reverse_graph(total, flat, loss)
        return Derivatives(value, gradient, product(probe)), product

    return _first_that_works(flat, loss, reverse, forward)


def forward_products(total: Total, flat: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(values, gradients, products) in one pass: the value and gradient are not repeated per direction."""

    def along(direction: Tensor) -> "tuple[Tensor, Tensor, Tensor]":  # in quotes for the compiler of torch 2.6
        # Not expanded: torch makes a copy of a tangent that is laid out unlike `flat`, and its compiler cannot do that
        # for a batch size that has changed, and so is a symbol.
        gradient, product, value = torch.func.jvp(  # type: ignore[misc]
            torch.func.grad(_summed(total), has_aux=True), (flat,), (torch.zeros_like(flat) + direction,), has_aux=True
        )
        return value, gradient, product

    if sees_operators():
        return backward_products(torch.func.grad(_summed(total), has_aux=True), flat, directions)
    # A loss that draws random numbers has to draw the same ones in every direction.
    with _one_at_a_time:
        value, gradient, product = torch.func.vmap(along, randomness="same")(directions)
    # The first two are the same in every direction, and stored once. (Saying so by out_dims=None is
    # refused where the caller's own vmap is around this one.)
    return value[0], gradient[0], product


def has_tape(flat: Tensor) -> bool:
    """Compilers, the transforms of torch.func and inference mode have no tape."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return not (torch.is_inference_mode_enabled() or flat.is_inference())


def _functional_gradient(total: Total, flat: Tensor) -> Derivatives:
    gradient, value = torch.func.grad(_summed(total), has_aux=True)(flat)
    return Derivatives(value, gradient)


def _summed(total: Total) -> Total:
    """With Σ ℓᵢ as one number, as `torch.func` wants it."""

    def summed(flat: Tensor) -> "tuple[Tensor, Tensor]":  # in quotes for the compiler
        found, value = total(flat)
        return found.sum(), value

    return summed


def on_tape(leaf: Tensor, total_value: Tensor, value: Tensor) -> Derivatives:
    """Values and gradients at the `leaf` that a tape begins with; values have a graph if they lead to other leaves."""
    gradient, is_shared = gradient_on_tape(leaf, total_value)
    return Derivatives(value if is_shared else value.detach(), gradient)


def gradient_on_tape(leaf: Tensor, total_value: Tensor) -> tuple[Tensor, bool]:
    """The gradients, and whether the graph leads to other leaves, so that it is kept.

    What the loss itself has to learn, and targets that have a gradient, get theirs through the values.
    """
    if total_value.grad_fn is None:  # a batch can be without a gradient, as one that holds no pair to compare
        return torch.zeros_like(leaf), total_value.requires_grad  # or its values are what the loss learns
    is_shared = torch.is_grad_enabled() and _look(total_value, leaf)[0]
    gradient = _pulled_back(total_value, torch.ones_like(total_value), leaf, keep=is_shared)
    if gradient is None:
        return torch.zeros_like(leaf), is_shared
    if gradient.requires_grad:  # a backward pass written by hand may give back what it has saved, the leaf itself
        gradient = gradient.detach()
    return gradient.to_dense() if gradient.is_sparse else gradient, is_shared


def _pulled_back(output: Tensor, along: Tensor, leaf: Tensor, *, keep: bool, create: bool = False) -> Tensor | None:
    """`torch.autograd.grad` of an output along a direction; `None` where it does not depend on the leaf.

    Of a plain tensor without that function's checks, which take as long as ten operations.
    """
    if type(output) is not Tensor:
        return torch.autograd.grad(output, leaf, along, retain_graph=keep, create_graph=create, allow_unused=True)[0]
    found: Tensor | None = _run_backward((output,), (along,), keep, create, (leaf,), True, False)[0]
    return found


def _tape(total: Total, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs as a leaf, what sums to the total and the values, on the classic tape."""
    leaf = flat.detach().requires_grad_()
    if torch.is_grad_enabled():  # entering a context takes as long as an operation
        return leaf, *total(leaf)
    with torch.enable_grad():
        return leaf, *total(leaf)


def _look(value: Tensor, leaf: Tensor) -> tuple[bool, set[Any]]:
    """One walk through the graph of `value`, which is made at every call: does it reach other leaves, and its nodes."""
    seen: set[Any] = {value.grad_fn}
    queue: list[Any] = [value.grad_fn]
    other_leaves = False
    for node in queue:  # which grows on the way
        following = node.next_functions
        if following:
            for one, _ in following:
                if one is not None and one not in seen:
                    seen.add(one)
                    queue.append(one)
        elif not other_leaves and getattr(node, "variable", leaf) is not leaf:
            other_leaves = True
    return other_leaves, seen


def nothing_through(value: Tensor) -> Tensor:
    """0, with a gradient of zeros for every leaf that `value` depends on: data parallelism misses those without one."""
    leaves = [node.variable for node in _look(value, value)[1] if hasattr(node, "variable")]
    return sum((leaf.flatten()[:0].sum().to(value.dtype) for leaf in leaves), value.new_zeros(()))


def custom_operators(value: Tensor) -> set[type]:
    """The user's own `torch.autograd.Function`s in the graph of `value`."""
    return set() if value.grad_fn is None else _custom_operators(_look(value, value)[1])


def _custom_operators(nodes: set[Any]) -> set[type]:
    own = torch.autograd.function.BackwardCFunction
    return {node._forward_cls for node in nodes if isinstance(node, own)}  # type: ignore[attr-defined]


def _reverse_graph(total: Total, flat: Tensor, loss: object) -> tuple[Tensor, Tensor, SecondProduct]:
    """Gradients through the classic tape, and products with the Hessians through it."""
    leaf, total_value, value = _tape(total, flat)
    if not total_value.requires_grad:
        raise no_dependence(loss)
    gradient = _pulled_back(total_value, torch.ones_like(total_value), leaf, keep=True, create=True)
    if gradient is None:
        raise no_dependence(loss)
    other_leaves, nodes = _look(total_value, leaf)
    operators = _custom_operators(nodes)
    if once := names_of(filter(is_once_differentiable, operators)) if operators else []:
        raise no_second_derivative(loss, once, "its backward pass is marked @once_differentiable")
    if not gradient.requires_grad and operators:
        raise cut_gradient(loss, names_of(operators))

    def product(vectors: Tensor) -> Tensor:
        if not gradient.requires_grad:  # a loss that is linear in y has no second derivative
            return vectors.new_zeros(len(vectors), *flat.shape)
        along = vectors.unsqueeze(1).expand(-1, *flat.shape)
        if len(along) > 1:
            with _one_at_a_time:
                batch_type_as()
            # Not in the handler: the error would hold on to the memory of the pass that failed.
            with contextlib.suppress(RuntimeError, NotImplementedError):
                return _grad_of_grad(gradient, leaf, along, batched=True)
        try:  # an operator without a rule for vectorising: one direction after another
            return torch.stack([_grad_of_grad(gradient, leaf, one, batched=False) for one in along])
        except (RuntimeError, NotImplementedError) as error:
            if is_out_of_memory(error):
                raise with_advice(error) from None
            if isinstance(error, DerivativeError):
                raise refused(loss, error) from error
            raise no_second_derivative(
                loss, names_of(operators), f"torch says: {str(error).splitlines()[0]}"
            ) from error

    # What the loss itself has to learn, and targets that have a gradient, get theirs through the values.
    is_shared = torch.is_grad_enabled() and other_leaves
    return value if is_shared else value.detach(), gradient.detach(), product


def _grad_of_grad(gradient: Tensor, leaf: Tensor, along: Tensor, *, batched: bool) -> Tensor:
    if not batched:
        found = _pulled_back(gradient, along, leaf, keep=True)
        return torch.zeros_like(leaf) if found is None else found
    # As `torch.autograd.grad(is_grads_batched=True)` does it, without its front, which takes a fifth of the pass.
    level = torch._C._vmapmode_increment_nesting()
    try:
        found = _pulled_back(gradient, torch._add_batch_dim(along, 0, level), leaf, keep=True)
        found = torch.zeros_like(leaf) if found is None else found
        return torch._remove_batch_dim(found, level, len(along), 0)
    finally:
        torch._C._vmapmode_decrement_nesting()


def _first_that_works(flat: Tensor, loss: object, reverse: Callable[[], T], forward: Callable[[], T]) -> T:
    if not has_tape(flat):  # one straight line for a compiler; it has no second try
        return forward()
    if not recalled(_needs_forward, loss):
        try:
            return reverse()
        except (RuntimeError, NotImplementedError) as error:
            if is_out_of_memory(error):  # it says nothing about the loss
                raise with_advice(error) from None
            first = error
        try:  # an operator may have a forward rule and no second derivative, and no tape takes inference tensors
            result = forward()
        except (RuntimeError, NotImplementedError):
            raise first from None
        remember(_needs_forward, loss, True)
        return result
    return forward()
