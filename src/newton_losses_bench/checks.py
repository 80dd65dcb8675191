"""Single settings: the option that sets one, the checks that make a mistake speak, and how a damping is read.

What settings a run has, and which go together, is in `config.py`.
"""

import difflib
import math
from collections.abc import Iterable
from types import UnionType
from typing import Any, get_args, get_origin

from newton_losses.errors import ArgumentError


def option(name: str) -> str:
    """The option of the command that sets a field.

    >>> option("clip_norm")
    '--clip-norm'
    """
    return {"num_samples": "--samples", "validation_sets": "--validation-sets"}.get(name, "--" + name.replace("_", "-"))


def check_choice(name: str, value: str, choices: Iterable[str], words: str | None = None) -> None:
    """Refuse a value that is not one of the choices, naming the one that was probably meant.

    `words` are those before the value where it is not that of an option.

    >>> check_choice("algorithm", "softsrot", ("neuralsort", "softsort"))
    Traceback (most recent call last):
    newton_losses.errors.ArgumentError: --algorithm softsrot: did you mean softsort? It is one of neuralsort, softsort.
    """
    choices = tuple(choices)
    if value in choices:
        return
    wanted = str(value).lower().replace("_", "-")
    near = difflib.get_close_matches(wanted, choices, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]}? It" if near else "it"
    raise ArgumentError(f"{words or option(name)} {value}: {guess} is one of {', '.join(choices)}.")


# What a value of a type is to a person.
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple[int, ...]: "a tuple of whole numbers",
}


def check_kind(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that is not of a setting's type; a whole number passes for a number.

    >>> check_kind("batch_size", "x", int)
    Traceback (most recent call last):
    newton_losses.errors.ArgumentError: --batch-size x: it has to be a whole number.
    """
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    words = [word for kind, word in _KINDS.items() if kind in kinds]
    if words and not any(_is_of_kind(value, kind) for kind in kinds):
        # A whole number of numpy's looks like one.
        is_plain = value is None or type(value) in (*_KINDS, tuple, list)
        shown = value if is_plain else f"{value} ({type(value).__name__})"
        raise ArgumentError(f"{option(name)} {shown}: it has to be {' or '.join(words)}.")


def _is_of_kind(value: Any, kind: Any) -> bool:
    if get_origin(kind) is tuple:
        return isinstance(value, tuple | list) and all(_is_of_kind(one, get_args(kind)[0]) for one in value)
    # To Python true and false are whole numbers.
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def check_positive(name: str, value: float | None) -> None:
    """Refuse a number that is not positive and finite; `None` has not been given and passes."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ArgumentError(f"{option(name)} {value}: it has to be a positive number.")


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a whole number below `least`."""
    if value < least:
        raise ArgumentError(f"{option(name)} {value}: it has to be at least {least}.")


def read_damping(damping: float | str | None) -> float | str | None:
    """A number, also where it comes as text, or "auto" with or without a factor; `None` has not been given.

    Of the spellings of one factor it returns the shortest, so that one run has one configuration.

    >>> read_damping("10"), read_damping("auto:0.30"), read_damping("auto:1")
    (10.0, 'auto:0.3', 'auto')
    """
    if isinstance(damping, str) and damping.startswith("auto"):
        factor = auto_factor(damping)
        return "auto" if factor == 1 else f"auto:{str(factor).removesuffix('.0')}"
    try:
        number = None if damping is None else float(damping)
    except ValueError:
        raise ArgumentError(f"--damping {damping}: it is a positive number, auto, or auto:FACTOR.") from None
    check_positive("damping", number)
    return number


def auto_factor(damping: str) -> float:
    """The factor of a damping "auto" or "auto:FACTOR".

    >>> auto_factor("auto"), auto_factor("auto:10")
    (1.0, 10.0)
    """
    name, _, number = damping.partition(":")
    try:
        factor = float(number or 1)
    except ValueError:
        factor = math.nan
    if name != "auto" or not (math.isfinite(factor) and factor > 0):
        raise ArgumentError(f"--damping {damping}: it is a positive number, auto, or auto:FACTOR.")
    return factor
