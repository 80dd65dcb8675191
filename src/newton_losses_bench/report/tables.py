"""The tables of a report, as data that HTML and Markdown are made from. A missing run is a cell "not run"."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..groups import Group
from ..statistics import LEVEL, Summary, mark, paired_p_value, summarise
from ..store import RunRecord
from .collect import (
    CONTROLS,
    LEAST_SEEDS,
    METHODS,
    NEWTON,
    TITLES,
    Evidence,
    PaperFigures,
    Runs,
    column_title,
    columns,
    main_metric,
    paper_cells,
    papers_best,
)


@dataclass(frozen=True)
class Cell:
    """A table's cell: its text, the number that its column is sorted by, small print, and how it is set.

    `kind` is "significant" for what the paper sets in bold, "absent" for what was not run, or "good", "bad" and "open"
    for verdicts.
    """

    text: str
    value: float | None = None
    detail: str = ""
    kind: str = ""


# The default and its rule: younger than most runs, so that a table may have none.
YOUNG = ("-running", "-library")
NOT_RUN, NOTHING = Cell("not run", kind="absent"), Cell("–", kind="absent")


@dataclass(frozen=True)
class Table:
    """A table: its first `labels` columns name the row. Nothing in it is ever taken for markup."""

    name: str
    caption: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    labels: int = 1

    def is_word(self, column: int) -> bool:
        """Whether a column is set to the left: it names the row, or has words in place of numbers."""
        cells = [row[column] for row in self.rows]
        return column < self.labels or any(cell.value is None and cell.kind != "absent" for cell in cells)


def figure_cell(figure: Summary | None, kind: str = "") -> Cell:
    """A mean, with its standard deviation and the number of seeds as small print.

    >>> figure_cell(Summary(84.031, 0.59, 10))
    Cell(text='84.0', value=84.031, detail='± 0.6 (10)', kind='')
    """
    if figure is None:
        return NOT_RUN
    deviation = "" if math.isnan(figure.std) else f"± {figure.std:.1f} "
    return Cell(f"{figure.mean:.1f}", figure.mean, f"{deviation}({figure.count})", kind)


def signed(value: float) -> str:
    """A difference with its sign.

    >>> signed(-1.234), signed(0.01)
    ('−1.2', '0.0')
    """
    text = f"{value:+.1f}".replace("-", "−")
    return text[1:] if float(f"{value:.1f}") == 0 else text


def difference(one: Summary | None, other: Summary | None) -> Cell:
    """How much higher the one mean is."""
    return NOTHING if one is None or other is None else Cell(signed(one.mean - other.mean), one.mean - other.mean)


def brief(value: Any, longest: int = 60) -> str:
    """A value as text on one line, shortened where it is very long."""
    text = " ".join(str(value).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


@dataclass(frozen=True)
class Lead:
    """By how much one group of runs is ahead of another on the seeds that both have.

    `p` is the probability of so large a lead of either if there were none (paired t-test, two-sided: who is ahead is
    known only afterwards).
    """

    mean: float
    p: float
    seeds: int

    @property
    def is_clear(self) -> bool:
        """Significant at .05, on seeds enough to decide anything: two that happen to differ alike have p = 0."""
        return self.p < LEVEL and self.seeds >= LEAST_SEEDS

    @classmethod
    def of(cls, new: Group | None, base: Group | None, *, averaged: bool = False) -> "Lead | None":
        if new is None or base is None:
            return None
        return cls.over(new.ahead_of(base, main_metric(new.cell), averaged=averaged).values())

    @classmethod
    def over(cls, ahead: Collection[float]) -> "Lead | None":
        """Given the lead on each seed."""
        if not ahead:
            return None
        mean = statistics.fmean(ahead)
        one_sided = paired_p_value([math.copysign(1, mean) * one for one in ahead])
        return cls(mean, one_sided if math.isnan(one_sided) else min(1.0, 2 * one_sided), len(ahead))


def sorting_table(full: Runs, short: Runs) -> Table:
    """Table 1: the paper beside us, in its numerics and in log space, at its length and at a tenth of it."""
    settings = [(runs, numerics) for runs in (full, short) for numerics in ("reference", "stable")]
    methods = ("baseline", *NEWTON, "clip", "energy")
    rows = []
    for column in columns("table1"):
        sources = [{method: runs.figure(column, method, numerics) for method in methods} for runs, numerics in settings]
        for method in methods:
            paper, ours = _paper(column, method), [_marked(figures, method) for figures in sources]
            if any(cell.value is not None for cell in (paper, *ours)):
                rows.append((Cell(column_title(column)), Cell(METHODS[method]), paper, *ours))
    caption = (
        "Sets ordered right in %, with the paper’s λ. Bold: better than plain by a one-sided t-test at .05. In "
        "brackets: seeds."
    )
    names = [runs.label + (", log space" if numerics == "stable" else "") for runs, numerics in settings]
    return Table("table1-figures", caption, ("loss", "method", "the paper", *names), rows, 2)


def control_table(runs: Runs, names: Sequence[str], numerics: str, *, averaged: bool = False) -> Table | None:
    """The plain loss beside controls and curvature, column by column: where does a gain come from?"""
    rows = []
    methods = [
        method
        for method in ("baseline", *CONTROLS)
        if not method.endswith(YOUNG) or any(runs.runs(column, method, numerics) for column in names)
    ]
    for column in names:
        groups = {method: runs.runs(column, method, numerics) for method in methods}
        figures = [one.summary(main_metric(one.cell), averaged=averaged) if one else None for one in groups.values()]
        if any(figures):
            best = papers_best(column)
            papers = [figure_cell(best) if best else NOTHING] if runs.as_in_the_paper else []
            cells = [
                _with_rivals(figure_cell(figure), method, groups, averaged)
                for method, figure in zip(methods, figures, strict=True)
            ]
            rows.append((Cell(column_title(column)), _verdict(groups, averaged), *cells, *papers))
    caption = f"Test accuracy in %, {runs.label}{', averaged weights' if averaged else ''}."
    papers_head = ["paper’s best"] if runs.as_in_the_paper else []
    heads = ("loss", "verdict", *(METHODS[method] for method in methods), *papers_head)
    name = f"controls-{runs.data}-{runs.length}" + ("-averaged" if averaged else "")
    return Table(name, caption, heads, rows) if rows else None


def _verdict(groups: Mapping[str, Group | None], averaged: bool) -> Cell:
    """Whether the Newton loss is ahead of the plain one, and which of its effects are clear.

    Normalising, a soft clip of each sample and curvature are each compared with the one before that was run.
    """
    most = max(
        ("fisher-normalized", "hessian-normalized"), key=lambda name: len(one.records) if (one := groups[name]) else 0
    )
    effects = {"fisher-normalized:1000": "normalising", "sample-normalized": "soft clip", most: "curvature"}
    plain = before = groups["baseline"]
    steps, whole = {}, None
    for group, effect in ((groups[method], effect) for method, effect in effects.items()):
        if lead := Lead.of(group, before, averaged=averaged):
            steps[effect] = lead
            whole = Lead.of(group, plain, averaged=averaged) or whole
        before = group or before
    if whole is None:
        return NOT_RUN
    steps = steps if len(steps) > 1 else {}
    detail = "p " + ", ".join("–" if math.isnan(lead.p) else f"{lead.p:.2f}" for lead in (whole, *steps.values()))
    text, kind = ("within noise" if whole.seeds > 1 else "one seed"), "open"
    if whole.is_clear:
        text, kind = ("ahead", "good") if whole.mean > 0 else ("behind", "bad")
    clear = [f"{effect} {'helps' if one.mean > 0 else 'harms'}" for effect, one in steps.items() if one.is_clear]
    return Cell(f"{text}: {', '.join(clear)}" if clear else text, detail=detail, kind=kind)


def _with_rivals(cell: Cell, method: str, groups: Mapping[str, Group | None], averaged: bool) -> Cell:
    """A figure in the run's unit with its leads over the plain loss, and over the same curvature batch by batch."""
    if not (method.endswith("-running") or method == "fisher-library"):
        return cell
    rivals = {"plain": groups["baseline"]}
    if method.endswith("-running"):
        rivals["per batch"] = groups[method.replace("running", "normalized")]
    elif groups.get("plain-library"):
        rivals["plain, leave-one-out"] = groups["plain-library"]
    leads = {name: Lead.of(groups[method], rival, averaged=averaged) for name, rival in rivals.items()}
    shown = [
        f"{signed(lead.mean)} to {name}" + ("" if math.isnan(lead.p) else f", p {lead.p:.3f}")
        for name, lead in leads.items()
        if lead
    ]
    return replace(cell, detail="; ".join([cell.detail, *shown]))


def behind_table(settings: Sequence[tuple[Runs, Sequence[str], str]]) -> Table | None:
    """In how many columns each method is clearly behind the best of the others: which could be the default?"""
    entered: Counter[str] = Counter()
    behind: defaultdict[str, list[str]] = defaultdict(list)
    for runs, names, numerics in settings:
        for column in names:
            groups = {method: runs.runs(column, method, numerics) for method in ("baseline", *CONTROLS)}
            for method, group in groups.items():
                leads = {other: Lead.of(group, rival) for other, rival in groups.items() if other != method}
                known = {other: lead for other, lead in leads.items() if lead and lead.seeds >= LEAST_SEEDS}
                if not known:
                    continue
                entered[method] += 1
                best = min(known, key=lambda other: known[other].mean)
                lead = known[best]
                if lead.mean < 0 and lead.is_clear:
                    behind[method].append(f"{column_title(column)} ({signed(lead.mean)} to {METHODS[best]})")
    caption = (
        "Clearly behind the best of the others, which is the one with the highest mean: paired, two-sided, p below "
        ".05, three seeds or more. Not corrected for choosing the best after the fact, so the counts are too high. "
        "In the six smoothed columns the default leaves one out, and the others have the paper’s smoothing."
    )
    rows = [
        (
            Cell(METHODS[method]),
            Cell(f"{len(behind[method])} of {count}", len(behind[method])),
            Cell("; ".join(behind[method]) or "none"),
        )
        for method, count in entered.items()
    ]
    return Table("behind-the-best", caption, ("method", "columns", "which"), rows) if rows else None


def default_table(settings: Sequence[tuple[Runs, Sequence[str], str]]) -> Table | None:
    """The library's default beside the plain loss with the same smoothing, in families of settings.

    No setting is picked: a family's figure is the mean over all of its settings that have seeds enough, seed by seed.
    """
    families: defaultdict[str, list[list[Group | None]]] = defaultdict(list)
    for runs, names, numerics in settings:
        for column in names:
            is_smoothed = column.startswith("smoothed-")  # where the paper's smoothing makes another plain loss
            methods = ["plain-library" if is_smoothed else "baseline", "fisher-normalized:1000", "fisher-library"]
            methods[1] += "-library" if is_smoothed else ""
            plain, normalised, default = (runs.runs(column, method, numerics) for method in methods)
            if plain and default and len(plain.records) >= LEAST_SEEDS <= len(default.records):
                families[_family(column)].append([plain, normalised, default])
    rows = []
    for family, several in families.items():
        means = [_mean_by_seed(groups) for groups in zip(*several, strict=True)]
        gains = [_lead(one, means[0]) for one in means]
        bold = ["significant" if gain and gain.is_clear and gain.mean > 0 else "" for gain in gains]
        figures = [
            figure_cell(summarise(one.values()) if one else None, mark) for one, mark in zip(means, bold, strict=True)
        ]
        leads = [_lead_cell(gains[-1]), _lead_cell(_lead(means[-1], means[1]))]
        single = [Lead.of(one[-1], one[0]) for one in several]
        clear = [lead.mean > 0 for lead in single if lead and lead.is_clear]
        counts = [Cell(f"{number} of {len(single)}", number) for number in (clear.count(True), clear.count(False))]
        rows.append((Cell(family), *figures, *leads, *counts))
    caption = (
        "The default, as a user of the library gets it, beside the plain loss with the same smoothing: means over all "
        "settings of a kind with three seeds. p: paired over the seeds, two-sided. Bold: ahead "
        "of plain with p below .05. The last two columns count the settings in which the default is clearly ahead of "
        "plain, or behind, on their own; not corrected for their number."
    )
    heads = ("losses", "plain", "normalised only", "the default", "to plain", "to normalised", "ahead", "behind")
    return Table("default", caption, heads, rows) if rows else None


def _family(column: str) -> str:
    """The kind of settings that a column belongs to.

    >>> _family("softsort-n5"), _family("bellman-ford-for-l1")
    ('Sorting, n=5', 'Bellman-Ford')
    """
    loss, _, length = column.rpartition("-n")
    return f"Sorting, n={length}" if loss else next(TITLES[name] for name in TITLES if column.startswith(name))


def _mean_by_seed(groups: Iterable[Group | None]) -> dict[int, float]:
    """The mean over groups on each seed that all of them have; empty where a group is missing."""
    figures = [group.by_seed(main_metric(group.cell)) if group else {} for group in groups]
    shared = set(figures[0]).intersection(*figures)
    return {seed: statistics.fmean(one[seed] for one in figures) for seed in sorted(shared)}


def _lead(new: Mapping[int, float], base: Mapping[int, float]) -> Lead | None:
    return Lead.over([new[seed] - base[seed] for seed in new if seed in base])


def _lead_cell(lead: Lead | None) -> Cell:
    return (
        NOTHING if lead is None else Cell(signed(lead.mean), lead.mean, "" if math.isnan(lead.p) else f"p {lead.p:.3f}")
    )


def paths_table(table: str, warcraft: Runs, terrain: Runs) -> Table:
    """Tables 2 and 3: the paper and us on its maps, and on the look-alike, where only gains can be compared."""
    rows = []
    for cell in (cell for cell in paper_cells().values() if cell.table == table):
        column, method = cell.column, cell.variant
        paper, maps, alike = (
            {name: source.figure(column, name) for name in ("baseline", *NEWTON)}
            for source in (PaperFigures(), warcraft, terrain)
        )
        gains = [
            NOTHING if method == "baseline" else difference(one[method], one["baseline"]) for one in (paper, alike)
        ]
        ours = _marked(maps, method), _marked(alike, method)
        rows.append(
            (Cell(column_title(column)), Cell(METHODS[method]), _paper(column, method), gains[0], *ours, gains[1])
        )
    caption = (
        "Maps with exactly the best path in %, the paper’s λ. The look-alike maps are drawn by this library and are "
        "not the benchmark: compare gains over plain, not levels. Marks as in table 1."
    )
    heads = ("loss", "method", "the paper", "gain", "ours, Warcraft", "ours, look-alike", "gain")
    return Table(table, caption, heads, rows, 2)


def folders_table(found: Evidence) -> Table | None:
    """Where the figures come from: folders, machines, versions."""
    by_folder: dict[str, list[RunRecord]] = defaultdict(list)
    for record in found.index.records:
        parent = record.path.parent
        inside = parent.is_relative_to(found.results)
        by_folder[str(parent.relative_to(found.results)) if inside else parent.name].append(record)
    rows = [
        (
            Cell(brief(folder)),
            Cell(str(len(records)), len(records)),
            _several(record.environment.get("gpu") or record.environment.get("cpu") for record in records),
            _several(record.configuration.get("precision") for record in records),
            _several(record.environment.get("torch") for record in records),
            _several(str(record.environment.get("commit") or "unknown")[:12] for record in records),
        )
        for folder, records in by_folder.items()
    ]
    heads = ("folder", "runs", "device", "precision", "torch", "commit")
    return Table("folders", "The folders of finished runs.", heads, rows) if rows else None


def notes_table(found: Evidence) -> Table | None:
    """What was left out."""
    rows = [(Cell(brief(note, 200)),) for note in found.notes]
    return Table("left-out", "Left out, and why.", ("file or run",), rows) if rows else None


def _several(values: Iterable[Any]) -> Cell:
    return Cell(brief(", ".join(sorted({str(value) for value in values if value is not None})) or "–"))


def _paper(column: str, method: str) -> Cell:
    """The paper's figure with the paper's mark."""
    figure, cell = PaperFigures().figure(column, method), paper_cells().get(f"{column}-{method}")
    if figure is None or cell is None:
        return NOTHING
    return figure_cell(figure, _bold((cell.paper_bold or {}).get(main_metric(cell), "")))


def _marked(figures: Mapping[str, Summary | None], method: str) -> Cell:
    """A figure of ours, marked by the paper's rule against the baseline."""
    figure, baseline = figures[method], figures["baseline"]
    return figure_cell(figure, _bold(mark(baseline, figure)) if figure and baseline else "")


def _bold(mark: str) -> str:
    return "significant" if mark == "black" else ""
