"""What the averaged weights of a run bring beside its weights as trained, setting by setting, on the same seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..statistics import Summary, summarise
from ._goal import SETTINGS, columns
from ._measured import Runs, main_metric


@dataclass(frozen=True)
class Averaged:
    """A setting in log space: its figures as trained and of averaged weights, and their difference seed by seed.

    All three are of those seeds alone that have both.
    """

    column: str
    method: str
    trained: Summary
    averaged: Summary
    gain: Summary


def averages(runs: Runs) -> list[Averaged]:
    """The settings of the goal that have figures of averaged weights, in the order of the columns."""
    found = []
    for column, method in ((column, method) for column in columns() for method in SETTINGS):
        group = runs.runs(column, method, "stable")
        if group is None:
            continue
        metric = main_metric(group.cell)
        both = group.with_average(metric)
        if both.records:
            trained, averaged = both.values(metric), both.values(metric, averaged=True)
            gain = summarise(new - old for old, new in zip(trained, averaged, strict=True))
            found.append(Averaged(column, method, summarise(trained), summarise(averaged), gain))
    return found


def how_often_above(several: Sequence[Averaged]) -> str:
    """In how many settings the gain is above zero, those of the plain loss told apart from those with curvature."""
    measured, missing = [], []
    for name, is_plain in (("the plain loss", True), ("curvature", False)):
        above = [one.gain.mean > 0 for one in several if (one.method == "baseline") is is_plain]
        if above:
            measured.append(f"in {sum(above)} of {len(above)} settings with {name}")
        else:
            missing.append(f"; with {name} it has not been measured")
    return "".join(["above zero ", " and ".join(measured), *missing])
