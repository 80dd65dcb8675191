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
    plain, clipped, newton = by_name["plain"], by_name["clipped"], by_name["newton"]
    stable, both = by_name["stable"], by_name["stable-newton"]
    difference = both.mean - stable.mean
    spread = stable.std + both.std
    return " ".join(
        (
            f"The usual loss ends with {plain.mean:.0f} % of the sets in the right order; turned into a Newton loss "
            f"it ends with {newton.mean:.0f} %, {_in_how_many(newton, plain)}.",
            f"Two remedies without curvature {_compared((clipped, stable), newton)}: gradient clipping ends with "
            f"{clipped.mean:.0f} %, and the same loss computed stably, in log space, with {stable.mean:.0f} %.",
            f"On top of the stable loss the Newton loss changes {difference:+.1f} points, "
            f"{'more' if abs(difference) > spread else 'no more'} than the seeds differ among themselves "
            f"(± {stable.std:.1f} and ± {both.std:.1f}).",
        )
    )


def _compared(rows: tuple[Row, ...], other: Row) -> str:
    if all(row.mean > other.mean for row in rows):
        return "end higher still"
    return "end lower" if all(row.mean < other.mean for row in rows) else "for comparison"


def _in_how_many(better: Row, worse: Row) -> str:
    wins = sum(a > b for a, b in zip(better.exact, worse.exact, strict=True))
    return f"and is better with {wins} of {len(better.exact)} seeds"
