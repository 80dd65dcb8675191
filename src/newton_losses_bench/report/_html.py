"""A report as one HTML page that needs nothing else: style, script and figures are inside it."""

import html
from collections.abc import Sequence

from ._assets import asset
from ._blocks import (
    Block,
    Cell,
    Code,
    Figure,
    Heading,
    Inline,
    Link,
    Paragraph,
    Report,
    Strong,
    Table,
    Text,
    Verdict,
    parts_of,
)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="subtitle">{subtitle}</p>
</header>
<nav aria-label="Contents"><ol>
{contents}
</ol></nav>
<main>
{body}
</main>
<script>
{script}</script>
</body>
</html>
"""


def to_html(report: Report) -> str:
    """The page's text. Every string of the report is escaped here, and nowhere else."""
    headings = [block for block in report.blocks if isinstance(block, Heading) and block.level == 2]
    return _PAGE.format(
        title=html.escape(report.title),
        subtitle=html.escape(report.subtitle),
        style=asset("figure.css") + asset("page.css"),
        script=asset("sort.js"),
        contents="\n".join(f"<li>{_inline(Link(heading.text, heading.anchor))}</li>" for heading in headings),
        body="\n".join(_block(block) for block in report.blocks),
    )


def _block(block: Block) -> str:
    match block:
        case Heading(level, text, anchor):
            return f'<h{level} id="{html.escape(anchor)}">{html.escape(text)}</h{level}>'
        case Paragraph(text, kind):
            return f'<p class="{kind}">{_text(text)}</p>' if kind else f"<p>{_text(text)}</p>"
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
            return f"<code>{html.escape(text)}</code>"
        case Strong(text):
            return f"<strong>{html.escape(text)}</strong>"
        case Link(text, anchor):
            return f'<a href="#{html.escape(anchor)}">{html.escape(text)}</a>'
        case str():
            return html.escape(part)


def _table(table: Table) -> str:
    """A table in a box of its own that scrolls sideways, so that the page never has to."""
    identity = html.escape(table.name)
    heads = "".join(
        f'<th scope="col"{_side(place, table)}><button type="button">{html.escape(text)}</button></th>'
        for place, text in enumerate(table.columns)
    )
    words = table.words()
    rows = "\n".join(_row(row, table.labels, words) for row in table.rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{identity}-caption">'
        f'<table id="{identity}"><caption id="{identity}-caption">{_text(table.caption)}</caption>\n'
        f"<thead>{_groups(table)}<tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _groups(table: Table) -> str:
    if not table.groups:
        return ""
    cells = "".join(
        f'<th scope="colgroup" colspan="{width}"{" class=over" if text else ""}>{html.escape(text)}</th>'
        for text, width in table.groups
    )
    return f'<tr class="groups">{cells}</tr>'


def _row(row: Sequence[Cell], labels: int, words: set[int]) -> str:
    return "<tr>" + "".join(_cell(cell, place < labels, place in words) for place, cell in enumerate(row)) + "</tr>"


def _cell(cell: Cell, label: bool, words: bool) -> str:
    name, scope = ("th", ' scope="row"') if label else ("td", "")
    kinds = [kind for kind in (cell.mark.value, "name" if words and not label else "") if kind]
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    value = "" if cell.value is None else f' data-value="{cell.value:.6g}"'
    detail = f" <small>{html.escape(cell.detail)}</small>" if cell.detail else ""
    return f"<{name}{scope}{kind}{value}>{html.escape(cell.text)}{detail}</{name}>"


def _side(place: int, table: Table) -> str:
    return ' class="name"' if place in table.words() else ""


def _figure(figure: Figure) -> str:
    panels = "\n".join(
        f'<div class="panel"><p class="panel-title">{html.escape(panel.title)}</p>{panel.svg}</div>'
        for panel in figure.panels
    )
    return f'<figure><div class="panels">\n{panels}\n</div><figcaption>{_text(figure.caption)}</figcaption></figure>'


def _verdict(verdict: Verdict) -> str:
    judgements = "".join(
        f"<dt>{html.escape(setting)}</dt>"
        f'<dd><span class="status {status.name.lower()}">{status.value}</span> '
        f'<span class="figures">{html.escape(figures)}</span></dd>'
        for setting, status, figures in verdict.lines()
    )
    return (
        f'<section class="verdict"><p class="claim">{html.escape(verdict.claim)} '
        f'<span class="source">{html.escape(verdict.source)}</span></p><dl>{judgements}</dl>'
        f'<p class="rule">Rule: {html.escape(verdict.rule)} {html.escape(verdict.own)}</p></section>'
    )
