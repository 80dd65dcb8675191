"""Drawings in SVG go into the page itself, so that their colours follow its light and dark scheme.

They are drawn in variables (`--ink`, `--tone-1` and so on), which `assets/site.css` sets for both schemes. Seen alone,
for instance on a code host, a file uses the colours in its own `<style>`.
"""

import html
import re
from pathlib import Path
from typing import Any

_IMAGE = re.compile(r'<img alt="([^"]*)" src="([^":]+\.svg)"[^>]*>')
_STYLE = re.compile(r"<style.*?</style>", re.DOTALL)


def on_page_content(text: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs with the HTML of each page."""
    folder = Path(page.file.abs_dest_path).parent
    source = Path(page.file.abs_src_path).parent

    def inline(match: re.Match[str]) -> str:
        # Links of a page lead from where it will be; without folders of their own, that is where it was written.
        words, file = html.unescape(match[1]), (source / match[2]).resolve()
        if not file.exists():
            raise FileNotFoundError(f"{page.file.src_path}: there is no {file} (for a page in {folder})")
        drawing = _STYLE.sub("", file.read_text(encoding="utf-8"), count=1)
        drawing = drawing[drawing.index("<svg") :]
        if width := re.search(r' width="(\d+)"', match[0]):
            drawing = re.sub(r' width="[\d.]+"', width[0], drawing, count=1)
        if "aria-label=" not in drawing[: drawing.index(">")]:
            drawing = drawing.replace("<svg", f'<svg role="img" aria-label="{html.escape(words)}"', 1)
        return drawing

    return _IMAGE.sub(inline, text)
