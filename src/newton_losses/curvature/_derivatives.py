"""Per-sample gradients and Hessians of a total loss by automatic differentiation.

Every function takes `total`, which maps flat outputs `(N, m)` to (Σ ℓᵢ, values), and returns plain
tensors without a graph. First derivatives come from the classic tape, which uses what a loss has in
hand-written backward passes. Two ways lead to second derivatives: forward over reverse through
`torch.func`, one vectorised pass, and reverse over reverse through `torch.autograd`, for operators
that have no forward rule. The first that works for a loss is remembered for it.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .._random import seeded
from .._tracing import is_captured, sees_operators
from ..errors import DerivativeError
from ._forms import signs
from ._loss_contract import Total, name_of

T = TypeVar("T")

# One vectorised pass holds every intermediate of the loss once a direction; more directions than there is room here for
# the largest one (in elements) go through in several passes.
PASS_ELEMENTS = 2**22
# Below this many elements of all directions' outputs nothing is large, and how large is not looked at.
_SMALL = 2**14


class Derivatives(NamedTuple):
    """Values `(N,)`, gradients `(N, m)` and second derivatives along K directions, `(K, N, m)`.

    Along the axes these are the rows of the Hessians, H[k, i] = eₖᵀ∇²ℓᵢ.
    """

    value: Tensor
    gradient: Tensor
    second: Tensor | None = None


# Directions (K, m), the same for all samples, to (K, N, m): ∇²ℓᵢ v for each direction v.
SecondProduct = Callable[[Tensor], Tensor]

_needs_reverse: "WeakKeyDictionary[object, bool]" = WeakKeyDictionary()
_kept_elements: "WeakKeyDictionary[object, dict[torch.Size, int]]" = WeakKeyDictionary()


def first_order(total: Total, flat: Tensor) -> Derivatives:
    """Values and per-sample gradients: one forward and one backward pass of the loss."""
    if not _has_tape(flat):
        return _functional_gradient(total, flat)
    try:
        return _tape_gradient(total, flat)
    except (RuntimeError, NotImplementedError) as error:
        try:  # as for targets that were made in inference mode, which no tape takes
            return _functional_gradient(total, flat)
        except (RuntimeError, NotImplementedError):
            raise error from None


def second_order(total: Total, flat: Tensor, loss: object) -> Derivatives:
    """Values, gradients and all second derivatives, sample by sample.

    With a shift δ ∈ Rᵐ shared by all samples, the k-th pass differentiates every ∇ℓᵢ(ȳᵢ + δ) in the
    direction eₖ at once, so m directions are enough for all N Hessians.
    """
    directions = torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)
    parts = torch.split(directions, max(1, PASS_ELEMENTS // max(1, _largest(total, flat, loss))))

    def forward() -> Derivatives:
        value, gradient, first = forward_products(total, flat, parts[0])
        rest = (forward_products(total, flat, part)[2] for part in parts[1:])
        return Derivatives(value, gradient, _together(first, rest, directions))

    def reverse() -> Derivatives:
        value, gradient, product = _reverse_graph(total, flat, loss)
        return Derivatives(value, gradient, _together(product(parts[0]), map(product, parts[1:]), directions))

    return _first_that_works(loss, forward, reverse)


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

    return _first_that_works(loss, forward, reverse)


def _together(first: Tensor, rest: Iterable[Tensor], directions: Tensor) -> Tensor:
    """The products of all passes, `(m, N, m)`; `rest` makes them as it goes.

    Each is put in its place at once: kept one by one between the intermediates of the passes, they would leave an
    allocator no large piece of memory to use again.
    """
    if len(first) == len(directions):
        return first
    if sees_operators():
        return torch.cat([first, *rest])
    found = first.new_empty(len(directions), *first.shape[1:])
    places = torch.split(found, len(first))
    places[0].copy_(first)
    for place, part in zip(places[1:], rest, strict=True):
        place.copy_(part)
    return found


def _largest(total: Total, flat: Tensor, loss: object) -> int:
    """How many elements the largest tensor has that the loss keeps for its way back, as a pairwise one N·m².

    Where there is no tape to look at, or a graph is being recorded, the outputs themselves. One call of the loss, once
    for each size of a batch.
    """
    if flat.numel() * flat.shape[1] <= _SMALL or not _has_tape(flat) or is_captured(flat.device):
        return flat.numel()
    known: dict[torch.Size, int] = _recalled(_kept_elements, loss) or {}
    if flat.shape not in known:
        sizes = [flat.numel()]

        def look(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        # What the loss gets wrong it will say again where it is differentiated.
        with (
            contextlib.suppress(RuntimeError, NotImplementedError),
            seeded(0, flat.device),
            torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor),
        ):
            _tape(total, flat)
        known[flat.shape] = max(sizes)
        _remember(_kept_elements, loss, known)
    return known[flat.shape]


def forward_products(total: Total, flat: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(values, gradients, products) in one pass: the value and gradient are not repeated per direction."""

    def along(direction: Tensor) -> "tuple[Tensor, Tensor, Tensor]":  # in quotes for the compiler of torch 2.6
        # Not expanded: torch makes a copy of a tangent that is laid out unlike `flat`, and its compiler cannot do that
        # for a batch size that has changed, and so is a symbol.
        gradient, product, value = torch.func.jvp(  # type: ignore[misc]
            torch.func.grad(total, has_aux=True), (flat,), (torch.zeros_like(flat) + direction,), has_aux=True
        )
        return value, gradient, product

    # A loss that draws random numbers has to draw the same ones in every direction.
    value, gradient, product = torch.func.vmap(along, randomness="same")(directions)
    # The first two are the same in every direction, and stored once. (Saying so by out_dims=None is
    # refused where the caller's own vmap is around this one.)
    return value[0], gradient[0], product


def _has_tape(flat: Tensor) -> bool:
    """Compilers, the transforms of torch.func and inference mode have no tape."""
    return not (sees_operators() or torch.is_inference_mode_enabled() or flat.is_inference())


def _functional_gradient(total: Total, flat: Tensor) -> Derivatives:
    gradient, value = torch.func.grad(total, has_aux=True)(flat)
    return Derivatives(value, gradient)


def _tape_gradient(total: Total, flat: Tensor) -> Derivatives:
    leaf, total_value, value = _tape(total, flat)
    if not total_value.requires_grad:  # a batch can be without a gradient, as one that holds no pair to compare
        return Derivatives(value, torch.zeros_like(flat))
    # What the loss itself has to learn, and targets that have a gradient, get theirs through the values.
    is_shared = torch.is_grad_enabled() and _has_other_leaves(total_value, leaf)
    (gradient,) = torch.autograd.grad(total_value, leaf, retain_graph=is_shared, materialize_grads=True)
    return Derivatives(value if is_shared else value.detach(), gradient)


def _tape(total: Total, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs as a leaf, the total and the values, on the classic tape."""
    with torch.enable_grad():
        leaf = flat.detach().requires_grad_()
        return leaf, *total(leaf)


def _has_other_leaves(value: Tensor, leaf: Tensor) -> bool:
    """Whether a backward pass from `value` would reach anything but this leaf."""
    variables = (getattr(node, "variable", None) for node in _nodes(value))
    return any(variable is not None and variable is not leaf for variable in variables)


def _reverse_graph(total: Total, flat: Tensor, loss: object) -> tuple[Tensor, Tensor, SecondProduct]:
    """Gradients through the classic tape, and products with the Hessians through it."""
    leaf, total_value, value = _tape(total, flat)
    if not total_value.requires_grad:
        raise no_dependence(loss)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(total_value, leaf, create_graph=True, allow_unused=True)
    if gradient is None:
        raise no_dependence(loss)
    operators = custom_operators(total_value)
    custom = names_of(operators)
    if once := names_of(operator for operator in operators if _is_once_differentiable(operator)):
        raise _no_second_derivative(loss, once, "its backward pass is marked @once_differentiable")
    if not gradient.requires_grad and custom:
        raise DerivativeError(
            f"The gradient of the loss {name_of(loss)} does not depend on its input: the backward pass of "
            f"{_listed(custom)} returns values that are cut from the graph, so the second derivative would "
            "silently be zero. Write that backward with differentiable operations, or use curvature='fisher'."
        )

    def product(vectors: Tensor) -> Tensor:
        if not gradient.requires_grad:  # a loss that is linear in y has no second derivative
            return vectors.new_zeros(len(vectors), *flat.shape)
        along = vectors[:, None, :].expand(-1, *flat.shape)
        # Not in the handler: the error would hold on to the memory of the pass that failed.
        with contextlib.suppress(RuntimeError, NotImplementedError):
            return _grad_of_grad(gradient, leaf, along, batched=True)
        try:  # an operator without a rule for vectorising: one direction after another
            return torch.stack([_grad_of_grad(gradient, leaf, one, batched=False) for one in along])
        except (RuntimeError, NotImplementedError) as error:
            if _is_out_of_memory(error):
                raise _with_advice(error) from None
            raise _no_second_derivative(loss, custom, f"torch says: {str(error).splitlines()[0]}") from error

    return value.detach(), gradient.detach(), product


def _grad_of_grad(gradient: Tensor, leaf: Tensor, along: Tensor, *, batched: bool) -> Tensor:
    (out,) = torch.autograd.grad(
        gradient, leaf, along, retain_graph=True, is_grads_batched=batched, materialize_grads=True
    )
    return out


def _first_that_works(loss: object, forward: Callable[[], T], reverse: Callable[[], T]) -> T:
    if torch.compiler.is_compiling():  # one straight line for the compiler; it has no second try
        return forward()
    if not _recalled(_needs_reverse, loss):
        try:
            return forward()
        except (RuntimeError, NotImplementedError) as error:
            if _is_out_of_memory(error):  # it says nothing about the loss
                raise _with_advice(error) from None
            # The tape gives the user's own mistakes a plain traceback, and works for more operators.
            result = _reverse_after(reverse, error)
            _remember(_needs_reverse, loss, True)
            return result
    return reverse()


def _reverse_after(reverse: Callable[[], T], first: Exception) -> T:
    try:
        return reverse()
    except DerivativeError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        raise error from first


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _with_advice(error: Exception) -> Exception:
    error.add_note(
        "This was for the Hessian. matrix_free=True needs less memory, and curvature='fisher' needs first "
        "derivatives only."
    )
    return error


def _recalled(memory: "WeakKeyDictionary[object, T]", loss: object) -> T | None:
    try:
        return memory.get(loss)
    except TypeError:  # not hashable, or cannot be referred to weakly: nothing is remembered
        return None


def _remember(memory: "WeakKeyDictionary[object, T]", loss: object, known: T) -> None:
    with contextlib.suppress(TypeError):
        memory[loss] = known


def custom_operators(value: Tensor) -> set[type]:
    """The user's own `torch.autograd.Function`s in the graph of `value`."""
    return {node._forward_cls for node in _nodes(value) if getattr(node, "_forward_cls", None) is not None}


def _nodes(value: Tensor) -> Iterator[Any]:
    """All nodes of the graph of `value`."""
    seen: set[Any] = set()
    queue: list[Any] = [value.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        queue.extend(following for following, _ in node.next_functions)


def _is_once_differentiable(operator: type) -> bool:
    """Whether the decorator of that name is on its backward pass.

    It is asked for here because torch looks only at the gradient that comes in: that of a sum is a
    constant, and the second derivative of such an operator would be left out without a word.
    """
    code = getattr(getattr(operator, "backward", None), "__code__", None)
    return code is not None and bool(code.co_filename == torch.autograd.function.__file__)


def names_of(operators: Iterable[type]) -> list[str]:
    return sorted(operator.__name__ for operator in operators)


def _listed(names: list[str]) -> str:
    return " and ".join(names)


def no_dependence(loss: object) -> DerivativeError:
    return DerivativeError(
        f"The loss {name_of(loss)} does not depend on the outputs, so it has no gradient. Does it use "
        "argmax, round, a comparison or .detach()? A black box can be made differentiable by smoothing "
        "(newton_losses.smoothing)."
    )


def _no_second_derivative(loss: object, custom: list[str], reason: str) -> DerivativeError:
    where = f"the operator {_listed(custom)}" if custom else "one of its operators"
    return DerivativeError(
        f"The loss {name_of(loss)} is not differentiable twice: {where} has no second derivative "
        f"({reason}). curvature='fisher' needs first derivatives only."
    )
