"""What comes out of files that anybody may have written, as text for a table."""

from pathlib import Path
from typing import Any

_LONGEST = 60  # letters of a value that a table shows


def relative(path: Path, results: Path) -> str:
    """A path as seen from the folder of results."""
    return str(path.relative_to(results)) if path.is_relative_to(results) else path.name


def brief(value: Any) -> str:
    """A value as text on one line, shortened where it is very long."""
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
