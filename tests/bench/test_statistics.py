"""The statistics: the paper's own means and deviations give the paper's own marks."""

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from newton_losses_bench.cells import TABLES, cells
from newton_losses_bench.statistics import Summary, is_repeat, mark, p_value, summarise

PAPERS = [cell for table in TABLES for cell in cells(table) if cell.paper_bold is not None]


def figure(cell, metric):
    return Summary(*cell.paper[metric], 10)


def comparisons():
    """(column's baseline, figure, the paper's mark) of every figure that the paper compares with a baseline."""
    baselines = {cell.column: cell for cell in PAPERS if cell.variant == "baseline"}
    return [
        (figure(baselines[cell.column], metric), figure(cell, metric), bold)
        for cell in PAPERS
        if cell.variant != "baseline"
        for metric, bold in cell.paper_bold.items()
    ]


def test_the_papers_own_numbers_give_its_51_marks():
    found = comparisons()
    assert len(found) == 51
    assert [mark(baseline, other) for baseline, other, _ in found] == [bold for *_, bold in found]


def test_the_papers_baselines_get_their_marks():
    baselines = [cell for cell in PAPERS if cell.variant == "baseline"]
    assert len(baselines) == 8 + 4 + 9
    for cell in baselines:
        others = [other for other in PAPERS if other.column == cell.column and other.variant != "baseline"]
        for metric, bold in cell.paper_bold.items():
            best = all(figure(other, metric).mean < figure(cell, metric).mean for other in others)
            assert bold == ("grey" if best else "")


def test_no_other_reading_of_the_papers_test_gives_its_marks():
    """Two-sided, or with deviations divided by n: each misses marks that the paper has."""

    def wrong(alternative, factor):
        count = 0
        for baseline, other, bold in comparisons():
            found = stats.ttest_ind_from_stats(
                baseline.mean, factor * baseline.std, 10, other.mean, factor * other.std, 10,
                equal_var=False, alternative=alternative,
            )  # fmt: skip
            better = other.mean > baseline.mean
            count += bold != ("" if not better else "black" if found.pvalue < 0.05 else "grey")
        return count

    of_a_population = math.sqrt(10 / 9)
    assert wrong("less", 1) == 0
    assert wrong("two-sided", 1) == 3
    assert wrong("less", of_a_population) == 1


def test_the_test_is_that_of_the_values_themselves():
    worse, better = [70.1, 71.0, 69.2, 70.7], [71.5, 70.9, 73.0]
    wanted = stats.ttest_ind(worse, better, equal_var=False, alternative="less").pvalue
    assert p_value(summarise(worse), summarise(better)) == pytest.approx(wanted, rel=1e-12)
    assert summarise(worse) == Summary(statistics.mean(worse), statistics.stdev(worse), 4)


def test_one_seed_proves_nothing():
    one, two = summarise([70.0]), summarise([80.0, 81.0])
    assert math.isnan(one.std)
    assert math.isnan(p_value(one, two))
    assert mark(one, two) == "grey"
    assert str(one) == "70.00"


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_leaves_no_deviation(broken):
    found = summarise([1.0, broken, 2.0])
    assert not math.isfinite(found.mean)
    assert math.isnan(found.std)
    assert found.count == 3
    assert math.isnan(summarise([math.inf, -math.inf]).mean)
    assert mark(found, summarise([1.0, 2.0])) in ("", "grey")
    assert mark(summarise([1.0, 2.0]), found) in ("", "grey")


def test_seeds_that_all_agree():
    assert mark(summarise([1.0, 1.0]), summarise([2.0, 2.0])) == "black"
    assert mark(summarise([1.0, 1.0]), summarise([1.0, 1.0])) == ""
    assert mark(summarise([2.0, 2.0]), summarise([1.0, 1.0])) == ""


@pytest.mark.parametrize("count", [1, 3])
def test_nineteen_of_twenty_repetitions_count_as_such(count):
    drawn = np.random.default_rng(0).normal(50.0, 3.0, size=(4000, 10 + count))
    repeats = [is_repeat(summarise(row[:10]), summarise(row[10:])) for row in drawn]
    assert statistics.fmean(repeats) == pytest.approx(0.95, abs=0.012)  # three and a half standard errors
    others = [is_repeat(summarise(row[:10]), summarise(row[10:] + 20.0)) for row in drawn]
    assert statistics.fmean(others) < 0.01
