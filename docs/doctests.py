"""For the API pages: examples in docstrings become code blocks. Markdown would take `>>>` for a quotation."""

from typing import Any

import griffe


class FenceDoctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)


def fence(text: str) -> str:
    """Each run of lines from a `>>>` to the next blank line, between fences."""
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if inside and not line.strip():
            lines.append("```")
            inside = False
        elif not inside and line.startswith(">>>"):
            lines.append("```pycon")
            inside = True
        lines.append(line)
    return "\n".join(lines).rstrip()
