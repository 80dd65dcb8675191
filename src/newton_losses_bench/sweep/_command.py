"""A configuration as the command line that a person would type for it."""

from dataclasses import MISSING, fields
from typing import Any

from ..config import configuration_class
from ..settings import option

# Not to be given: it follows from the epochs.
_NO_OPTION = ("drops",)


def train_command(configuration: dict[str, Any]) -> list[str]:
    """The arguments of `newton-losses` for a run with this configuration: what differs from the defaults.

    >>> " ".join(train_command({"task": "sorting", "algorithm": "softsort", "curvature": "fisher", "seed": 2}))
    'train sorting --algorithm softsort --curvature fisher --seed 2'
    """
    task = configuration["task"]
    words = ["train", task]
    for field in fields(configuration_class(task)):
        value = configuration.get(field.name)
        if value is None or field.name in _NO_OPTION or (field.default is not MISSING and value == field.default):
            continue
        if isinstance(value, bool):
            words.append(option(field.name) if value else option(field.name).replace("--", "--no-", 1))
        else:
            words += [option(field.name), _number(value) if isinstance(value, float) else str(value)]
    return words


def _number(value: float) -> str:
    """The shortest text that is read as this very number, so that the command is this very run.

    >>> _number(10.0), _number(1e-05), _number(0.0012345678), _number(1234567.0)
    ('10', '1e-05', '0.0012345678', '1234567')
    """
    texts = (f"{value:g}", repr(value).removesuffix(".0"))
    return min((text for text in texts if float(text) == value), key=len)
