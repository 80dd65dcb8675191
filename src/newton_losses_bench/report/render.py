"""Pages from a report: one HTML file that needs nothing else, and the documentation's page of evidence in Markdown."""

import re
from collections.abc import Callable
from pathlib import Path

from newton_losses import __version__
from newton_losses.errors import ArgumentError

from ..describe import count
from ..store import check_writable, write_atomically
from .collect import gather
from .figures import standalone, variables
from .sections import Report, compose

PAGE = "index.html"
PICTURE = "pictures/table1.svg"  # beside the page of evidence
LONG = 18  # a table with more rows is folded in Markdown


def silent(_: str) -> None:
    """Report no progress."""


def write_report(
    results: Path, out: Path, tell: Callable[[str], None] = silent, warn: Callable[[str], None] = silent
) -> Path:
    """Write the report about all runs under `results` into the folder `out`.

    `tell` hears what is being done, `warn` what the page does not show. Returns the path of the page, which needs
    nothing else.
    """
    report = _made(results, tell, warn, out)
    # A name from a file may hold halves of characters, which no encoding has.
    write_atomically(out / PAGE, to_html(report).encode(errors="replace"))
    return out / PAGE


def write_evidence(
    results: Path, page: Path, tell: Callable[[str], None] = silent, warn: Callable[[str], None] = silent
) -> list[Path]:
    """Write the documentation's page of evidence, and its picture beside it; returns the paths."""
    picture = page.parent / PICTURE
    report = _made(results, tell, warn, picture.parent)
    write_atomically(page, to_markdown(report).encode(errors="replace"))
    write_atomically(picture, standalone(report.headline).encode())
    return [page, picture]


def _made(results: Path, tell: Callable[[str], None], warn: Callable[[str], None], folder: Path) -> Report:
    """The report about a folder of results, after a look at whether it can be written into a folder."""
    if not results.is_dir():
        raise ArgumentError(f"--results {results}: there is no such folder. Name the folder that holds the runs.")
    check_writable(folder)
    tell(f"reading the runs in {results}")
    found = gather(results)
    if not found.index.records:
        tell(f"{results} holds no finished run; every cell will be marked “not run”")
    tell(f"drawing {count(len(found.index.records), 'run')}")
    report = compose(found)
    for sentence in report.apart:
        warn(sentence)
    return report


def to_html(report: Report) -> str:
    """The page. Every string is escaped by the template, except figures, which are drawn here."""
    return _render("page.html.jinja", report, escape=True)


def to_markdown(report: Report) -> str:
    """The claims and the tables as Markdown, with the picture of table 1."""
    return _render("evidence.md.jinja", report, escape=False)


def _render(template: str, report: Report, *, escape: bool) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, ""),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = plain
    names = {"version": __version__, "colours": variables(), "long": LONG, "picture": PICTURE}
    return environment.get_template(template).render(report=report, **names)


def plain(text: str) -> str:
    """Text that Markdown takes for nothing else.

    >>> plain("a_b | <i>")
    'a\\\\_b \\\\| \\\\<i\\\\>'
    """
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(text.split()))
