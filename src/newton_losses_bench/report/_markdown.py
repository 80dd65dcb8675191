"""A report as Markdown, for reading in a repository; its figures are files beside it."""

import re

from ._blocks import (
    Block,
    Cell,
    Code,
    Figure,
    Heading,
    Inline,
    Link,
    Mark,
    Paragraph,
    Report,
    Strong,
    Table,
    Text,
    Verdict,
    parts_of,
)

FIGURES = "figures"
# What could begin markup, or HTML, or end a table's cell.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")


def to_markdown(report: Report) -> str:
    """The report's text; figures are named as files in the folder `figures` beside it."""
    parts = [f"# {escape(report.title)}", escape(report.subtitle), *(_block(block) for block in report.blocks)]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    r"""A string that Markdown shows as it is, on one line.

    >>> print(escape("<b>|a_b"))
    \<b\>\|a\_b
    """
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _block(block: Block) -> str:
    match block:
        case Heading(level, text, _):
            return f"{'#' * level} {escape(text)}"
        case Paragraph(text, _):
            return _text(text)
        case Table():
            return _table(block)
        case Figure():
            return _figure(block)
        case Verdict():
            return _verdict(block)


def _text(text: Text) -> str:
    return "".join(_inline(part) for part in parts_of(text))


def _inline(part: Inline) -> str:
    match part:
        case Code(text):
            return _code(text)
        case Strong(text):
            return f"**{escape(text)}**"
        case Link(text, _):
            return escape(text)
        case str():
            # Spaces at the ends part it from its neighbours, so they have to stay.
            start, end = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
            return (" " if start else "") + escape(part) + (" " if end and part.strip() else "")


def _code(text: str) -> str:
    """In back quotes, one more than the longest run of them inside. Only in paragraphs: a table's cells are text."""
    text = " ".join(text.split())
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{text}{space}{fence}"


def _table(table: Table) -> str:
    columns = list(table.columns)
    if table.groups:
        over = [text for text, width in table.groups for _ in range(width)]
        columns = [f"{group}: {column}" if group else column for group, column in zip(over, columns, strict=True)]
    sides = [":--" if place < table.labels else "--:" for place in range(len(columns))]
    lines = [
        "| " + " | ".join(escape(column) for column in columns) + " |",
        "|" + "|".join(sides) + "|",
        *("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in table.rows),
    ]
    return _text(table.caption).strip() + "\n\n" + "\n".join(lines)


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.mark is Mark.SIGNIFICANT:
        text = f"**{text}**"
    elif cell.mark is Mark.IMPROVED:
        text = f"*{text}*"
    return f"{text} {escape(cell.detail)}" if cell.detail else text


def _figure(figure: Figure) -> str:
    pictures = [
        f"![{escape(panel.title)}. {escape(panel.words)}]({FIGURES}/{panel.name}.svg)" for panel in figure.panels
    ]
    return "\n".join(pictures) + "\n\n" + _text(figure.caption)


def _verdict(verdict: Verdict) -> str:
    lines = [f"**{escape(verdict.claim)}** ({escape(verdict.source)})", ""]
    lines += [
        f"- {escape(setting)}: **{status.value}**{'. ' if figures else ''}{escape(figures)}"
        for setting, status, figures in verdict.lines()
    ]
    return "\n".join([*lines, f"- Rule: {escape(verdict.rule)} {escape(verdict.own)}".rstrip()])
