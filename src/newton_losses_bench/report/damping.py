"""`damping="auto"` beside other λ: the paper's, and the one that a seed chooses from the paper's grid."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..cells import Cell as PaperCell
from ..groups import Group
from ..statistics import LEVEL, Summary, p_value, paired_p_value, summarise
from ..store import RunRecord
from .collect import AUTO, GRID, METHODS, Runs, column_title, curved_cells, finite, main_metric
from .tables import NOTHING, Cell, Table, count_cell, figure_cell, probability, signed

RUINED = 10  # points behind "auto"


@dataclass(frozen=True)
class Automatic:
    """A cell with `damping="auto"`, beside the plain loss and the paper's λ.

    `p` and `paired` are the probability of so large a lead of the better of these two over "auto" if there were none,
    by Welch's test and from the differences seed by seed.
    """

    cell: PaperCell
    group: Group
    own: Summary
    plain: Summary | None
    tuned: Summary | None
    p: float = math.nan
    paired: float = math.nan

    @property
    def is_best(self) -> bool:
        """Whether no mean beside it is higher."""
        return all(one.mean <= self.own.mean for one in (self.plain, self.tuned) if one is not None)


def automatic(runs: Runs, task: str) -> list[Automatic]:
    """The cells of a task that have runs with "auto"."""
    found = []
    for cell in (cell for cell in curved_cells() if cell.task == task):
        metric, numerics = main_metric(cell), cell.numerics or "reference"
        plain, tuned, group = (
            runs.runs(cell.column, method, numerics) for method in ("baseline", cell.variant, f"{cell.variant}-{AUTO}")
        )
        if group is None or (own := group.summary(metric)) is None:
            continue
        others = [(one, figure) for one in (plain, tuned) if one is not None and (figure := one.summary(metric))]
        tests = (math.nan, math.nan)
        if others:
            rival, figure = max(others, key=lambda one: one[1].mean)
            tests = p_value(own, figure), paired_p_value(rival.ahead_of(group, metric).values())
        first, second = (None if one is None else one.summary(metric) for one in (plain, tuned))
        found.append(Automatic(cell, group, own, first, second, *tests))
    return found


@dataclass(frozen=True)
class Chosen:
    """A cell with the λ of the paper's grid that one seed chooses by its validation, as the paper chose.

    - `of_a_seed`: the test figure of that seed for every λ.
    - `group`, `own`: the runs of all seeds with the chosen `damping`, and their figure; `auto`: that of "auto".
    - `unseen`: their lead over "auto" on the seeds that had no part in the choice.
    - `p`, `paired`: of so large a lead over "auto" if there were none.
    """

    cell: PaperCell
    of_a_seed: dict[float, float]
    damping: float
    group: Group
    own: Summary
    auto: Summary | None
    unseen: float | None
    p: float
    paired: float


def chosen(runs: Runs, task: str, seed: int = 0) -> list[Chosen]:
    """The cells of a task for which the whole grid was run with this seed."""
    found = []
    for cell in (cell for cell in curved_cells() if cell.task == task):
        metric, numerics = main_metric(cell), cell.numerics or "reference"
        groups = {damping: runs.runs(cell.column, f"{cell.variant}-{damping:g}", numerics) for damping in GRID}
        records = {
            damping: one
            for damping, group in groups.items()
            for one in (group.records if group else ())
            if one.seed == seed and metric in one.test
        }
        if len(records) < len(GRID):
            continue
        best = max(GRID, key=lambda damping: _validation(records[damping], metric))
        group = groups[best]
        assert group is not None  # it has a record
        own = summarise(group.values(metric))
        auto = runs.runs(cell.column, f"{cell.variant}-{AUTO}", numerics)
        figure = None if auto is None else auto.summary(metric)
        ahead = {} if auto is None else group.ahead_of(auto, metric)
        others = [value for one, value in ahead.items() if one != seed]
        found.append(
            Chosen(
                cell,
                {damping: records[damping].test[metric] for damping in GRID},
                best,
                group,
                own,
                figure,
                statistics.fmean(others) if others else None,
                math.nan if figure is None else p_value(figure, own),
                paired_p_value(ahead.values()),
            )
        )
    return found


def _validation(record: RunRecord, metric: str) -> float:
    """The validation at the step of the run's test figure; a run without one is not chosen."""
    found = record.reported.get("validation")
    value = finite(found.get(metric)) if isinstance(found, dict) else None
    return -math.inf if value is None else value


def how_often_behind(several: Sequence[Automatic | Chosen]) -> str:
    """In how many cells "auto" is behind beyond noise, by either test, and how many to expect by chance."""
    welch, paired = (
        [p for p in column if not math.isnan(p)]
        for column in zip(*((one.p, one.paired) for one in several), strict=True)
    )
    return (
        f"{sum(p < LEVEL for p in welch)} of {len(welch)} cells by Welch’s test and "
        f"{sum(p < LEVEL for p in paired)} of {len(paired)} by paired tests ({LEVEL * len(paired):.2f} by chance)"
    )


def auto_table(several: Sequence[Automatic]) -> Table:
    """Every cell with "auto", the verdict first."""
    rows = [
        (
            *_labels(one),
            _verdict(one.p, one.paired, higher=one.is_best),
            figure_cell(one.own),
            figure_cell(one.plain),
            figure_cell(one.tuned),
            count_cell(float(one.cell.config["damping"])),
            probability(one.paired),
        )
        for one in several
    ]
    caption = (
        "“auto” beside the plain loss and the paper’s λ: test accuracy in %, sorting in log space. "
        "p: the probability of so large a lead over “auto” of the better of the two if there were none (paired t-test, "
        "one-sided)."
    )
    heads = ("loss", "curvature", "auto is", "auto", "plain", "paper’s λ", "λ", "p")
    return Table("damping-auto", caption, heads, rows, 2)


def chosen_table(several: Sequence[Chosen]) -> Table:
    """The λ that one seed chooses, beside "auto"."""
    rows = [
        (
            *_labels(one),
            _verdict(one.p, one.paired, higher=one.auto is not None and one.auto.mean >= one.own.mean),
            figure_cell(one.auto),
            figure_cell(one.own),
            count_cell(one.damping),
            probability(one.paired),
        )
        for one in several
    ]
    caption = (
        "“auto” beside the λ that seed 0 chooses from the grid by validation: test accuracy in %, all seeds. "
        "The chosen λ has the luck of the choice in its mean. p as above, for its lead over “auto”."
    )
    heads = ("loss", "curvature", "auto is", "auto", "chosen λ", "λ", "p")
    return Table("damping-chosen", caption, heads, rows, 2)


def grid_table(several: Sequence[Chosen]) -> Table:
    """Seed 0 with every λ of the grid, coloured by how far it is from "auto"."""
    rows = []
    for one in several:
        level = one.auto.mean if one.auto else math.nan
        cells = [
            Cell(f"{figure:.0f}", figure, kind="bad" if figure < level - RUINED else "")
            for figure in one.of_a_seed.values()
        ]
        rows.append((*_labels(one), *cells, Cell(f"{level:.0f}", level) if one.auto else NOTHING))
    caption = (
        f"Every λ of the paper’s grid with seed 0: test accuracy in %, marked where it is more than {RUINED} points "
        "below “auto”."
    )
    return Table("damping-grid", caption, ("loss", "curvature", *(f"{one:g}" for one in GRID), "auto"), rows, 2)


def advantage_table(kinds: dict[str, list[Chosen]]) -> Table | None:
    """The chosen λ less "auto" on average over the cells, with and without the seed that chose."""
    rows = []
    for label, several in kinds.items():
        known = [(one.own.mean - one.auto.mean, one.unseen) for one in several if one.auto and one.unseen is not None]
        if len(known) > 1:
            own, unseen = (summarise(values) for values in zip(*known, strict=True))
            ahead = sum(lead > 0 for lead, _ in known)
            rows.append((Cell(label), _with_error(own), _with_error(unseen), Cell(f"{ahead} of {len(known)}", ahead)))
    caption = "The chosen λ less “auto” in points, mean over the cells ± its standard error."
    heads = ("runs", "all seeds", "seeds that did not choose", "cells ahead")
    return Table("damping-advantage", caption, heads, rows) if rows else None


def fixed_table(several: Sequence[Chosen]) -> Table | None:
    """One λ for all cells, beside "auto"."""
    known = [(one.of_a_seed, one.auto.mean) for one in several if one.auto]
    if len(known) < 2:
        return None
    rows = []
    for damping in GRID:
        ahead = [figures[damping] - auto for figures, auto in known]
        ruined = sum(one < -RUINED for one in ahead)
        rows.append((count_cell(damping), _with_error(summarise(ahead)), count_cell(ruined)))
    caption = (
        f"One λ for all {len(known)} cells: seed 0 less the mean of “auto” in points ± standard error, and how many "
        f"cells are more than {RUINED} points behind."
    )
    return Table("damping-fixed", caption, ("λ", "less auto", "cells ruined"), rows)


def _with_error(figure: Summary) -> Cell:
    return Cell(f"{signed(figure.mean, 2)} ± {figure.error:.2f}", figure.mean)


def _labels(one: Automatic | Chosen) -> tuple[Cell, Cell]:
    return Cell(column_title(one.cell.column)), Cell(METHODS[one.cell.variant])


def _verdict(p: float, paired: float, *, higher: bool) -> Cell:
    """How "auto" stands: behind where either test says so."""
    if min((one for one in (p, paired) if not math.isnan(one)), default=1.0) < LEVEL:
        return Cell("behind", kind="bad")
    return Cell("highest", kind="good") if higher else Cell("within noise", kind="open")
