"""The page about the demonstration: one HTML file that needs nothing else."""

import base64
import html
from pathlib import Path
from typing import Any

from ..describe import duration
from ..store import write_atomically
from ._pictures import learning_curves, sorted_numbers
from ._setting import DemoConfig
from ._summary import Row, summarise, verdict

Record = dict[str, Any]

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Newton losses: a demonstration</title>
<style>
  body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 52rem; margin: 2.5rem auto; padding: 0 1rem; color: #222; }}
  h1 {{ font-size: 1.7rem; margin-bottom: .2rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
  img {{ max-width: 100%; }} table {{ border-collapse: collapse; }}
  th, td {{ padding: .3rem .9rem .3rem 0; text-align: right; border-bottom: 1px solid #ddd; }}
  th:first-child, td:first-child {{ text-align: left; }} .dot {{ font-size: 1.3em; vertical-align: -.06em; }}
  .lead {{ font-size: 1.08rem; }} .small {{ color: #666; font-size: .9rem; }}
</style>
<h1>Newton losses: a demonstration</h1>
<p class="small">{steps} steps, {seeds} seeds, {runs} networks, {took}</p>
<p class="lead">{verdict}</p>
<h2>The task</h2>
<p>A small network sees pictures of two-digit numbers and gives each a score. All it is ever told is how sets of
{n} numbers have to be ordered. A set counts when all of it is in the right order; by chance that is
{chance:.1f} %.</p>
<img src="data:image/png;base64,{numbers}" alt="Test sets as the networks order them">
<p class="small">Fresh test sets, ordered by two of the networks (seed 0). Green: the number is in its place.</p>
<h2>How they learn</h2>
<img src="data:image/png;base64,{curves}" alt="Learning curves of all arms">
<table>
<tr><th>loss</th><th>sets in the right order</th><th>numbers in place</th></tr>
{rows}
</table>
<p class="small">Test accuracy after the last step, mean ± standard deviation over the seeds.</p>
<h2>What it shows, and what not</h2>
<p>All networks start from the same weights and see the same batches; only the loss differs. It is SoftSort with
the cross-entropy on its permutation matrix. The pixels come unscaled, 0 to 255, so that the scores are far apart
from the first step on. Then the <em>usual</em> loss, computed from probabilities in float32, has gradients
that are huge and mostly rounding error, and learning stops before it begins. The <em>Newton loss</em> divides the
gradient by the loss's own curvature, here the empirical Fisher with the damping λ = 100, and learns.
<em>Gradient clipping</em> treats the same symptom. The <em>stable</em> loss removes the cause: it is the same formula
in log space, and this library's default.</p>
<p>The setting was chosen because the usual loss fails in it, and λ from 0.1, 1, 10, 100 and 1000 on one seed. With
pixels scaled to 0 … 1 the losses learned alike when it was tried. What Newton losses bring on the real
benchmarks, at full length, is for <code>newton-losses train</code> to show.</p>
</html>
"""


def write_page(out: Path, config: DemoConfig, evaluations: dict[str, list[list[Record]]], seconds: float) -> Path:
    """Write the two pictures and the page that shows them; returns the page's path."""
    rows = summarise(evaluations)
    curves, numbers = learning_curves(evaluations), sorted_numbers(out, config)
    write_atomically(out / "learning_curves.png", curves)
    write_atomically(out / "sorted_numbers.png", numbers)
    chance = 100.0
    for place in range(2, config.n + 1):
        chance /= place
    seeds = len(rows[0].exact)
    page = _PAGE.format(
        steps=config.steps,
        seeds=seeds,
        runs=seeds * len(rows),
        took=f"in {duration(seconds)} minutes",
        verdict=html.escape(verdict(rows)),
        n=config.n,
        chance=chance,
        numbers=base64.b64encode(numbers).decode(),
        curves=base64.b64encode(curves).decode(),
        rows="\n".join(_table_row(row) for row in rows),
    )
    write_atomically(out / "index.html", page.encode())
    return out / "index.html"


def _table_row(row: Row) -> str:
    return (
        f'<tr><td><span class="dot" style="color:{row.arm.colour}">●</span> {html.escape(row.arm.title)}</td>'
        f"<td>{row.mean:.1f} ± {row.std:.1f} %</td><td>{row.mean_element_wise:.1f} %</td></tr>"
    )
