"""Writing a report: the page, the same as Markdown, and its figures as files."""

from collections.abc import Callable
from pathlib import Path

from newton_losses.errors import ArgumentError

from ..store import Store, check_writable, write_atomically
from ._blocks import Figure
from ._chart import standalone
from ._compose import compose, silent
from ._html import to_html
from ._markdown import FIGURES, to_markdown

PAGE, TEXT = "index.html", "report.md"


def write_report(results: Path, out: Path, tell: Callable[[str], None] = silent) -> list[Path]:
    """Write the report about all runs under `results` into the folder `out`, telling what is being done.

    Returns the paths: `index.html`, which needs nothing else, `report.md`, and the figures that it names.
    """
    if not results.is_dir():
        raise ArgumentError(f"--results {results}: there is no such folder. It is the one that holds run folders.")
    check_writable(out)
    check_writable(out / FIGURES)
    if not Store(results).records():
        tell(f"{results} holds no finished run, as every cell of the page will say")
    report = compose(results, tell)
    files = {PAGE: to_html(report), TEXT: to_markdown(report)}
    for block in report.blocks:
        if isinstance(block, Figure):
            files |= {f"{FIGURES}/{panel.name}.svg": standalone(panel.svg) for panel in block.panels}
    for name, text in files.items():
        # A name out of a file may hold halves of characters, which no encoding has.
        write_atomically(out / name, text.encode(errors="replace"))
    return [out / name for name in files]
