"""What a caller may choose, as it is passed: types and checks of damping, spectrum, reduction and process group.

Every check raises an error that says what came and what to pass instead. None looks at a tensor's value.
"""

import math
from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from ._damping import Damping

Reduction = Literal["mean", "sum", "none"]
Spectrum = Literal["raw", "absolute", "clip"]
SPECTRA = ("raw", "absolute", "clip")
# "default" is the group that torch.distributed was initialised with, where it was; None is this process alone.
GroupChoice: TypeAlias = "ProcessGroup | Literal['default'] | None"
# A tuple and not a union of types, which compilers before that of torch 2.11 do not look into. `Real` are NumPy's.
NUMBERS = (int, float, Real, Tensor)

HAS_GROUPS = dist.is_available()


def check_options(
    curvature: object = "fisher",
    damping: object = "auto",
    spectrum: object = None,
    reduction: object = None,
    matrix_free: object = None,
    process_group: object = "default",
    exchangeable: object = None,
) -> None:
    """Refuse what no option of a Newton loss can be, also before a call that needs none of them."""
    if isinstance(curvature, Tensor):
        raise ArgumentError(
            f"curvature is a tensor of shape {tuple(curvature.shape)}. Outputs and targets are for the call: "
            "newton = NewtonLoss(loss), then newton(y, target); or at once newton_loss(loss, y, target)."
        )
    if not isinstance(curvature, str) or curvature not in ("hessian", "fisher", "sample"):
        raise ArgumentError(f"curvature={curvature!r}; it can be 'hessian', 'fisher' or 'sample'.")
    check_damping(damping)
    if spectrum is not None:
        check_spectrum(spectrum)
    check_group(process_group)
    for name, choice in {"exchangeable": exchangeable, "matrix_free": matrix_free}.items():
        if choice is not None and not isinstance(choice, bool):
            raise ArgumentError(f"{name}={choice!r}; it is True, False or None.")


def check_value(value: object) -> None:
    if not isinstance(value, str) or value not in ("loss", "quadratic"):
        raise ArgumentError(f"value={value!r}; it can be 'loss' or 'quadratic'.")


def check_is_loss(loss: object) -> None:
    """Refuse what cannot be called, a class instead of an object, and a value of the loss."""
    if isinstance(loss, type):
        name = loss.__name__
        raise ArgumentError(f"The loss is the class {name}, where one of its objects is needed: {name}(...).")
    if isinstance(loss, Tensor):  # which has a method `expand`, too
        shape = tuple(loss.shape)
        raise ArgumentError(
            f"The loss is a tensor of shape {shape}. Pass the function that computes it, loss(y, *targets)."
        )
    if not callable(loss) and not hasattr(loss, "expand"):
        raise ArgumentError(f"The loss has to be callable as loss(y, *targets), got {loss!r}.")


def resolve_reduction(loss: object, reduction: Reduction | None) -> Reduction | None:
    """What the caller said, else what the loss says of itself (`torch.nn` losses do), else nothing."""
    if reduction is None:
        own = getattr(loss, "reduction", None)
        reduction = "mean" if own == "batchmean" else own  # torch's word for a sum per sample, then a mean
    if reduction is not None and not (isinstance(reduction, str) and reduction in ("mean", "sum", "none")):
        raise ArgumentError(f"reduction={reduction!r}; it can be 'mean', 'sum' or 'none'.")
    return reduction


def check_damping(damping: object) -> None:
    """Refuse what cannot be a damping. A tensor's value is not looked at: that would wait for the device."""
    if isinstance(damping, str) and damping == "auto":
        return
    if isinstance(damping, type):
        name = damping.__name__
        raise ArgumentError(f"The damping is the class {name}, where one of its objects is needed: {name}().")
    check_number(damping, or_rule=True)


def plain_damping(damping: "Damping") -> "Damping":
    """The same, with a number of NumPy's as one of Python's: compilers take the former for an array."""
    is_plain = type(damping) in (int, float)
    return float(damping) if isinstance(damping, (float, Real)) and not is_plain else damping


def check_number(damping: object, *, or_rule: bool = False) -> None:
    is_number = isinstance(damping, NUMBERS) or (or_rule and callable(damping))
    if isinstance(damping, bool) or not is_number:
        raise ArgumentError(
            f"The damping is a positive number, a scalar tensor, 'auto' or a rule that maps an expansion to "
            f"one, got {damping!r}."
        )
    if not isinstance(damping, Tensor) and not callable(damping):
        check_positive(damping, "The damping")
    if isinstance(damping, Tensor) and damping.requires_grad:
        raise ArgumentError("The damping requires a gradient. It is a plain number and gets none: pass .detach().")
    if isinstance(damping, Tensor) and damping.numel() != 1:
        raise ArgumentError(f"The damping is one number for the batch, got shape {tuple(damping.shape)}.")
    if isinstance(damping, Tensor) and (damping.dtype == torch.bool or damping.dtype.is_complex):
        raise ArgumentError(f"The damping is a positive number, got a tensor of {damping.dtype}.")


def check_positive(number: object, what: str) -> None:
    is_number = isinstance(number, Real) and not isinstance(number, bool)
    if not (is_number and 0 < number < math.inf):  # type: ignore[operator]
        raise ArgumentError(
            f"{what} has to be a positive, finite number, got {number!r}. It keeps the curvature "
            "away from singular; the larger, the closer the step is to the plain gradient."
        )


def check_spectrum(spectrum: object) -> None:
    if not isinstance(spectrum, str) or spectrum not in SPECTRA:
        raise ArgumentError(f"spectrum={spectrum!r}; it can be 'raw', 'absolute' or 'clip'.")


def check_group(choice: object) -> None:
    """Refuse what cannot name a process group, before any process waits for another."""
    if choice is None or (isinstance(choice, str) and choice == "default"):
        return
    if not (dist.is_available() and isinstance(choice, dist.ProcessGroup)):
        raise ArgumentError(
            f"process_group={choice!r}; it is a torch.distributed.ProcessGroup that this process belongs to, "
            "'default' for the one that torch.distributed was initialised with, or None to stay local."
        )


def resolve_group(choice: GroupChoice) -> "ProcessGroup | None":
    """The group to share the batch with, or `None` where this process has it alone.

    Asked anew in every step: a module is often made before `torch.distributed` is initialised.
    """
    if choice is None or not HAS_GROUPS or not dist.is_initialized():
        return None
    group = dist.group.WORLD if isinstance(choice, str) else choice
    return group if dist.get_world_size(group) > 1 else None
