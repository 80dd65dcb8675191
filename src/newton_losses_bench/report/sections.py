"""What a report consists of, in which order, and the words between its tables. `render` makes pages from it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..cells import OURS
from ..describe import count
from . import tables
from .claims import Verdict
from .collect import EPOCHS, FULL, METHODS, SHORT, Evidence, column_title, columns
from .figures import Figure, headline, learning_curves
from .paper_claims import BEYOND, verdicts
from .tables import Table

# How a run's test figure is chosen; the tasks do it.
SELECTION = (
    "Test figures are those at the best validation for sorting, and after the last epoch for shortest paths, as in the "
    "work that the paper builds on; the paper does not say which it takes."
)


@dataclass(frozen=True)
class Section:
    """A section: its answer in a sentence, then the evidence. `figures` are drawings side by side, by caption."""

    anchor: str
    title: str
    answer: str
    text: str
    tables: Sequence[Table] = ()
    figures: Sequence[tuple[str, Sequence[Figure]]] = ()


@dataclass(frozen=True)
class Report:
    """The one screen, the claims by subject, and the sections below. `apart` says what none of them shows."""

    lead: str
    repeats: str
    state: str
    apart: Sequence[str]
    headline: Figure
    claims: dict[str, list[Verdict]]
    sections: list[Section]


def compose(found: Evidence) -> Report:
    """The report about everything that was gathered."""
    claims = verdicts(found)
    papers = Counter(one.shown.status for name, several in claims.items() if name != BEYOND for one in several)
    done = [runs.done(table) for runs, table in ((found.full, "table1"), *((found.warcraft, t) for t in _PATHS))]
    run, total = (sum(column) for column in zip(*done, strict=True))
    lead = (
        f"Of the paper’s {papers.total()} claims, {papers['confirmed']} are confirmed here, {papers['not confirmed']} "
        f"are not, and {papers['open']} are open, on what has been run so far."
    )
    state = (
        f"{count(len(found.index.records), 'finished run')}, {found.index.in_a_cell} of them in a cell of a table or "
        f"an ablation of the paper. Of the paper’s {total} cells, {run or 'none'} {'has' if run < 2 else 'have'} been "
        f"run at the paper’s length on the paper’s data{_most(found)}. Missing runs are marked “not run”."
    )
    sections = [_sorting, _controls, _paths, _curves, _provenance]
    return Report(
        lead,
        _repeats(found),
        state,
        [*_not_shown(found), *_left_out(found)],
        headline(found),
        claims,
        [section(found) for section in sections],
    )


def _most(found: Evidence) -> str:
    """What most figures are of, if that is neither the paper's length nor its data."""
    smaller = found.shown(found.short, found.terrain)
    if 2 * len(smaller) <= len(found.shown()):
        return ""
    (count, _), *_ = Counter(len(one.records) for one in smaller).most_common(1)
    seeds = {1: "one seed", 2: "two seeds", 3: "three seeds"}.get(count, f"{count} seeds")
    which = [
        name for name, runs in (("10,000 steps", found.short), ("look-alike maps", found.terrain)) if found.shown(runs)
    ]
    return f"; most figures are of {' or of '.join(which)}, with {seeds}"


def _not_shown(found: Evidence) -> list[str]:
    """Runs of the paper's cells in another length or under other settings than the tables show."""
    several = found.not_shown()
    if not several:
        return []
    total, named = sum(several.values()), list(several.items())[:_NAMED]
    which = "; ".join(f"{count} of {protocol}" for protocol, count in named)
    others = f"; {total - sum(count for _, count in named)} of others" if len(several) > _NAMED else ""
    return [
        f"{total} {'run is' if total == 1 else 'runs are'} not shown in the tables, which hold {FULL:,} and {SHORT:,} "
        f"steps on MNIST and {EPOCHS} epochs: {which}{others}. `newton-losses reproduce list` lists them."
    ]


def _left_out(found: Evidence) -> list[str]:
    if not found.left_out:
        return []
    several = "1 run or line of a file was" if found.left_out == 1 else f"{found.left_out} runs or lines of files were"
    return [f"{several} left out; the page says which and why, under “Where the figures come from”."]


_PATHS = ("table2", "table3")
_NAMED = 3  # protocols named of the runs that no table shows


def _there(*several: Table | None) -> list[Table]:
    return [one for one in several if one is not None]


def _sorting(found: Evidence) -> Section:
    (full, total), (short, _) = found.full.done("table1"), found.short.done("table1")
    answer = f"{full} of {total} cells run at 100,000 steps, {short} at 10,000. {_repeats(found)}".strip()
    text = (
        "The paper’s losses take the logarithm of probabilities that float32 has rounded. Three controls use no "
        "curvature: the same loss computed in log space, the gradient’s norm clipped at 1, and the gradient divided "
        f"by its energy over the batch. {_apart(found)}"
    )
    table = tables.sorting_table(found.full, found.short)
    return Section("table1", "Table 1: ranking supervision", answer, text, [table])


def _repeats(found: Evidence) -> str:
    """How many of our figures at the paper's length are the paper's, and from how many seeds."""
    ours = found.full.repeats("table1")
    if not ours:
        return ""
    reproduced, seeds = sum(fits for *_, fits in ours), sorted({figure.count for _, figure, _ in ours})
    each = "one seed each" if seeds == [1] else f"{seeds[0]} to {seeds[-1]} seeds each"
    return (
        f"At the paper’s length and numerics, {reproduced} of {len(ours)} figures in table 1 lie where a repetition of "
        f"the paper’s ten seeds would ({each})."
    )


def _apart(found: Evidence) -> str:
    """What that means, and where we are not."""
    apart = [
        f"{column_title(cell.column)}, {METHODS[cell.variant]} ({ours.mean:.1f})"
        for cell, ours, fits in found.full.repeats("table1")
        if not fits
    ]
    return (
        "A figure repeats the paper’s if it lies in the 95 % prediction interval of the paper’s ten seeds, which is "
        "wide where those differ much, as for the logistic networks."
    ) + (f" These do not: {'; '.join(apart)}." if apart else "")


def _controls(found: Evidence) -> Section:
    sorting, maps = columns("table1", OURS), columns("table2", "table3")
    shown = {
        "sorting in log space, 10,000 steps": tables.control_table(found.short, sorting, "stable"),
        "100,000 steps": tables.control_table(found.full, sorting, "stable"),
        "averaged weights": tables.control_table(found.full, sorting, "stable", averaged=True),
        "Warcraft": tables.control_table(found.warcraft, maps, "reference"),
        "look-alike maps": tables.control_table(found.terrain, maps, "reference"),
    }
    counts = {name: Counter(row[1].text.split(":")[0] for row in table.rows) for name, table in shown.items() if table}
    answers = [
        f"{name}: " + ", ".join(f"{text} in {number}" for text, number in count.most_common())
        for name, count in counts.items()
    ]
    text = (
        "How much of a Newton loss’s gain is only the size of the step? Its effects are added to the plain loss one "
        "at a time: normalising (“normalised only”: λ so large that no curvature is left), a soft clip of each sample "
        "(“sample”: its own part of the Fisher), and curvature (the Fisher, or the Hessian where it has more seeds), "
        "“per batch” in the unit of each batch’s own gradients (--damping normalized). "
        "The verdict says whether the last is ahead of plain, and which steps are clear. p is of a paired t-test, "
        "two-sided: first of the Newton loss against plain, then of each effect against the "
        "one before. Clear means p below .05, as one test in twenty is by chance. “The default” is what a user of the "
        "library gets: the Fisher in the unit of the run (“running”), taken over all orders of a set’s items, and "
        "with leave-one-out smoothing. “Clipped” is the plain loss with the gradient’s norm at most 1. Averaged "
        "weights are a mean over a run’s steps, on average a tenth of the run old; any run can be averaged."
    )
    against = "With NormalizedDamping(), the Newton loss against the plain one"
    answer = f"{against}: {'; '.join(answers)}." if answers else "Not run."
    settings = [(found.short, sorting, "stable"), (found.terrain, maps, "reference")]
    default, behind = tables.default_table(settings), tables.behind_table(settings)
    return Section("controls", "Size or curvature?", answer, text, _there(default, *shown.values(), behind))


def _paths(found: Evidence) -> Section:
    shown = [tables.paths_table(table, found.warcraft, found.terrain) for table in _PATHS]
    done = [[runs.done(table) for table in _PATHS] for runs in (found.warcraft, found.terrain)]
    warcraft, terrain = (sum(one[0] for one in several) for several in done)
    total = sum(one[1] for one in done[0])
    answer = f"{warcraft} of {total} cells run on the paper’s maps, {terrain} on look-alike maps."
    return Section("paths", "Tables 2 and 3: shortest paths", answer, "", shown)


def _curves(found: Evidence) -> Section:
    settings = {"Shortest paths": (found.warcraft, found.terrain), "Ranking": (found.full, found.short)}
    drawn = [
        (f"{name}, {runs.label}", figures)
        for name, several in settings.items()
        for runs in several
        if (figures := learning_curves(runs))
    ]
    text = (
        "Test accuracy in % over training steps, as in the paper’s figure 3. Lines are means over the seeds, bands "
        "their 95 % intervals (t distribution) within 0 and 100; a line marked “1 seed” has none."
    )
    answer = "Test accuracy during training." if drawn else "Not run."
    return Section("curves", "Learning curves", answer, text, figures=drawn)


def _provenance(found: Evidence) -> Section:
    answer = f"{count(len(found.index.records), 'finished run')}, {len(found.unfinished)} unfinished."
    shown = _there(tables.folders_table(found), tables.notes_table(found))
    return Section("provenance", "Where the figures come from", answer, SELECTION, shown)
