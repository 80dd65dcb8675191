"""Formulas, written as `$…$` or `$$…$$` in the pages, become MathML when the site is built.

Browsers draw MathML themselves, so the site needs no script and no connection for it. The font is a part of STIX Two
Math, bundled in `assets/`. What the converter does not know stops the build instead of showing up as source.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves behind: an element with \(…\) or \[…\] in it.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_BOLD = re.compile(r'<mn mathvariant="bold">(\d)</mn>')


def mathml(tex: str, *, block: bool) -> str:
    """A formula as a `<math>` element.

    >>> print(mathml(r"\\lambda^2", block=False))
    <math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><msup><mi>&#x003BB;</mi>...</math>
    """
    found = convert(tex, display="block" if block else "inline")
    # Browsers do not read this attribute; the bold digits are letters of their own.
    found = _BOLD.sub(lambda digit: f"<mn>&#x{0x1D7CE + int(digit[1]):X};</mn>", found)
    if "\\" in found or "<mi>&</mi>" in found:
        raise ValueError(f"the formula {tex!r} has a command that the site cannot draw. Write it in another way.")
    return found


def on_page_content(text: str, **_: Any) -> str:
    """Called by mkdocs with the HTML of each page."""

    def draw(match: re.Match[str]) -> str:
        block = match[1] == "div"
        drawn = mathml(html.unescape(match[2]).strip(), block=block)
        return f'<div class="formula">{drawn}</div>' if block else drawn

    return _FORMULA.sub(draw, text)
