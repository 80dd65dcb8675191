"""`damping="auto"` beside other λ: that of the paper's tables, and one that a seed chooses from the paper's grid."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ..cells import Cell
from ..groups import Group
from ..statistics import LEVEL, Summary, p_value, paired_p_value, summarise
from ..store import RunRecord
from ._found import finite
from ._measured import AUTO, GRID, Runs, curved_cells, main_metric

RUINED = 10  # percentage points behind "auto"


@dataclass(frozen=True)
class Automatic:
    """A cell with `damping="auto"`: its runs and figure, and those of the plain loss and of the paper's λ.

    `paired` is as `p`, from the differences seed by seed.
    """

    cell: Cell
    group: Group
    own: Summary
    plain: Summary | None
    tuned: Summary | None
    paired: float

    @property
    def rival(self) -> Summary | None:
        """The better of the two others: the plain loss is a λ without bounds."""
        return max((one for one in (self.plain, self.tuned) if one), key=lambda one: one.mean, default=None)

    @property
    def p(self) -> float:
        """The probability of so large an advantage of the rival if there were none."""
        return math.nan if self.rival is None else p_value(self.own, self.rival)


def automatic(runs: Runs, task: str) -> list[Automatic]:
    """The cells of a task that have runs with `damping="auto"`."""
    found = []
    for cell in (cell for cell in curved_cells() if cell.task == task):
        metric, numerics = main_metric(cell), cell.numerics or "reference"
        plain, tuned, group = (
            runs.runs(cell.column, method, numerics) for method in ("baseline", cell.variant, f"{cell.variant}-{AUTO}")
        )
        if group is None or (own := group.summary(metric)) is None:
            continue
        first, second = (None if one is None else one.summary(metric) for one in (plain, tuned))
        rival = max((plain, tuned), key=lambda one: _mean(one, metric))
        paired = math.nan if rival is None else paired_p_value(rival.ahead_of(group, metric).values())
        found.append(Automatic(cell, group, own, first, second, paired))
    return found


@dataclass(frozen=True)
class Chosen:
    """A cell with the λ of the paper's grid that one seed chooses.

    - `of_a_seed`: the test figure of that seed for every λ.
    - `group`, `own`: the runs with the chosen `damping`, of all seeds, and their figure; `auto`: that of "auto".
    - `unseen`: by how much they are ahead of "auto" with the seeds that had no part in the choice, if both have any.
    - `paired`: as `p`, from the differences seed by seed.
    """

    cell: Cell
    of_a_seed: dict[float, float]
    damping: float
    group: Group
    own: Summary
    auto: Summary | None
    unseen: float | None
    paired: float

    @property
    def p(self) -> float:
        """The probability of so large an advantage of the chosen λ over "auto" if there were none."""
        return math.nan if self.auto is None else p_value(self.auto, self.own)


def chosen(runs: Runs, task: str, seed: int = 0) -> list[Chosen]:
    """The cells of a task of which the whole grid was run with this seed, each with the λ of its highest validation."""
    found = []
    for cell in (cell for cell in curved_cells() if cell.task == task):
        metric, numerics = main_metric(cell), cell.numerics or "reference"
        groups = {damping: runs.runs(cell.column, f"{cell.variant}-{damping:g}", numerics) for damping in GRID}
        there = {damping: group for damping, group in groups.items() if group is not None}
        records = {
            damping: one
            for damping, group in there.items()
            for one in group.records
            if one.seed == seed and metric in one.test
        }
        if len(records) < len(GRID):
            continue
        validations = {damping: _validation(record, metric) for damping, record in records.items()}
        best = max(validations, key=validations.__getitem__)
        own = there[best].summary(metric)
        if own is not None:
            of_a_seed = {damping: record.test[metric] for damping, record in records.items()}
            auto = runs.runs(cell.column, f"{cell.variant}-{AUTO}", numerics)
            figure = None if auto is None else auto.summary(metric)
            ahead = {} if auto is None else there[best].ahead_of(auto, metric)
            others = [value for one, value in ahead.items() if one != seed]
            unseen, paired = statistics.fmean(others) if others else None, paired_p_value(ahead.values())
            found.append(Chosen(cell, of_a_seed, best, there[best], own, figure, unseen, paired))
    return found


@dataclass(frozen=True)
class Advantage:
    """By how much chosen λ are ahead of "auto", each a figure over the same cells.

    - `own`: with all seeds; `ahead` is in how many cells. It has the luck of the choice in it.
    - `unseen`: with the seeds that had no part in the choice.
    """

    own: Summary
    ahead: int
    unseen: Summary


def advantage(several: Iterable[Chosen]) -> Advantage | None:
    """That of the cells which have runs of both with more seeds than one; `None` for fewer than two cells."""
    known = [(one.own.mean - one.auto.mean, one.unseen) for one in several if one.auto and one.unseen is not None]
    if len(known) < 2:
        return None
    own, unseen = zip(*known, strict=True)
    return Advantage(summarise(own), sum(one > 0 for one in own), summarise(unseen))


@dataclass(frozen=True)
class Fixed:
    """One λ for all cells: by how much one seed with it is ahead of the mean of "auto", and how many cells it ruins."""

    damping: float
    ahead: Summary
    ruined: int


def fixed_dampings(several: Iterable[Chosen]) -> list[Fixed]:
    """Every λ of the grid over these cells, of which there have to be two at least."""
    known = [(one.of_a_seed, one.auto.mean) for one in several if one.auto]
    if len(known) < 2:
        return []
    found = []
    for damping in GRID:
        ahead = [figures[damping] - auto for figures, auto in known]
        found.append(Fixed(damping, summarise(ahead), sum(one < -RUINED for one in ahead)))
    return found


def how_often_behind(several: Iterable[Automatic | Chosen]) -> str:
    """In how many cells "auto" is behind beyond noise, as what is to be said of p, by either test."""
    found = list(several)
    columns = ([one.p for one in found], [one.paired for one in found])
    known, paired = ([p for p in column if not math.isnan(p)] for column in columns)
    return (
        f"below {LEVEL:g} in {sum(p < LEVEL for p in known)} of {len(known)} cells, and in "
        f"{sum(p < LEVEL for p in paired)} of {len(paired)} with the runs of a seed as pairs"
    )


def _mean(group: Group | None, metric: str) -> float:
    found = None if group is None else group.summary(metric)
    return -math.inf if found is None else found.mean


def _validation(record: RunRecord, metric: str) -> float:
    """The validation of the step that the run's test figure is of; a run without one is not chosen."""
    found = record.reported.get("validation")
    value = finite(found.get(metric)) if isinstance(found, dict) else None
    return -math.inf if value is None else value
