"""The statistics of the paper: mean ± standard deviation over seeds, and a one-sided t-test against the baseline.

The paper only says "significant at .05". Its own tables show the rest: with a one-sided test and sample deviations
(divided by n − 1), and only then, its means and deviations give all of its marks. Welch's test and the pooled one agree
on them; we use Welch's, since the deviations of an arm that fails and one that does not differ tenfold.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LEVEL = 0.05


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation of `count` values; without a second value the deviation is NaN.

    >>> str(Summary(83.931, 0.62, 10))
    '83.93 ± 0.62'
    """

    mean: float
    std: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if math.isnan(self.std) else f"{self.mean:.2f} ± {self.std:.2f}"

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.std / math.sqrt(self.count)


def summarise(values: Iterable[float]) -> Summary:
    """The summary of at least one value; the deviation is NaN where a value is not finite.

    >>> summarise([1.0, 2.0, 3.0])
    Summary(mean=2.0, std=1.0, count=3)
    """
    found = list(values)
    if not all(map(math.isfinite, found)):
        # `statistics` raises on some of these, in Python 3.11 an AttributeError.
        return Summary(sum(found) / len(found), math.nan, len(found))
    return Summary(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else math.nan, len(found))


def summarise_all(several: Iterable[Mapping[str, float]]) -> dict[str, Summary]:
    """The summaries of figures by name, for those that every member has.

    >>> summarise_all([{"exact_match": 1.0}, {"exact_match": 3.0, "element_wise": 5.0}])
    {'exact_match': Summary(mean=2.0, std=1.4142135623730951, count=2)}
    """
    found = list(several)
    names = [name for name in (found[0] if found else {}) if all(name in one for one in found)]
    return {name: summarise(one[name] for one in found) for name in names}


def p_value(baseline: Summary, other: Summary) -> float:
    """The probability of so large an improvement over the baseline by chance: Welch's t-test, one-sided.

    NaN where either has a single value: one seed proves nothing.

    >>> round(p_value(Summary(77.01, 2.18, 10), Summary(78.82, 2.12, 10)), 3)
    0.038
    """
    if min(baseline.count, other.count) < 2:
        return math.nan
    if baseline.std == other.std == 0:
        return 0.0 if other.mean > baseline.mean else 1.0
    left, right = baseline.std**2 / baseline.count, other.std**2 / other.count
    freedom = (left + right) ** 2 / (left**2 / (baseline.count - 1) + right**2 / (other.count - 1))
    return _tail((other.mean - baseline.mean) / math.sqrt(left + right), freedom)


def paired_p_value(advantages: Iterable[float]) -> float:
    """The probability of so large a mean advantage over the seeds by chance: the paired t-test, one-sided.

    Stronger than `p_value` where the runs of one seed are correlated. NaN for fewer than two.

    >>> round(paired_p_value([3.6, 4.1, 1.5]), 3)
    0.031
    """
    found = list(advantages)
    if len(found) < 2:
        return math.nan
    if len(set(found)) == 1:
        return 0.0 if found[0] > 0 else 1.0
    own = summarise(found)
    return _tail(own.mean / own.error, own.count - 1)


def is_repeat(reported: Summary, ours: Summary) -> bool:
    """Whether a mean lies where one expects that of a repetition, be it of a single seed.

    That is the 95 % prediction interval of the reported seeds: of twenty true repetitions it holds nineteen.

    >>> reported = Summary(83.31, 1.70, 10)
    >>> is_repeat(reported, Summary(82.4, math.nan, 1)), is_repeat(reported, Summary(78.0, math.nan, 1))
    (True, False)
    """
    from scipy.special import stdtrit

    spread = reported.std * math.sqrt(1 / reported.count + 1 / ours.count)
    return abs(ours.mean - reported.mean) <= float(stdtrit(reported.count - 1, 1 - LEVEL / 2)) * spread


def _tail(t: float, freedom: float) -> float:
    """The probability of a value above `t` under Student's distribution."""
    # `scipy.stats` has whole tests, and takes three times as long to import.
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))


def mark(baseline: Summary, other: Summary) -> str:
    """The paper's mark for a figure: "black" if significantly better, "grey" if its mean is better, else "".

    >>> mark(Summary(85.48, 1.23, 10), Summary(86.10, 0.60, 10))
    'grey'
    """
    if not other.mean > baseline.mean:
        return ""
    return "black" if p_value(baseline, other) < LEVEL else "grey"
