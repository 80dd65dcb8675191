"""What a report is made of, before it is HTML or Markdown: headings, paragraphs, tables, figures, verdicts.

Text is a sequence of plain strings and of marked ones. Nothing in it is ever taken for markup: each renderer
escapes every string, so that a name out of a run folder can be written down like any other word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Code:
    """A name or a command, set in the letters of a terminal."""

    text: str


@dataclass(frozen=True)
class Strong:
    """Words that matter most in their paragraph."""

    text: str


@dataclass(frozen=True)
class Link:
    """A reference to another place of the report, by the anchor of its heading."""

    text: str
    anchor: str


Inline = str | Code | Strong | Link
Text = Inline | Sequence[Inline]


def parts_of(text: Text) -> Sequence[Inline]:
    """A text as the sequence that it is or stands for."""
    return [text] if isinstance(text, Inline) else text


@dataclass(frozen=True)
class Heading:
    """A heading of level 2 or 3; the anchor is what links name."""

    level: int
    text: str
    anchor: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `kind` is "lead" for the opening, "note" for small print, else empty."""

    text: Text
    kind: str = ""


class Mark(Enum):
    """How a figure in a table is set."""

    PLAIN = ""
    SIGNIFICANT = "significant"  # bold: better than the baseline, one-sided t-test at .05
    IMPROVED = "improved"  # bold grey: the mean is better, and that is all
    ABSENT = "absent"  # not run, or not a thing that could be run


@dataclass(frozen=True)
class Cell:
    """A table's cell. `value` is what a column is sorted by; `detail` is small print after the text."""

    text: str
    value: float | None = None
    detail: str = ""
    mark: Mark = Mark.PLAIN


NOT_RUN = Cell("not run", mark=Mark.ABSENT)
NOTHING = Cell("–", mark=Mark.ABSENT)


@dataclass(frozen=True)
class Table:
    """A table: `columns` are its heads, the first `labels` of them name the row and are set to the left.

    `groups` are heads over several columns, as (text, number of columns); they cover all columns.
    """

    name: str
    caption: Text
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    labels: int = 1
    groups: tuple[tuple[str, int], ...] = ()

    def words(self) -> set[int]:
        """The columns that are set to the left: the labels, and those without a single figure in them."""
        figures = {
            place
            for row in self.rows
            for place, cell in enumerate(row)
            if cell.value is not None or cell.mark is Mark.ABSENT
        }
        return set(range(len(self.columns))) - figures | set(range(self.labels))


@dataclass(frozen=True)
class Panel:
    """One chart of a figure: its file's name, its title, its SVG and what it shows in words."""

    name: str
    title: str
    svg: str
    words: str


@dataclass(frozen=True)
class Figure:
    """Charts side by side under one caption."""

    panels: tuple[Panel, ...]
    caption: Text


class Status(Enum):
    """What the measurements say about a claim."""

    CONFIRMED = "confirmed"
    UNCONFIRMED = "not confirmed"
    OPEN = "not yet tested"


@dataclass(frozen=True)
class Judgement:
    """A status in one setting (a length of training, a data set), with the figures that led to it."""

    setting: str
    status: Status
    figures: str


@dataclass(frozen=True)
class Verdict:
    """A claim, where it is made, the rule by which it is decided, and what came out."""

    claim: str
    source: str
    rule: str
    judgements: tuple[Judgement, ...]
    own: str = ""  # what the same rule makes of the paper's own figures

    def lines(self) -> list[tuple[str, Status, str]]:
        """The judgements to be shown; neighbours that say the same, and nothing else, share a line."""
        found: list[tuple[str, Status, str]] = []
        for one in self.judgements:
            if found and not one.figures and found[-1][1:] == (one.status, ""):
                found[-1] = (f"{found[-1][0]}; {one.setting}", one.status, "")
            else:
                found.append((one.setting, one.status, one.figures))
        return found


Block = Heading | Paragraph | Table | Figure | Verdict


@dataclass(frozen=True)
class Report:
    """A whole report: its title, the line under it, and its blocks."""

    title: str
    subtitle: str
    blocks: tuple[Block, ...]
