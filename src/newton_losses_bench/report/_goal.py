"""Our goal: with the loss in log space and at the paper's length, the best of our settings reaches the paper's best
figure in every column of table 1.

The columns are those of the presets: the eight of the table, and the Cauchy network at n = 15, of which the paper's
text has the figures. The goal is about the weights as trained. How a column stands with the averaged weights of the
same runs is asked apart, and no figure of the one ever counts for the other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..cells import VARIANTS, cells
from ..statistics import Summary, p_value
from ._measured import AUTO, PaperFigures
from ._names import METHOD_TITLES, column_title
from ._rules import LEAST_SEEDS, Part, Setting, better, measured

SETTINGS = (*VARIANTS, *(f"{variant}-{AUTO}" for variant in VARIANTS if variant != "baseline"))
# The mean of figures with two digits can miss such a figure by its last bit.
_ROUNDING = 1e-9
STATES = (
    f"A setting counts from {LEAST_SEEDS} seeds on. The goal is reached in a column when the mean of a setting that "
    "counts is at least the paper’s best, and not reached when all settings count and none does it; else it is open."
)
# What every page says that shows figures of averaged weights.
AVERAGING = (
    "Averaged weights are a mean over a run’s steps that is weighted towards its end, on average a tenth of the run "
    "old, and kept beside the training, which does not change; their figures are chosen by their own validation. The "
    "paper does not average weights. A mean can be taken of any run, with the plain loss as well: these figures are no "
    "comparison of methods, they say what a user gets from the same runs. They do not count for the goal."
)


@dataclass(frozen=True)
class Standing:
    """How a column of table 1 stands to the paper's best, with the weights as trained or with averaged ones.

    - `paper`: the best mean that the paper has there; `paper_method`: whose it is.
    - `ours`: our figures in log space by setting, `None` where there is no run.
    """

    column: str
    paper_method: str
    paper: Summary
    ours: Mapping[str, Summary | None]

    @property
    def best(self) -> tuple[str, Summary] | None:
        """Our setting with the highest mean: of those with seeds enough, where there are some; else of all."""
        run = [(name, figure) for name, figure in self.ours.items() if figure is not None]
        counting = [(name, figure) for name, figure in run if measured(figure)]
        return max(counting or run, key=lambda one: one[1].mean, default=None)

    @property
    def p(self) -> float:
        """The probability of so large a lead of whoever is ahead, our best or the paper's, if there were none."""
        if self.best is None:
            return math.nan
        own = self.best[1]
        return p_value(self.paper, own) if own.mean >= self.paper.mean else p_value(own, self.paper)

    @property
    def part(self) -> Part:
        """Whether it is reached. More settings can only raise the best, so that one is enough for a yes."""
        title = column_title(self.column)
        if self.best is None:
            return better(title, None, self.paper)
        name, figure = self.best
        found = better(f"{title} ({METHOD_TITLES[name]})", figure, self.paper, by=-_ROUNDING)
        if found.holds is False and not all(map(measured, self.ours.values())):
            return Part(None, f"{found.words}, with settings left that have too few seeds")
        return found

    @property
    def state(self) -> str:
        """The same in a word or two."""
        if self.best is None:
            return "not run"
        return {True: "reached", False: "not reached", None: "open"}[self.part.holds]


def columns() -> list[str]:
    """The columns of table 1 in the paper's order.

    >>> len(columns())
    9
    """
    return list(dict.fromkeys(cell.column for cell in cells("table1")))


def standings(at: Setting, *, averaged: bool = False) -> list[Standing]:
    """Every column of table 1, with the figures of a length of training, or with those of its averaged weights.

    >>> [(one.column, one.paper_method, one.paper.mean) for one in standings(PaperFigures())][:2]
    [('neuralsort-n5', 'fisher', 83.93), ('softsort-n5', 'fisher', 84.03)]
    """
    found = []
    for column in columns():
        paper = {name: figure for name in VARIANTS if (figure := PaperFigures().figure(column, name)) is not None}
        best = max(paper, key=lambda name: paper[name].mean)
        ours = {name: at.figure(column, name, "stable", averaged=averaged) for name in SETTINGS}
        found.append(Standing(column, best, paper[best], ours))
    return found
