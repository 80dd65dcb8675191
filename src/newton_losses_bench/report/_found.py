"""What comes out of files that anybody may have written: numbers to count with, and text for a table."""

import math
from pathlib import Path
from typing import Any

_LONGEST = 60  # letters of a value that a table shows


def relative(path: Path, results: Path) -> str:
    """A path as seen from the folder of results."""
    return str(path.relative_to(results)) if path.is_relative_to(results) else path.name


def finite(value: Any) -> float | None:
    """A number that can be counted with, or `None`: JSON has true, infinities and numbers of any length too.

    >>> finite(2), finite(True), finite(10**400), finite(float("nan")), finite("2")
    (2.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def percentage(value: Any) -> float | None:
    """An accuracy, or `None` for what is no number from 0 to 100."""
    found = finite(value)
    return found if found is not None and 0 <= found <= 100 else None


def brief(value: Any) -> str:
    """A value as text on one line, shortened where it is very long."""
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
