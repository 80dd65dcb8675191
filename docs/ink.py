"""Draws with matplotlib in the ink of the page: SVG whose colours follow light and dark.

A figure is drawn with the light page's colours; each becomes a variable (`--ink`, `--tone-1` and so on) that
`assets/site.css` sets for both schemes, once `drawings.py` has put the drawing into the page. Seen alone, a file
follows the reader's system.
"""

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from newton_losses_bench.report.figures import COLOURS

INK, SOFT, RULE = (COLOURS[name][0] for name in ("ink", "soft", "rule"))
TONES = [COLOURS[f"tone-{number}"][0] for number in range(6)]
# What matplotlib draws with when nobody asks, for figures that are drawn elsewhere.
_DEFAULTS = {"#000000": "ink", "#1f77b4": "tone-1", "#ff7f0e": "tone-2", "#2ca02c": "tone-3"}
_STYLE = {
    **{f"{axis}tick.color": SOFT for axis in "xy"},
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "legend.facecolor": "none",
    "legend.edgecolor": RULE,
    "legend.labelcolor": INK,
    "text.color": INK,
    "svg.fonttype": "none",
}


@contextmanager
def drawing() -> Iterator[None]:
    """Figures made inside have transparent paper and the page's ink."""
    with matplotlib.rc_context({**_STYLE, "axes.prop_cycle": matplotlib.cycler(color=TONES[1:])}):
        yield


def save(figure: Figure, path: Path, words: str) -> None:
    """Write a figure as SVG; `words` say what it shows to those who do not see it."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        nothing = dict.fromkeys(("Date", "Creator", "Type", "Format"))
        FigureCanvasSVG(figure).print_svg(text, metadata=nothing)
    path.write_text(in_variables(text.getvalue(), path.stem, words), encoding="utf-8")


def in_variables(svg: str, name: str, words: str) -> str:
    """An SVG of matplotlib with variables in place of colours, and without fonts, a fixed size and comments."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r"font-family: [^;\"]*;? ?|font: (\d[\d.]*)px [^;\"]*", lambda m: f"font-size: {m[1]}px" if m[1] else "", svg
    )
    # Names of parts are the same in every file, and a page may have several.
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)
    svg = re.sub(r'(id="|url\(#|href="#)([\w-]+)', rf"\1{name}-\2", svg).replace("xlink:href", "href")
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)
    # Of a path, a tenth of a unit is less than anybody sees.
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\d\.\d)\d", r"\1", path[0]), svg)
    for number, colour in {value[0]: key for key, value in COLOURS.items()}.items():
        svg = svg.replace(number, f"var(--{colour}, {number})")
    for number, colour in _DEFAULTS.items():
        svg = svg.replace(number, f"var(--{colour}, {COLOURS[colour][0]})")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size is not None
    light, dark = (" ".join(f"--{key}: {value[scheme]};" for key, value in COLOURS.items()) for scheme in (0, 1))
    style = (
        f"<style>svg {{ {light} fill: var(--ink); }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}</style>"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{html.escape(words)}" {size[0]}'
    )
    head += f' width="{float(size[1]) * 4 / 3:.0f}" font-family="system-ui, sans-serif">'
    return head + style + svg[svg.index(">", svg.index("<svg")) + 1 :]
