"""The claims: what the paper says, what it does not ask, and our own goal, each with the rule that decides it.

A claim consists of comparisons; each holds, does not hold, or lacks seeds. One rule decides a claim in every setting:
at the paper's length and at a tenth of it, on its maps and on their look-alike, and for the paper's own figures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..cells import cells
from ..statistics import Summary, mark
from .collect import (
    LEAST_SEEDS,
    LOOPS,
    METHODS,
    NEWTON,
    Evidence,
    Figure,
    PaperFigures,
    Setting,
    Standing,
    column_title,
    measured,
    standings,
)

ON_PAR = 1.0  # accuracies this close, in points, count as the same where a claim says "as well as"


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: whether it holds (`None` where seeds are missing), and its figures."""

    holds: bool | None
    words: str


Figures = Figure | Sequence[Figure]


def compare(name: str, new: Figures, base: Figures, holds: Callable[[Summary, Summary], bool]) -> Part:
    """Whether the best of the new figures stands to the best of the base figures as asked.

    A figure without enough seeds leaves the comparison open, unless it could not change the answer: a further new
    figure can only raise the best of them, a further base figure only the level to reach.
    """
    sides = [[side] if side is None or isinstance(side, Summary) else list(side) for side in (new, base)]
    ready = [[one for one in side if one is not None and measured(one)] for side in sides]
    missing = [[one for one in side if not measured(one)] for side in sides]
    if ready[0] and ready[1]:
        first, second = (max(side, key=lambda one: one.mean) for side in ready)
        found = holds(first, second)
        if not missing[1 if found else 0]:
            return Part(found, f"{name} {first.mean:.1f} against {second.mean:.1f}")
    counts = [one.count for side in missing for one in side if one is not None]
    return Part(None, f"{name} ({max(counts)} of {LEAST_SEEDS} seeds)" if counts else f"{name} (not run)")


def better(name: str, new: Figures, base: Figures, *, by: float = 0.0) -> Part:
    """The new mean is higher by more than `by` points."""
    return compare(name, new, base, lambda one, other: one.mean - other.mean > by)


def significant(name: str, new: Figures, base: Figures) -> Part:
    """The new mean is higher by a one-sided t-test at .05, as the paper marks it in bold."""
    return compare(name, new, base, lambda one, other: mark(other, one) == "black")


def alike(name: str, new: Figures, base: Figures) -> Part:
    """Neither mean is significantly higher than the other."""
    return compare(name, new, base, lambda one, other: "black" not in (mark(one, other), mark(other, one)))


def doubled(name: str, new: Figures, base: Figures) -> Part:
    """The new mean is more than twice as high."""
    return compare(name, new, base, lambda one, other: one.mean > 2 * other.mean)


def reaches(name: str, new: Figures, base: Figures) -> Part:
    """The new mean is at most one point lower."""
    return better(name, new, base, by=-ON_PAR)


Status = Literal["confirmed", "not confirmed", "open"]
Need = Literal["all", "any"]


@dataclass(frozen=True)
class Judgement:
    """What one setting says about a claim: the number of comparisons that hold, and their figures."""

    setting: str
    status: Status
    count: str
    figures: str = ""


def judge(setting: str, parts: Sequence[Part], need: Need = "all") -> Judgement:
    """What the parts say of the whole: with "all" every part has to hold, with "any" one is enough.

    >>> judge("here", [Part(True, "a"), Part(None, "b (2 of 3 seeds)")])
    Judgement(setting='here', status='open', count='1 of 2, 1 open', figures='Yes: a. Open: b (2 of 3 seeds).')
    >>> judge("here", [Part(True, "a"), Part(None, "b")], "any").status
    'confirmed'
    """
    yes, no, missing = ([part.words for part in parts if part.holds is kind] for kind in (True, False, None))
    deciding, rest = (yes, no) if need == "any" else (no, yes)
    status: Status = "open"
    if deciding:
        status = "confirmed" if need == "any" else "not confirmed"
    elif rest and not missing:
        status = "not confirmed" if need == "any" else "confirmed"
    if not (yes or no):
        return Judgement(
            setting, status, "not run" if all("seeds)" not in words for words in missing) else "too few seeds"
        )
    count = f"{len(yes)} of {len(parts)}" + (f", {len(missing)} open" if missing else "")
    sides = [("No", no), ("Yes", yes)] if need == "all" else [("Yes", yes), ("No", no)]
    words = [f"{name}: {'; '.join(found)}." for name, found in (*sides, ("Open", missing)) if found]
    return Judgement(setting, status, count, " ".join(words))


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of it in each setting, the one nearest to the paper's first."""

    words: str
    source: str
    rule: str
    judgements: Sequence[Judgement]
    paper: str = ""

    @property
    def shown(self) -> Judgement:
        """The judgement for the one line: of the first setting that decides the claim."""
        return next((one for one in self.judgements if one.status != "open"), self.judgements[0])


@dataclass(frozen=True)
class Claim:
    """A claim: its words, its place in the paper, its rule in words and as a function."""

    words: str
    source: str
    rule: str
    parts: Callable[[Setting], Sequence[Part]]
    need: Need = "all"

    def verdict(self, settings: Sequence[Setting]) -> Verdict:
        """What every setting says, and what the rule makes of the paper's own figures."""
        own, paper = judge("the paper", self.parts(PaperFigures()), self.need), ""
        if own.status != "open":
            paper = (
                f"The paper’s own figures {'meet' if own.status == 'confirmed' else 'do not meet'} it ({own.count})."
            )
        judgements = [judge(setting.label, self.parts(setting), self.need) for setting in settings]
        return Verdict(self.words, self.source, self.rule, judgements, paper)


Parts = Callable[[Setting], list[Part]]


def within(rule: Callable[..., Part], names: Sequence[str], new: str, base: str, **options: float) -> Parts:
    """In each of these columns, the best of the `new` methods against the best of the `base` ones.

    Methods are separated by commas, "baseline@stable" is one in log space.
    """

    def figures(at: Setting, column: str, methods: str) -> list[Figure]:
        names = (method.partition("@") for method in methods.split(","))
        return [at.figure(column, name, numerics or "reference") for name, _, numerics in names]

    suffix = f", {METHODS[new]}" if new in METHODS else ""
    return lambda at: [
        rule(f"{column_title(column)}{suffix}", figures(at, column, new), figures(at, column, base), **options)
        for column in names
    ]


def across(rule: Callable[..., Part], pairs: Sequence[tuple[str, str]]) -> Parts:
    """The plain loss of one column against that of another."""
    return lambda at: [
        rule(f"{column_title(new)}, over {column_title(base)}", *(at.figure(one, "baseline") for one in (new, base)))
        for new, base in pairs
    ]


def both(*several: Parts) -> Parts:
    return lambda at: [part for parts in several for part in parts(at)]


def _robust(at: Setting) -> list[Part]:
    parts = []
    for column in ("neuralsort-n5", "softsort-n5"):
        base = at.figure(column, "baseline", "reference", "element_wise")
        for method in NEWTON:
            worst = min(_ablation(at, column, method), key=lambda figure: figure.mean, default=None)
            parts.append(significant(f"{column_title(column)}, {METHODS[method]}, at its worst λ", worst, base))
    return parts


def _sensitive(at: Setting) -> list[Part]:
    parts = []
    for method in NEWTON:
        found = [[one.mean for one in _ablation(at, column, method)] for column in ("neuralsort-n5", "softsort-n5")]
        if not all(found):
            parts.append(Part(None, f"{METHODS[method]} (not every λ)"))
            continue
        first, second = (max(means) - min(means) for means in found)
        parts.append(Part(first > second, f"{METHODS[method]} {first:.1f} points against {second:.1f}"))
    return parts


def _ablation(at: Setting, column: str, method: str) -> list[Summary]:
    """Element-wise accuracy for every λ of the ablation; nothing unless each has enough seeds."""
    found = [group.summary("element_wise") for group in at.ablation(column, method).values()]
    known = [figure for figure in found if figure is not None and measured(figure)]
    return known if len(known) == len(cells("ablation", only=f"{column}-{method}-*")) else []


EIGHT = tuple(f"{name}-n{n}" for n in (5, 10) for name in ("neuralsort", "softsort", "logistic", "cauchy"))
FENCHEL_YOUNG = tuple(f"fenchel-young-{count}" for count in (3, 10, 30))
SMOOTHED_LOSS, SMOOTHED_ALGORITHM = (
    tuple(f"smoothed-{what}-{count}" for count in (10, 30)) for what in ("loss", "algorithm")
)

SORTING_CLAIMS = (
    Claim(
        "Newton losses improve over the baseline for every sorting loss.",
        "section 4.1, table 1",
        "In all eight cells (four losses, n = 5 and 10) the better of Hessian and Fisher has a higher mean than the "
        "baseline.",
        within(better, EIGHT, "hessian,fisher", "baseline"),
    ),
    Claim(
        "For NeuralSort, SoftSort and logistic networks the improvement is substantial.",
        "section 4.1, table 1",
        "In all six cells the better of Hessian and Fisher is significantly better (one-sided t-test at .05).",
        within(significant, [one for one in EIGHT if "cauchy" not in one], "hessian,fisher", "baseline"),
    ),
    Claim(
        "For some losses they more than double the accuracy.",
        "section 1",
        "In at least one cell of table 1 the better of Hessian and Fisher has more than twice the baseline’s mean.",
        within(doubled, EIGHT, "hessian,fisher", "baseline"),
        "any",
    ),
    Claim(
        "The Hessian beats the Fisher, except for NeuralSort and SoftSort at n = 5.",
        "section 4.1, table 1",
        "In the other six cells the Hessian’s mean is higher than the Fisher’s.",
        within(better, EIGHT[2:], "hessian", "fisher"),
    ),
    Claim(
        "For Cauchy networks the Hessian is on par at n = 5 and gains more than a point at n = 10.",
        "section 4.1, table 1",
        "n = 5: neither is significantly better. n = 10: the Hessian’s mean is more than 1 above the baseline’s.",
        both(
            within(alike, ["cauchy-n5"], "hessian", "baseline"),
            within(better, ["cauchy-n10"], "hessian", "baseline", by=1.0),
        ),
    ),
    Claim(
        "At n = 15 the Fisher improves the Cauchy network too.",
        "section 4.1",
        "Its mean is higher than the baseline’s.",
        within(better, ["cauchy-n15"], "fisher", "baseline"),
    ),
    Claim(
        "Both variants improve NeuralSort and SoftSort over six orders of magnitude of λ.",
        "section 4.3, figure 4",
        "At the worst of the 13 values of λ the element-wise accuracy is significantly above the baseline’s.",
        _robust,
    ),
    Claim(
        "NeuralSort is more sensitive to λ than SoftSort.",
        "section 4.3, figure 4",
        "The element-wise accuracy varies more over the 13 values of λ, for both variants.",
        _sensitive,
    ),
)
PATHS_CLAIMS = (
    Claim(
        "The Fisher improves all four variants of relaxed Bellman-Ford.",
        "section 4.2, table 2",
        "In all four its mean is higher than the baseline’s.",
        within(better, [f"bellman-ford-{loop}" for loop in LOOPS], "fisher", "baseline"),
    ),
    Claim(
        "Newton losses improve stochastic smoothing with more than 3 samples.",
        "section 4.2, table 3",
        "With 10 and 30 samples the mean of each variant is higher than the baseline’s.",
        both(
            within(better, SMOOTHED_LOSS, "hessian", "baseline"),
            within(better, SMOOTHED_LOSS + SMOOTHED_ALGORITHM, "fisher", "baseline"),
        ),
    ),
    Claim(
        "From 10 samples on, smoothing the algorithm beats smoothing the loss.",
        "section 4.2, table 3",
        "With 10 and 30 samples its baseline has the higher mean.",
        across(better, list(zip(SMOOTHED_ALGORITHM, SMOOTHED_LOSS, strict=True))),
    ),
    Claim(
        "With the Fenchel-Young loss the Hessian gains more than 2 points.",
        "section 4.2, table 3",
        "With 3, 10 or 30 samples its mean is more than 2 above the baseline’s.",
        within(better, FENCHEL_YOUNG, "hessian", "baseline", by=2.0),
        "any",
    ),
    Claim(
        "With the Fenchel-Young loss the Fisher makes no difference.",
        "section 4.2, table 3",
        "With 3, 10 and 30 samples neither is significantly better than the other.",
        within(alike, FENCHEL_YOUNG, "fisher", "baseline"),
    ),
    Claim(
        "With few samples Fenchel-Young beats smoothing; with many it loses.",
        "section 4.2, table 3",
        "Its baseline has the higher mean with 3 samples, and that of smoothing with 30, for both kinds of smoothing.",
        both(
            across(better, [("fenchel-young-3", f"smoothed-{what}-3") for what in ("loss", "algorithm")]),
            across(better, [(f"smoothed-{what}-30", "fenchel-young-30") for what in ("loss", "algorithm")]),
        ),
    ),
)


GOAL_RULE = (
    f"A setting counts from {LEAST_SEEDS} seeds on. A column is reached when the mean of one setting that counts is at "
    "least the paper’s best, not reached when all five settings count and none does, and otherwise open."
)


def _reached(one: Standing) -> Part:
    name = column_title(one.column)
    if one.best is None:
        return Part(None, f"{name} (not run)")
    setting, figure = one.best
    words = f"{name} {figure.mean:.1f} against {one.paper.mean:.1f}, {METHODS[setting]}, {figure.count} seeds"
    return Part({"reached": True, "not reached": False}.get(one.state), words)


QUESTIONS = (
    Claim(
        "Computing the loss in log space, without curvature, does as well as the Newton loss.",
        "not in the paper",
        "In all eight cells the baseline in log space is at most one point below the better Newton loss in the "
        "paper’s numerics.",
        within(reaches, EIGHT, "baseline@stable", "hessian,fisher"),
    ),
    Claim(
        "Clipping the gradient’s norm at 1 does as well as the Newton loss.",
        "not in the paper",
        "In all eight cells the clipped baseline is at most one point below the better Newton loss, both in the "
        "paper’s numerics.",
        within(reaches, EIGHT, "clipped", "hessian,fisher"),
    ),
    Claim(
        "Dividing by the gradients’ energy, one number per batch, does as well as the Fisher.",
        "not in the paper",
        "In all eight cells its mean is at most one point below the Fisher’s, both in the paper’s numerics.",
        within(reaches, EIGHT, "energy", "fisher"),
    ),
    Claim(
        "On top of the loss in log space, curvature still helps.",
        "not in the paper",
        "In all eight cells the better Newton loss in log space, with the paper’s λ, is significantly better than the "
        "baseline in log space (one-sided t-test at .05).",
        within(significant, EIGHT, "hessian@stable,fisher@stable", "baseline@stable"),
    ),
)
GOAL = Claim(
    "In log space our best setting reaches the paper’s best figure in every column.",
    "our goal",
    f"In all nine columns of table 1, as trained. {GOAL_RULE}",
    lambda at: [_reached(one) for one in standings(at)],
)
GOAL_AVERAGED = Claim(
    "With averaged weights it does too.",
    "beside our goal",
    "The same with averaged weights. The paper does not average weights, and any run can be averaged, the plain loss "
    "as well: this compares no methods, and does not count for the goal.",
    lambda at: [_reached(one) for one in standings(at, averaged=True)],
)


def verdicts(found: Evidence) -> dict[str, list[Verdict]]:
    """All claims by subject."""
    sorting, paths = (found.full, found.short), (found.warcraft, found.terrain)
    return {
        "Sorting": [claim.verdict(sorting) for claim in SORTING_CLAIMS],
        "Shortest paths": [claim.verdict(paths) for claim in PATHS_CLAIMS],
        "Beyond the paper": [
            *(claim.verdict(sorting) for claim in QUESTIONS),
            *(claim.verdict([found.full]) for claim in (GOAL, GOAL_AVERAGED)),
        ],
    }
