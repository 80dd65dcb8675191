"""The page's style and its few lines of script, kept as the files that they are."""

import re
from functools import cache
from importlib import resources


@cache
def asset(name: str) -> str:
    """The text of a file in `assets/`.

    >>> asset("figure.css").startswith(":root")
    True
    """
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def figure_style() -> str:
    """The style of the charts on one line, for an SVG that is a file of its own."""
    return re.sub(r"\s+", " ", asset("figure.css")).strip()
