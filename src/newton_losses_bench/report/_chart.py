"""Line charts as SVG, drawn by hand: small, sharp, and coloured by the page that holds them.

Colours are classes (`tone-1` …) and `currentColor`, which the page's style sets for light and dark. A chart
that is a file of its own brings that style along (`standalone`).
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from ._assets import asset, figure_style
from ._scale import Axis

WIDTH, HEIGHT = 400, 260
_RIGHT, _BOTTOM = 22, 40
_LABEL = 22  # the room of the y axis' label
_LEGEND_ROW = 17
_LETTER = 6.1  # the mean width of a letter at the size of the legend, a little wide to be safe

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line of a chart. `tone` is the number of its colour, `band` its (x, low, high), `faint` for background."""

    label: str
    points: Sequence[Point]
    tone: int
    band: Sequence[tuple[float, float, float]] = ()
    dashed: bool = False
    faint: bool = False
    marked: bool = False


def chart(lines: Sequence[Line], x: Axis, y: Axis, title: str, description: str) -> str:
    """An `<svg>` element. `title` and `description` are what a reader hears who cannot see it."""
    left = _LABEL + max(18.0, _LETTER * max(len(text) for _, text in y.ticks()) + 6)
    legend, top = _legend([line for line in lines if line.label], left)
    frame = _Frame(x, y, left, top)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}. {html.escape(description)}">',
        *legend,
        *frame.axes(),
        *(frame.band(line) for line in lines if line.band),
        *(frame.line(line) for line in sorted(lines, key=lambda line: not line.faint)),
        "</svg>",
    ]
    return "".join(parts)


def standalone(svg: str) -> str:
    """The same chart as a file: it names its format, has a size, and brings the colours of the page, light and dark."""
    opening, content = svg.split(">", 1)
    attributes = f'width="{WIDTH}" height="{HEIGHT}" ' + opening.removeprefix("<svg ")
    return Template(asset("standalone.svg")).substitute(attributes=attributes, style=figure_style(), content=content)


class _Frame:
    """The rectangle that the axes span, and what is drawn in it."""

    def __init__(self, x: Axis, y: Axis, left: float, top: float) -> None:
        self.x, self.y, self.left, self.top = x, y, left, top
        self.width, self.height = WIDTH - left - _RIGHT, HEIGHT - _BOTTOM - top

    def at(self, point: Point) -> str:
        return f"{self.across(point[0]):.1f} {self.down(point[1]):.1f}"

    def across(self, value: float) -> float:
        return self.left + self.width * self.x.position(value)

    def down(self, value: float) -> float:
        return self.top + self.height * (1 - self.y.position(value))

    def axes(self) -> list[str]:
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        parts = []
        for value, text in self.y.ticks():
            down = self.down(value)
            parts.append(f'<path class="grid" d="M{self.left:.1f} {down:.1f}H{right}"/>')
            parts.append(f'<text x="{self.left - 6:.1f}" y="{down + 3.5:.1f}" text-anchor="end">{text}</text>')
        for value, text in self.x.ticks():
            across = self.across(value)
            parts.append(f'<path class="axis" d="M{across:.1f} {bottom}v4"/>')
            parts.append(f'<text x="{across:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
        parts.append(f'<path class="axis" d="M{self.left:.1f} {bottom}H{right}"/>')
        middle, centre = (self.left + right) / 2, self.top + self.height / 2
        parts.append(
            f'<text class="label" x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle">'
            f"{html.escape(self.x.label)}</text>"
        )
        parts.append(
            f'<text class="label" transform="rotate(-90)" x="{-centre:.1f}" y="11" text-anchor="middle">'
            f"{html.escape(self.y.label)}</text>"
        )
        return parts

    def line(self, line: Line) -> str:
        kind = " ".join(["line", f"tone-{line.tone}", *(name for name in ("dashed", "faint") if getattr(line, name))])
        drawn = f'<path class="{kind}" d="M{"L".join(self._corners(line.points))}"/>'
        if line.marked:
            marks = (
                f'<circle class="mark tone-{line.tone}" cx="{self.across(a):.1f}" cy="{self.down(b):.1f}" r="2.6"/>'
                for a, b in line.points
            )
            drawn += "".join(marks)
        return drawn

    def _corners(self, points: Sequence[Point]) -> list[str]:
        """The points' places without those inside a level run, which a line draws anyway."""
        places = [self.at(point) for point in points]
        heights = [place.split(" ")[1] for place in places]
        last = len(places) - 1
        level = {k for k in range(1, last) if heights[k - 1] == heights[k] == heights[k + 1]}
        return [place for k, place in enumerate(places) if k not in level]

    def band(self, line: Line) -> str:
        there = [self.at((x, high)) for x, _, high in line.band]
        back = [self.at((x, low)) for x, low, _ in reversed(line.band)]
        return f'<path class="band tone-{line.tone}" d="M{"L".join([*there, *back])}Z"/>'


def _legend(lines: Sequence[Line], left: float) -> tuple[list[str], float]:
    """The legend in as many rows as it needs, and where the frame below it begins."""
    across, down = left, 12.0
    parts = []
    for line in lines:
        width = 24 + _LETTER * len(line.label) + 10
        if across > left and across + width > WIDTH:
            across, down = left, down + _LEGEND_ROW
        dashed = " dashed" if line.dashed else ""
        parts.append(f'<path class="line tone-{line.tone}{dashed}" d="M{across:.0f} {down - 3.5}h18"/>')
        parts.append(f'<text x="{across + 23:.0f}" y="{down}">{html.escape(line.label)}</text>')
        across += width
    return parts, (down + 10 if lines else 8)
