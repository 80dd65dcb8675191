"""The figures of the demonstration: mean and spread over the seeds of every arm's last evaluation."""

import statistics
from dataclasses import dataclass
from typing import Any

from ._setting import ARMS, Arm

Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """An arm's test accuracies in per cent, one a seed, at the last evaluation."""

    arm: Arm
    exact: list[float]
    element_wise: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.exact)

    @property
    def std(self) -> float:
        return statistics.stdev(self.exact) if len(self.exact) > 1 else 0.0

    @property
    def mean_element_wise(self) -> float:
        return statistics.fmean(self.element_wise)


def summarise(evaluations: dict[str, list[list[Record]]]) -> list[Row]:
    """A row an arm, from what `train_arms` left."""
    rows = []
    for arm in ARMS:
        last = [records[-1]["test"] for records in evaluations[arm.name]]
        rows.append(Row(arm, [r["exact_match"] for r in last], [r["element_wise"] for r in last]))
    return rows


def verdict(rows: list[Row]) -> str:
    """What the figures show, in words that follow from them and from nothing else."""
    by_name = {row.arm.name: row for row in rows}
    plain, newton, stable = by_name["plain"], by_name["newton"], by_name["stable"]
    both = by_name["stable-newton"]
    first = (
        f"The usual loss ends at {plain.mean:.0f} % of the sets in the right order; the same loss as a Newton loss "
        f"ends at {newton.mean:.0f} %, {_in_every_seed(newton, plain)}."
    )
    second = f"The same loss computed stably, in log space, ends at {stable.mean:.0f} %: " + (
        "most of the failure was one of floating-point numerics."
        if stable.mean > plain.mean + 0.5 * (newton.mean - plain.mean)
        else "numerics were not the main cause of the failure."
    )
    difference = both.mean - stable.mean
    third = (
        f"On top of stable numerics the Newton loss changes {difference:+.1f} points, "
        + ("more than" if abs(difference) > stable.std + both.std else "no more than")
        + f" the seeds differ among themselves (± {stable.std:.1f} and ± {both.std:.1f})."
    )
    return f"{first} {second} {third}"


def _in_every_seed(better: Row, worse: Row) -> str:
    wins = sum(a > b for a, b in zip(better.exact, worse.exact, strict=True))
    count = len(better.exact)
    return f"better with {'every one' if wins == count else f'{wins}'} of {count} seeds"
