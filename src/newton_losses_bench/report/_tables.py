"""The tables of a report: the paper's figures beside ours, with what was not run left visibly open."""

import math
from dataclasses import replace
from itertools import groupby

from ..cells import Cell as PaperCell
from ..cells import cells
from ..statistics import Summary, baseline_mark, mark
from ._blocks import NOT_RUN, NOTHING, Cell, Mark, Table, Text
from ._goal import SETTINGS, standings
from ._measured import SEEDS, Runs, main_metric, paper_cells, paper_figure
from ._names import METHOD_TITLES, TITLES, column_title

_MARKS = {"black": Mark.SIGNIFICANT, "grey": Mark.IMPROVED, "": Mark.PLAIN}
METHODS = {
    "baseline": "baseline",
    "hessian": "Hessian",
    "fisher": "Fisher",
    "clipped": "clipped at 1",
    "energy": "energy",
}
Figures = dict[str, Summary | None]


def sorting_table(runs: Runs, name: str, caption: Text, *, measured_only: bool = False) -> Table:
    """Table 1 for one length of training: the paper, the same numerics, and the loss in log space."""
    rows = []
    for column, found in _columns("table1"):
        ours = {cell.variant: runs.figure(column, cell.variant) for cell in found}
        stable = {cell.variant: runs.figure(column, cell.variant, "stable") for cell in found}
        element_wise = {
            numerics: {cell.variant: runs.figure(column, cell.variant, numerics, "element_wise") for cell in found}
            for numerics in ("reference", "stable")
        }
        for cell in found:
            method = cell.variant
            if measured_only and ours[method] is None and stable[method] is None:
                continue
            rows.append(
                (
                    Cell(column_title(column)),
                    Cell(METHODS[method]),
                    _paper(cell),
                    _paper(cell, "element_wise"),
                    _figure(ours, method),
                    _figure(element_wise["reference"], method, seeds=False),
                    difference(ours[method], paper_figure(cell)),
                    _figure(stable, method),
                    _figure(element_wise["stable"], method, seeds=False),
                    difference(stable[method], paper_figure(cell)),
                )
            )
    ours_heads = ("sets right, %", "ranks right, %", "difference")
    return _without_empty(
        Table(
            name,
            caption,
            ("loss", "method", "sets right, %", "ranks right, %", *ours_heads, *ours_heads),
            tuple(rows),
            labels=2,
            groups=(
                *(("", 2), ("the paper, 100,000 steps", 2)),
                *(("ours, the paper’s numerics", 3), ("ours, in log space", 3)),
            ),
        )
    )


def control_table(runs: Runs, name: str, caption: Text) -> Table:
    """A row a loss: what curvature, clipping, normalising and log space each bring, sets right in per cent."""
    rows = []
    for column, found in _columns("table1"):
        reference = {method: runs.figure(column, method) for method in METHODS}
        stable = {method: runs.figure(column, method, "stable") for method in ("baseline", "hessian", "fisher")}
        best = max((paper_figure(cell) for cell in found), key=lambda figure: figure.mean if figure else -math.inf)
        rows.append(
            (
                Cell(column_title(column)),
                plain(best),
                *(_figure(reference, method) for method in METHODS),
                *(_figure(stable, method) for method in stable),
            )
        )
    heads = ("baseline", "Hessian", "Fisher", "clipped", "energy", "baseline", "Hessian", "Fisher")
    return _without_empty(
        Table(
            name,
            caption,
            ("loss", "best", *heads),
            tuple(rows),
            groups=(("", 1), ("the paper", 1), ("ours, the paper’s numerics", 5), ("ours, in log space", 3)),
        )
    )


def goal_table(runs: Runs, name: str, caption: Text) -> Table:
    """A row a column of table 1: the paper's best, each of our settings in log space, our best, and where that is."""
    rows = []
    for one in standings(runs):
        rows.append(
            (
                Cell(column_title(one.column)),
                Cell(METHOD_TITLES[one.paper_method]),
                plain(one.paper),
                *(plain(figure, seeds=True) for figure in one.ours.values()),
                NOTHING if one.best is None else Cell(METHOD_TITLES[one.best[0]]),
                difference(one.best[1] if one.best else None, one.paper),
                Cell(one.state),
            )
        )
    return Table(
        name,
        caption,
        ("loss", "method", "best", *(METHOD_TITLES[method] for method in SETTINGS), "best", "difference", "goal"),
        tuple(rows),
        groups=(("", 1), ("the paper", 2), ("ours, in log space", len(SETTINGS) + 2), ("", 1)),
    )


def paths_table(table: str, benchmark: Runs, look_alike: Runs, name: str, caption: Text) -> Table:
    """Tables 2 and 3: the paper and us on its benchmark, and on terrain, where only gains can be compared."""
    rows = []
    for column, found in _columns(table):
        ours = {cell.variant: benchmark.figure(column, cell.variant) for cell in found}
        terrain = {cell.variant: look_alike.figure(column, cell.variant) for cell in found}
        for cell in found:
            method = cell.variant
            rows.append(
                (
                    Cell(_title(cell)),
                    _variant(cell),
                    Cell(METHODS[method]),
                    _paper(cell),
                    difference(paper_figure(cell), paper_figure(found[0])) if method != "baseline" else NOTHING,
                    _figure(ours, method),
                    difference(ours[method], paper_figure(cell)),
                    _figure(terrain, method),
                    difference(terrain[method], terrain["baseline"]) if method != "baseline" else NOTHING,
                )
            )
    found_table = Table(
        name,
        caption,
        (
            *("loss", "variant" if table == "table2" else "samples", "method"),
            *("perfect, %", "gain", "perfect, %", "difference", "perfect, %", "gain"),
        ),
        tuple(rows),
        labels=3,
        groups=(("", 3), ("the paper, Warcraft", 2), ("ours, Warcraft", 2), ("ours, terrain (a look-alike)", 2)),
    )
    return _without_empty(found_table)


def _without_empty(table: Table) -> Table:
    """The same with every group of columns in which nothing was run as a single column that says so."""
    kept: list[int] = []
    groups = []
    start = 0
    for text, width in table.groups:
        places = list(range(start, start + width))
        empty = all(row[place].mark is Mark.ABSENT for row in table.rows for place in places)
        places = places[:1] if empty and start >= table.labels else places
        kept += places
        groups.append((text, len(places)))
        start += width
    return replace(
        table,
        columns=tuple(table.columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in table.rows),
        groups=tuple(groups),
    )


def done(runs: Runs, table: str, *, papers: bool = True) -> tuple[int, int, int]:
    """How many cells of a table have runs, how many have the paper's ten seeds, and how many there are.

    They are the paper's cells, or those that it does not have: log space, controls, and Hessians it left out.
    """
    counts = [runs.seeds(table, cell.key) for cell in cells(table) if bool(cell.paper) == papers]
    return sum(count > 0 for count in counts), sum(count >= SEEDS for count in counts), len(counts)


def _columns(table: str) -> list[tuple[str, list[PaperCell]]]:
    """The paper's cells of a table, column by column."""
    papers = [cell for cell in paper_cells().values() if cell.table == table]
    return [(column, list(found)) for column, found in groupby(papers, key=lambda cell: cell.column)]


def _title(cell: PaperCell) -> str:
    title = TITLES[cell.algorithm]
    return title[0].upper() + title[1:]


def _variant(cell: PaperCell) -> Cell:
    if "num_samples" in cell.config:
        return _count(int(cell.config["num_samples"]))
    return Cell(f"{cell.config['loop']}, {'L₁' if cell.config['norm'] == 'l1' else 'L₂²'}")


def _paper(cell: PaperCell, metric: str | None = None) -> Cell:
    figure = paper_figure(cell, metric)
    kind = (cell.paper_bold or {}).get(metric or main_metric(cell), "")
    return NOTHING if figure is None else _shown(figure, _MARKS[kind])


def _figure(figures: Figures, method: str, *, seeds: bool = True) -> Cell:
    """A figure of ours with its number of seeds, marked by the paper's rules against the baseline in `figures`."""
    figure, baseline = figures[method], figures["baseline"]
    if figure is None:
        return NOT_RUN
    kind = ""
    others = [other for name, other in figures.items() if name != "baseline" and other is not None]
    if method == "baseline":
        kind = baseline_mark(figure, others) if others else ""
    elif baseline is not None:
        kind = mark(baseline, figure)
    return _shown(figure, _MARKS[kind], f" ({figure.count})" if seeds else "")


def plain(figure: Summary | None, *, seeds: bool = False) -> Cell:
    """A figure as it is, with its number of seeds where that is asked for."""
    return NOT_RUN if figure is None else _shown(figure, Mark.PLAIN, f" ({figure.count})" if seeds else "")


def _shown(figure: Summary, kind: Mark, more: str = "") -> Cell:
    deviation = "" if math.isnan(figure.std) else f"± {figure.std:.2f}"
    return Cell(f"{figure.mean:.2f}", figure.mean, (deviation + more).strip(), kind)


def difference(ours: Summary | None, other: Summary | None) -> Cell:
    """How much the mean of ours is above that of the other; nothing where one is missing."""
    if ours is None or other is None:
        return NOTHING
    return signed(ours.mean - other.mean)


def signed(value: float) -> Cell:
    """A difference with its sign.

    >>> signed(-1.234).text
    '−1.23'
    """
    text = "0.00" if abs(value) < 0.005 else f"{value:+.2f}".replace("-", "−")
    return Cell(text, value)


def _count(value: int) -> Cell:
    return Cell(str(value), float(value))
