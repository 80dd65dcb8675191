"""Pages from a report: one HTML file that needs nothing else, and the same sections as Markdown."""

import html
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from newton_losses import __version__
from newton_losses.errors import ArgumentError

from ..store import check_writable, write_atomically
from .collect import gather
from .figures import COLOURS, Figure
from .sections import SELECTION, Commands, Figures, Heading, Report, Section, compose
from .tables import Cell, Table, claims_table

PAGE, TEXT, FIGURES = "index.html", "report.md", "figures"
_LONG = 18  # a table with more rows is folded in Markdown
_EVIDENCE = f"""# Evidence

Does it hold up? Each table starts with the verdict; deviations and commands are folded below it. All of it is made from
`results/` by `newton-losses report --evidence docs/evidence.md`, and no number is typed by hand except the paper's.

{SELECTION} Figures are means in per cent over the seeds. Missing runs are marked "not run". `newton-losses report`
shows the same runs with learning curves, times and gradients on one page that needs no network.
"""


def silent(_: str) -> None:
    """Report no progress."""


def write_report(results: Path, out: Path, tell: Callable[[str], None] = silent) -> list[Path]:
    """Write the report about all runs under `results` into the folder `out`; `tell` hears what is being done.

    Returns the paths: `index.html`, which needs nothing else, `report.md`, and the figures that it names.
    """
    report = _made(results, tell, out, out / FIGURES)
    pictures = [report.headline, *_figures(report)]
    files = {PAGE: to_html(report), TEXT: to_markdown(report)}
    for name, text in files.items():
        # A name from a file may hold halves of characters, which no encoding has.
        write_atomically(out / name, text.encode(errors="replace"))
    return [*(out / name for name in files), *write_figures(pictures, out / FIGURES)]


def write_evidence(results: Path, page: Path, tell: Callable[[str], None] = silent) -> list[Path]:
    """Write the documentation's page of evidence, and its pictures into `pictures/` beside it; returns the paths."""
    text, pictures = evidence(_made(results, tell, page.parent))
    write_atomically(page, text.encode())
    return [page, *write_figures(pictures, page.parent / "pictures")]


def evidence(report: Report) -> tuple[str, list[Figure]]:
    """The documentation's page of evidence, and the pictures that it shows."""
    sections = [section for section in report.sections if section.documented]
    kept = [figure for figure in _figures(report) if figure.name in _kept(sections)]
    claims = [f"## The claims\n\n{report.lead}\n"]
    claims += [f"### {name}\n\n{_table(claims_table(found, ''))}" for name, found in report.claims.items()]
    body = [_section(section, "pictures", _kept(sections)) for section in sections]
    return "\n".join([_EVIDENCE, *claims, *body]), kept


def _made(results: Path, tell: Callable[[str], None], *folders: Path) -> Report:
    """The report about a folder of results, after a look at whether it can be written into these folders."""
    if not results.is_dir():
        raise ArgumentError(f"--results {results}: there is no such folder. Name the folder that holds the runs.")
    for folder in folders:
        check_writable(folder)
    tell(f"reading the runs in {results}")
    found = gather(results)
    if not found.index.records:
        tell(f"{results} holds no finished run; every cell will be marked “not run”")
    tell(f"drawing {len(found.index.records)} runs")
    return compose(found)


def _figures(report: Report) -> list[Figure]:
    blocks = [block for section in report.sections for block in section.blocks]
    return [figure for block in blocks if isinstance(block, Figures) for figure in block.figures]


def _kept(sections: list[Section]) -> set[str]:
    return {
        name for section in sections for block in section.blocks if isinstance(block, Figures) for name in block.kept
    }


def to_html(report: Report) -> str:
    """The page. Every string is escaped by the template, except figures, which are drawn here."""
    import jinja2
    from markupsafe import Markup

    loader = jinja2.PackageLoader(__package__, "")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["drawing"] = lambda figure: Markup(figure.svg)
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["words"] = lambda columns: list(columns)
    schemes = [" ".join(f"--{name}: {pair[place]};" for name, pair in COLOURS.items()) for place in (0, 1)]
    template = environment.get_template("template.html.jinja")
    return template.render(report=report, light=schemes[0], dark=schemes[1], version=__version__, is_word=_is_word)


def _is_word(table: Table, column: int) -> bool:
    """Whether a column is set to the left: it names the row, or has no number in it."""
    return column < table.labels or all(row[column].value is None for row in table.rows)


def to_markdown(report: Report) -> str:
    """The same as Markdown, all sections."""
    claims = [f"### {name}\n\n{_table(claims_table(found, ''))}" for name, found in report.claims.items()]
    picture = f"![{_escaped(report.headline.title)}]({FIGURES}/{report.headline.name}.svg)\n"
    start = [f"# Does it hold up?\n\n{report.lead} {report.state}\n", picture, "## The claims\n", *claims]
    return "\n".join([*start, *(_section(section, FIGURES) for section in report.sections)])


def _section(section: Section, folder: str, only: set[str] | None = None) -> str:
    parts = [f"## {section.title}\n", f"**{section.answer}**\n"]
    for block in section.blocks:
        if isinstance(block, str):
            parts.append(f"{block}\n")
        elif isinstance(block, Heading):
            parts.append(f"### {block.text}\n")
        elif isinstance(block, Table):
            parts += _tables(block)
        elif isinstance(block, Commands):
            parts.append(_fold("Commands", "".join(f"    {line}\n" for line in block.lines)))
        else:
            shown = [one for one in block.figures if only is None or one.name in only]
            lines = [f"![{_escaped(f'{one.title}: {one.words}')}]({folder}/{one.name}.svg)" for one in shown]
            parts += [f"{block.caption}\n", "\n".join(lines) + "\n"] if lines else []
    return "\n".join(parts)


def _tables(table: Table) -> Iterator[str]:
    """A table; with its deviations, or with many rows, folded."""
    if len(table.rows) > _LONG:
        yield _fold(
            f"{len(table.rows)} rows: {table.caption.split(':')[0].split('. ')[0].rstrip('.')}",
            f"{table.caption}\n\n{_table(table, details=True)}",
        )
        return
    yield f"{table.caption}\n" if table.caption else ""
    yield _table(table)
    if any(cell.detail for row in table.rows for cell in row):
        yield _fold("With standard deviations and seeds", _table(table, details=True))


def _table(table: Table, *, details: bool = False) -> str:
    def text(cell: Cell) -> str:
        found = f"{cell.text} {cell.detail}" if details and cell.detail else cell.text
        return f"**{_escaped(found)}**" if cell.kind in ("good", "bad", "significant") else _escaped(found)

    heads = [_escaped(head) for head in table.heads]
    line = ["---" if _is_word(table, column) else "--:" for column in range(len(heads))]
    rows = [[text(cell) for cell in row] for row in table.rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, line, *rows))


def _fold(title: str, content: str) -> str:
    return f'<details markdown="1"><summary>{title}</summary>\n\n{content}\n</details>\n'


def _escaped(text: str) -> str:
    """Text that Markdown takes for nothing else.

    >>> _escaped("a_b | <i>")
    'a\\\\_b \\\\| \\\\<i\\\\>'
    """
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def standalone(figure: Figure) -> str:
    """A figure as a file of its own: with its title and the names of its lines, in the reader's colours."""
    schemes = [" ".join(f"--{name}: {pair[place]};" for name, pair in COLOURS.items()) for place in (0, 1)]
    style = (
        f"<style>svg {{ {schemes[0]} font: 8px system-ui, sans-serif; fill: var(--ink); }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {schemes[1]} }} }}</style>"
    )
    view = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', figure.svg)
    assert view is not None
    width, height = float(view[1]), float(view[2])
    names = [
        f'<tspan style="fill: var(--tone-{tone})">{"╍╍" if dashed else "━━"}</tspan> {html.escape(label)}  '
        for label, tone, dashed in figure.legend
    ]
    lines = [names[first : first + 3] for first in range(0, len(names), 3)]
    keys = "".join(
        f'<text x="8" y="{height + 11 * (place + 1):g}" xml:space="preserve">{"".join(line)}</text>'
        for place, line in enumerate(lines)
    )
    title = f'<text x="8" y="-5" style="font-weight: 600">{html.escape(figure.title)}</text>'
    size = f'viewBox="0 -15 {width:g} {height + 20 + 11 * len(lines):g}" width="{1.25 * width:.0f}"'
    start = figure.svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1).replace(view[0], size, 1)
    opened = start.index(">") + 1
    return f"{start[:opened]}{style}{title}{start[opened:].removesuffix('</svg>')}{keys}</svg>\n"


def write_figures(figures: Iterable[Figure], out: Path) -> list[Path]:
    """Write each figure to its own SVG file; returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for figure in figures:
        paths.append(out / f"{figure.name}.svg")
        write_atomically(paths[-1], standalone(figure).encode())
    return paths
