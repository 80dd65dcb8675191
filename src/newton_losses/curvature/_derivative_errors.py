"""What keeps a loss from being differentiated, in words."""

from collections.abc import Iterable

import torch

from .._arguments import name_of
from ..errors import DerivativeError


def is_once_differentiable(operator: type) -> bool:
    """Whether the decorator of that name is on its backward pass.

    It is asked for here because torch looks only at the gradient that comes in: that of a sum is a
    constant, and the second derivative of such an operator would be left out without a word.
    """
    code = getattr(getattr(operator, "backward", None), "__code__", None)
    return code is not None and bool(code.co_filename == torch.autograd.function.__file__)


def names_of(operators: Iterable[type]) -> list[str]:
    return sorted(operator.__name__ for operator in operators)


def no_dependence(loss: object) -> DerivativeError:
    return DerivativeError(
        f"The loss {name_of(loss)} does not depend on the outputs, so it has no gradient. Does it use "
        "argmax, round, a comparison, .item(), .detach() or torch.tensor(...)? A black box can be made "
        "differentiable by smoothing (newton_losses.smoothing)."
    )


def no_second_derivative(loss: object, custom: list[str], reason: str) -> DerivativeError:
    where = f"the operator {' and '.join(custom)}" if custom else "one of its operators"
    return DerivativeError(
        f"The loss {name_of(loss)} is not differentiable twice: {where} has no second derivative "
        f"({reason}). curvature='fisher' needs first derivatives only."
    )


def refused(loss: object, error: DerivativeError) -> DerivativeError:
    """The second derivative of what says itself that it has none, and what to use."""
    return DerivativeError(f"The loss {name_of(loss)} is not differentiable twice. {error}")


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def with_advice(error: Exception) -> Exception:
    error.add_note(
        "This was for the Hessian. matrix_free=True needs less memory, and curvature='fisher' needs first "
        "derivatives only."
    )
    return error


def cut_gradient(loss: object, custom: list[str]) -> DerivativeError:
    return DerivativeError(
        f"The gradient of the loss {name_of(loss)} does not depend on its input: the backward pass of "
        f"{' and '.join(custom)} returns values that are cut from the graph, so the second derivative would "
        "silently be zero. Write that backward with differentiable operations, or use curvature='fisher'."
    )
