"""The tables of a report, as data that HTML and Markdown are made from. A missing run is a cell "not run"."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ..cells import Cell as PaperCell
from ..groups import Group
from ..statistics import LEVEL, Summary, baseline_mark, mark, paired_p_value
from .claims import Verdict, reaches
from .collect import (
    AUTO,
    METHODS,
    NEWTON,
    NORMALISED,
    SETTINGS_OF_GOAL,
    PaperFigures,
    Runs,
    Standing,
    column_title,
    columns,
    main_metric,
    paper_cells,
)

_MARKS = {"black": "significant", "grey": "improved", "": ""}


@dataclass(frozen=True)
class Cell:
    """A table's cell: its text, the number that its column is sorted by, small print, and how it is set.

    `kind` is "significant" or "improved" as the paper marks figures, "absent" for what was not run, or "good", "bad"
    and "open" for verdicts.
    """

    text: str
    value: float | None = None
    detail: str = ""
    kind: str = ""


NOT_RUN, NOTHING = Cell("not run", kind="absent"), Cell("–", kind="absent")


@dataclass(frozen=True)
class Table:
    """A table: its first `labels` columns name the row. Nothing in it is ever taken for markup."""

    name: str
    caption: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    labels: int = 1


def figure_cell(figure: Summary | None, kind: str = "") -> Cell:
    """A mean, with its standard deviation and the number of seeds as small print.

    >>> figure_cell(Summary(84.031, 0.59, 10))
    Cell(text='84.0', value=84.031, detail='± 0.6 (10)', kind='')
    """
    if figure is None:
        return NOT_RUN
    deviation = "" if math.isnan(figure.std) else f"± {figure.std:.1f} "
    return Cell(f"{figure.mean:.1f}", figure.mean, f"{deviation}({figure.count})", kind)


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign.

    >>> signed(-1.234), signed(0.01)
    ('−1.2', '0.0')
    """
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if float(f"{value:.{digits}f}") == 0 else text


def difference(one: Summary | None, other: Summary | None) -> Cell:
    """How much higher the one mean is."""
    return NOTHING if one is None or other is None else Cell(signed(one.mean - other.mean), one.mean - other.mean)


def probability(p: float) -> Cell:
    return NOTHING if math.isnan(p) else Cell(f"{p:.2f}", p)


def count_cell(value: float) -> Cell:
    return Cell(f"{value:g}", value)


def brief(value: Any, longest: int = 60) -> str:
    """A value as text on one line, shortened where it is very long."""
    text = " ".join(str(value).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


@dataclass(frozen=True)
class Lead:
    """By how much one group of runs is ahead of another on the seeds that both have."""

    mean: float
    p: float  # of so large a lead of whichever is ahead, if there were none (paired t-test, one-sided)
    seeds: int

    @classmethod
    def of(cls, new: Group | None, base: Group | None, *, averaged: bool = False) -> "Lead | None":
        if new is None or base is None:
            return None
        metric = main_metric(new.cell)
        first, second = (
            {one.seed: one.averaged if averaged else one.test for one in group.records} for group in (new, base)
        )
        both = [seed for seed in first if seed in second and metric in first[seed] and metric in second[seed]]
        if not both:
            return None
        ahead = [first[seed][metric] - second[seed][metric] for seed in both]
        mean = statistics.fmean(ahead)
        return cls(mean, paired_p_value([math.copysign(1, mean) * one for one in ahead]), len(ahead))

    @property
    def clear(self) -> bool:
        return self.p < LEVEL


def claims_table(verdicts: Sequence[Verdict], name: str) -> Table:
    """The claims in one line each, the verdict first."""
    kinds = {"confirmed": "good", "not confirmed": "bad", "open": "open"}
    rows = [
        (
            Cell(one.shown.status, kind=kinds[one.shown.status]),
            Cell(one.words),
            Cell(f"{one.shown.setting}: {one.shown.count}"),
        )
        for one in verdicts
    ]
    return Table(name, "", ("verdict", "claim", "where"), rows)


def sorting_table(runs: Runs, metric: str) -> Table | None:
    """Table 1 for one length of training; only the cells that were run, where it is not one of the paper's lengths."""
    words = {"exact_match": "Sets ordered right", "element_wise": "Ranks right"}[metric]
    rows, found_any = [], False
    for column, found in _paper_columns("table1"):
        kinds = [
            {cell.variant: runs.figure(column, cell.variant, numerics, metric) for cell in found}
            for numerics in ("reference", "stable")
        ]
        found_any |= any(figure for kind in kinds for figure in kind.values())
        rows += [
            (
                Cell(column_title(column)),
                Cell(METHODS[cell.variant]),
                _paper(cell, metric),
                *(_marked(figures, cell.variant) for figures in kinds),
            )
            for cell in found
        ]
    caption = (
        f"{words} in %, {runs.label}; the paper’s figures are those of 100,000 steps. Bold: better than plain by a "
        "one-sided t-test at .05; bold grey: a better mean. In brackets: seeds."
    )
    heads = ("loss", "method", "paper", "ours", "ours, log space")
    return Table(f"sorting-{runs.length}-{metric}", caption, heads, rows, 2) if found_any else None


def control_table(runs: Runs) -> Table | None:
    """One row per loss: what curvature, clipping, normalising and log space each bring; none where all is open."""
    rows = []
    for column in columns("table1"):
        reference = {method: runs.figure(column, method) for method in ("baseline", *NEWTON, "clipped", "energy")}
        stable = {method: runs.figure(column, method, "stable") for method in ("baseline", *NEWTON)}
        if not any([*reference.values(), *stable.values()]):
            continue
        newton, plain = _best(reference[method] for method in NEWTON), stable["baseline"]
        enough = reaches("", plain, [reference[method] for method in NEWTON]).holds
        text, kind = {True: ("yes", "good"), False: ("no", "bad"), None: ("open", "open")}[enough]
        verdict = Cell(text, detail=signed(plain.mean - newton.mean) if plain and newton else "", kind=kind)
        rows.append(
            (
                Cell(column_title(column)),
                verdict,
                figure_cell(reference["baseline"]),
                figure_cell(newton),
                *(figure_cell(reference[method]) for method in ("clipped", "energy")),
                figure_cell(plain),
                figure_cell(_best(stable[method] for method in NEWTON)),
            )
        )
    caption = (
        f"Sets ordered right in %, {runs.label}, the paper’s λ. “Newton” is the better of Hessian and Fisher. The "
        "first column says whether the plain loss in log space comes within one point of the Newton loss in the "
        "paper’s numerics or above; it is open where a cell has fewer than three seeds."
    )
    heads = ("loss", "log space enough?", "plain", "Newton", "clipped", "energy", "plain, log", "Newton, log")
    decided = any(row[1].text != "open" for row in rows)
    return Table(f"controls-{runs.length}", caption, heads, rows) if decided else None


def goal_table(several: Sequence[Standing], *, averaged: bool = False) -> Table:
    """One row per column of table 1: is the paper's best reached, by what, and by how much."""
    kinds = {"reached": "good", "not reached": "bad"}
    rows = []
    for one in several:
        setting, figure = one.best or ("", None)
        rows.append(
            (
                Cell(column_title(one.column)),
                Cell(one.state, kind=kinds.get(one.state, "open")),
                figure_cell(figure),
                Cell(METHODS[setting]) if setting else NOTHING,
                figure_cell(one.paper),
                difference(figure, one.paper),
                *(() if averaged else (probability(one.p),)),
            )
        )
    what = "averaged weights" if averaged else "as trained"
    caption = (
        f"Sets ordered right in %, 100,000 steps, log space, {what}, beside the paper’s best, which is as trained."
    )
    heads = ("loss", "reached?", "our best", "setting", "paper’s best", "difference", *(() if averaged else ("p",)))
    return Table("goal-averaged" if averaged else "goal", caption, heads, rows)


def plain_table(runs: Runs) -> Table:
    """The plain loss beside the Newton loss in log space, as trained and averaged, seed by seed."""
    rows = []
    for column in columns("table1"):
        groups = {method: runs.runs(column, method, "stable") for method in SETTINGS_OF_GOAL}
        plain = groups.pop("baseline")
        run = {method: one for method, one in groups.items() if one is not None}
        method = max(run, key=lambda name: (len(run[name].records), -SETTINGS_OF_GOAL.index(name)), default="")
        newton = run.get(method)
        for averaged in (False, True) if plain or newton else (False,):
            lead = Lead.of(newton, plain, averaged=averaged)
            figure = figure_cell(newton.summary("exact_match", averaged=averaged) if newton else None)
            rows.append(
                (
                    Cell(column_title(column)),
                    Cell("averaged" if averaged else "as trained"),
                    _who(lead, "Newton ahead", "plain ahead"),
                    figure_cell(plain.summary("exact_match", averaged=averaged) if plain else None),
                    replace(figure, detail=f"{figure.detail} {METHODS.get(method, '')}".strip()),
                    Cell(signed(lead.mean), lead.mean) if lead else NOTHING,
                    probability(lead.p if lead else math.nan),
                )
            )
    caption = (
        f"Sets ordered right in %, {runs.label}, log space. The difference is Newton less plain on the seeds that both "
        "have; p is the probability of so large a lead of whichever is ahead if there were none (paired t-test, "
        "one-sided). Level: p of at least .05."
    )
    heads = ("loss", "weights", "verdict", "plain", "Newton", "difference", "p")
    return Table("plain-full", caption, heads, rows, 2)


def _who(lead: Lead | None, ahead: str, behind: str, level: str = "level") -> Cell:
    if lead is None:
        return NOT_RUN
    if not lead.clear:
        return Cell(level if lead.seeds > 1 else "one seed", kind="open")
    return Cell(ahead, kind="good") if lead.mean > 0 else Cell(behind, kind="bad")


# What may act when a Newton loss helps: the size of the step, a bound on each sample, or the directions.
EFFECTS = {
    "baseline": "plain",
    "clipped": "clipped",
    f"fisher-{NORMALISED}": "normalised only",
    f"sample-{AUTO}": "sample, auto",
    f"fisher-{AUTO}": "Fisher, auto",
    f"hessian-{AUTO}": "Hessian, auto",
}


def effects_table(runs: Runs, names: Sequence[str], numerics: str) -> Table | None:
    """The plain loss beside controls and curvature, column by column: where does a gain come from?"""
    rows = []
    for column in names:
        groups = {method: runs.runs(column, method, numerics) for method in EFFECTS}
        plain, normal, fisher = (groups[name] for name in ("baseline", f"fisher-{NORMALISED}", f"fisher-{AUTO}"))
        if normal is None:
            continue
        size, turn = Lead.of(normal, plain), Lead.of(fisher, normal)
        verdict = _who(turn, "curvature adds", "curvature harms", "within noise")
        if verdict.text == "within noise":
            verdict = _who(size, "normalising helps", "normalising harms", "within noise")
        tests = "p " + ", ".join(probability(lead.p if lead else math.nan).text for lead in (size, turn))
        figures = (one.summary(main_metric(one.cell)) if one else None for one in groups.values())
        rows.append((Cell(column_title(column)), replace(verdict, detail=tests), *map(figure_cell, figures)))
    caption = (
        f"Test accuracy in %, {runs.label}. “Clipped”: the gradient’s norm at 1. “Normalised only”: the Fisher with λ "
        "a thousand times its default, so that no curvature is left. “Sample”: each with its own part of the "
        "Fisher, a soft clip. p of the lead of whichever is ahead: normalised against plain, then Fisher against "
        "normalised (paired t-test, one-sided)."
    )
    heads = ("loss", "verdict", *EFFECTS.values())
    return Table(f"effects-{runs.data}", caption, heads, rows) if rows else None


def paths_table(table: str, warcraft: Runs, terrain: Runs) -> Table:
    """Tables 2 and 3: the paper and us on its maps, and on the look-alike, where only gains can be compared."""
    rows = []
    for column, found in _paper_columns(table):
        sources = [{cell.variant: runs.figure(column, cell.variant) for cell in found} for runs in (warcraft, terrain)]
        base = PaperFigures().figure(column, "baseline")
        for cell in found:
            is_base = cell.variant == "baseline"
            paper = PaperFigures().figure(column, cell.variant)
            rows.append(
                (
                    Cell(column_title(column)),
                    Cell(METHODS[cell.variant]),
                    _paper(cell),
                    NOTHING if is_base else difference(paper, base),
                    _marked(sources[0], cell.variant),
                    _marked(sources[1], cell.variant),
                    NOTHING if is_base else difference(sources[1][cell.variant], sources[1]["baseline"]),
                )
            )
    caption = (
        "Maps with exactly the best path in %, the paper’s λ. The look-alike maps are drawn by this library and are "
        "not the benchmark: compare gains over plain, not levels. Marks as in table 1."
    )
    heads = ("loss", "method", "paper", "gain", "ours, Warcraft", "ours, look-alike", "gain")
    return Table(table, caption, heads, rows, 2)


def _paper_columns(table: str) -> list[tuple[str, list[PaperCell]]]:
    """The paper's cells of a table, column by column."""
    papers = [cell for cell in paper_cells().values() if cell.table == table]
    return [(column, list(found)) for column, found in groupby(papers, key=lambda cell: cell.column)]


def _paper(cell: PaperCell, metric: str | None = None) -> Cell:
    figure = PaperFigures().figure(cell.column, cell.variant, metric=metric)
    return (
        figure_cell(figure, _MARKS[(cell.paper_bold or {}).get(metric or main_metric(cell), "")]) if figure else NOTHING
    )


def _marked(figures: Mapping[str, Summary | None], method: str) -> Cell:
    """A figure of ours, marked by the paper's rules against the baseline."""
    figure, baseline = figures[method], figures["baseline"]
    others = [one for name, one in figures.items() if name != "baseline" and one is not None]
    kind = ""
    if figure is not None and method == "baseline" and others:
        kind = baseline_mark(figure, others)
    elif figure is not None and method != "baseline" and baseline is not None:
        kind = mark(baseline, figure)
    return figure_cell(figure, _MARKS[kind])


def _best(figures: Iterable[Summary | None]) -> Summary | None:
    return max((one for one in figures if one is not None), key=lambda one: one.mean, default=None)
