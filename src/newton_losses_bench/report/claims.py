"""How a claim is decided: by comparisons, each of which holds, does not hold, or lacks seeds.

One rule decides a claim in every setting: at the paper's length and at a tenth of it, on its maps and on their
look-alike, and for the paper's own figures. The claims themselves are in `paper_claims`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..statistics import Summary, mark
from .collect import LEAST_SEEDS, METHODS, Figure, PaperFigures, Setting, column_title, measured

ON_PAR = 1.0  # accuracies this close, in points, count as the same where a claim says "as well as"


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: whether it holds (`None` where seeds are missing), and its figures."""

    holds: bool | None
    words: str


Rule = Callable[[Summary, Summary], bool]  # of a new figure and a base figure


def compare(name: str, new: Sequence[Figure], base: Sequence[Figure], holds: Rule) -> Part:
    """Whether the best of the new figures stands to the best of the base figures as asked.

    A figure without enough seeds leaves the comparison open, unless it could not change the answer: a further new
    figure can only raise the best of them, a further base figure only the level to reach.
    """
    ready = [[one for one in side if one is not None and measured(one)] for side in (new, base)]
    missing = [[one for one in side if not measured(one)] for side in (new, base)]
    if ready[0] and ready[1]:
        first, second = (max(side, key=lambda one: one.mean) for side in ready)
        found = holds(first, second)
        if not missing[1 if found else 0]:
            return Part(found, f"{name} {first.mean:.1f} against {second.mean:.1f}")
    counts = [one.count for side in missing for one in side if one is not None]
    return Part(None, f"{name} ({max(counts)} of {LEAST_SEEDS} seeds)" if counts else f"{name} (not run)")


def better(new: Summary, base: Summary) -> bool:
    return new.mean > base.mean


def better_by(points: float) -> Rule:
    return lambda new, base: new.mean - base.mean > points


def significant(new: Summary, base: Summary) -> bool:
    """Better by a one-sided t-test at .05, as the paper marks it in bold."""
    return mark(base, new) == "black"


def not_behind(new: Summary, base: Summary) -> bool:
    return not significant(base, new)


def alike(new: Summary, base: Summary) -> bool:
    return not significant(new, base) and not significant(base, new)


def doubled(new: Summary, base: Summary) -> bool:
    return new.mean > 2 * base.mean


reaches = better_by(-ON_PAR)


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


def within(rule: Rule, names: Sequence[str], new: str, base: str) -> Parts:
    """In each of these columns, the best of the `new` methods against the best of the `base` ones.

    Methods are separated by commas, "baseline@stable" is one in log space.
    """

    def figures(at: Setting, column: str, methods: str) -> list[Figure]:
        names = (method.partition("@") for method in methods.split(","))
        return [at.figure(column, name, numerics or "reference") for name, _, numerics in names]

    method = new.partition("@")[0]
    suffix = f", {METHODS[method]}" if method in METHODS else ""
    return lambda at: [
        compare(f"{column_title(column)}{suffix}", figures(at, column, new), figures(at, column, base), rule)
        for column in names
    ]


def across(rule: Rule, pairs: Sequence[tuple[str, str]]) -> Parts:
    """The plain loss of one column against that of another."""
    return lambda at: [
        compare(
            f"{column_title(new)}, over {column_title(base)}",
            [at.figure(new, "baseline")],
            [at.figure(base, "baseline")],
            rule,
        )
        for new, base in pairs
    ]


def both(*several: Parts) -> Parts:
    return lambda at: [part for parts in several for part in parts(at)]
