"""How a claim is decided: the parts it consists of, and what follows for the whole.

A part holds, does not hold, or is not measured. Nothing here knows a particular claim; those are in `_claims.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..statistics import Summary, mark
from ._blocks import Judgement, Status

# Fewer seeds than this decide nothing: with two, a single lucky one is half of the evidence.
LEAST_SEEDS = 3
# Accuracies this close, in points, count as the same where a claim says "on par".
ON_PAR = 1.0

Need = Literal["all", "any"]


class Setting(Protocol):
    """Where figures come from: a length of training, a data set, or the paper's own tables."""

    @property
    def label(self) -> str: ...

    def figure(
        self,
        column: str,
        method: str,
        numerics: str = "reference",
        metric: str | None = None,
        *,
        averaged: bool = False,
    ) -> Summary | None:
        """A test figure in per cent over its seeds, by default the one that the paper's table is about.

        It is that of the weights as trained, or with `averaged` that of the averaged weights of the same runs.
        """

    def ablation(self, column: str, method: str) -> dict[float, Summary]:
        """Element-wise accuracy by the damping λ."""


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: whether it holds (`None` when it is not measured), and its figures."""

    holds: bool | None
    words: str


def better(name: str, new: Summary | None, base: Summary | None, *, by: float = 0.0) -> Part:
    """The mean of `new` is above that of `base` by more than `by` points."""
    return _compare(name, new, base, lambda one, other: one.mean - other.mean > by)


def significant(name: str, new: Summary | None, base: Summary | None) -> Part:
    """The mean of `new` is above that of `base`, by a one-sided t-test at .05."""
    return _compare(name, new, base, significantly_better)


def alike(name: str, new: Summary | None, base: Summary | None) -> Part:
    """Neither is significantly better than the other."""
    return _compare(
        name,
        new,
        base,
        lambda one, other: not (significantly_better(one, other) or significantly_better(other, one)),
    )


def significantly_better(new: Summary, base: Summary) -> bool:
    """Whether the paper would set `new` in bold black."""
    return mark(base, new) == "black"


def reaches(name: str, new: Summary | None, base: Summary | None) -> Part:
    """The mean of `new` is no more than one point below that of `base`."""
    return better(name, new, base, by=-ON_PAR)


def best(*candidates: Summary | None) -> Summary | None:
    """The candidate with the highest mean; `None` unless all of them are measured, as a part is no whole."""
    known = [candidate for candidate in candidates if candidate is not None and measured(candidate)]
    return max(known, key=lambda candidate: candidate.mean) if len(known) == len(candidates) else None


def measured(summary: Summary | None) -> bool:
    """Whether there are seeds enough to decide something."""
    return summary is not None and summary.count >= LEAST_SEEDS


def judge(setting: str, parts: Sequence[Part], need: Need = "all", *, brief: bool = False) -> Judgement:
    """What the parts say of the whole.

    "all": confirmed when every part holds, not confirmed as soon as one does not. "any": confirmed as soon as
    one part holds, not confirmed when none does. Else it is not yet tested.

    >>> judge("here", [Part(True, "a"), Part(None, "b")]).status.value
    'not yet tested'
    >>> judge("here", [Part(True, "a"), Part(None, "b")], "any").status.value
    'confirmed'
    """
    deciding = need == "any"
    if any(part.holds is deciding for part in parts):
        status = Status.CONFIRMED if deciding else Status.UNCONFIRMED
    elif parts and all(part.holds is not None for part in parts):
        status = Status.UNCONFIRMED if deciding else Status.CONFIRMED
    else:
        status = Status.OPEN
    return Judgement(setting, status, _words(parts, need, brief))


def _words(parts: Sequence[Part], need: Need, brief: bool) -> str:
    """How many parts hold, and each with its figures: those that do not hold first, where they matter."""
    tested = [part for part in parts if part.holds is not None]
    if not tested:
        return ""
    failing = [part.words for part in tested if not part.holds]
    holding = [part.words for part in tested if part.holds]
    missing = len(parts) - len(tested)
    text = f"{len(holding)} of {len(tested)}" + (f", {missing} more not measured" if missing else "")
    if need == "any" and holding:
        failing = []
    if brief:
        return text
    if not (failing and holding):
        return f"{text}: {'; '.join(failing or holding)}."
    return f"{text}. No: {'; '.join(failing)}. Yes: {'; '.join(holding)}."


def _compare(name: str, new: Summary | None, base: Summary | None, holds: Callable[[Summary, Summary], bool]) -> Part:
    if new is None or base is None or not (measured(new) and measured(base)):
        counts = [0 if summary is None else summary.count for summary in (new, base)]
        return Part(None, f"{name} has {min(counts)} of the {LEAST_SEEDS} seeds needed")
    return Part(holds(new, base), f"{name} {new.mean:.1f} against {base.mean:.1f}")
