"""The rules that decide claims: they hold for the paper's own figures, and open questions stay open."""

import math

import pytest
from run_folders import write_cell, write_run

from newton_losses_bench.cells import cells
from newton_losses_bench.report import gather
from newton_losses_bench.report.claims import (
    EIGHT,
    GOAL,
    GOAL_AVERAGED,
    PATHS_CLAIMS,
    QUESTIONS,
    SORTING_CLAIMS,
    Part,
    alike,
    better,
    judge,
    reaches,
    significant,
)
from newton_losses_bench.report.collect import SETTINGS_OF_GOAL, PaperFigures, Standing, standings
from newton_losses_bench.statistics import Summary

ABLATION_CLAIMS = SORTING_CLAIMS[-2:]
TABLE_CLAIMS = (*SORTING_CLAIMS[:-2], *PATHS_CLAIMS)
EVERY_CLAIM = (*SORTING_CLAIMS, *PATHS_CLAIMS, *QUESTIONS, GOAL, GOAL_AVERAGED)
DOUBLED = next(claim for claim in SORTING_CLAIMS if "double" in claim.words)


def words(claim):
    return claim.words[:60]


class Changed(PaperFigures):
    """The paper's figures with some of them replaced."""

    def __init__(self, **figures):
        super().__init__()
        object.__setattr__(self, "changed", figures)

    def figure(self, column, method, numerics="reference", metric=None, averaged=False):
        key = f"{column}_{method}".replace("-", "_")
        if key in self.changed:
            return self.changed[key]
        return super().figure(column, method, numerics, metric, averaged)


@pytest.mark.parametrize("claim", TABLE_CLAIMS, ids=words)
def test_paper_meets_its_own_claims(claim):
    assert judge("the paper", claim.parts(PaperFigures()), claim.need).status == "confirmed"
    assert claim.verdict([PaperFigures()]).paper.startswith("The paper’s own figures meet it (")


@pytest.mark.parametrize("claim", EVERY_CLAIM, ids=words)
def test_nothing_measured_decides_nothing(claim, tmp_path):
    (found,) = claim.verdict([gather(tmp_path).full]).judgements
    assert (found.status, found.count, found.figures) == ("open", "not run", "")


def test_one_cell_that_fails_is_enough():
    worse = Changed(softsort_n5_hessian=Summary(60.0, 1.0, 10), softsort_n5_fisher=Summary(61.0, 1.0, 10))
    found = judge("here", SORTING_CLAIMS[0].parts(worse))
    assert (found.status, found.count) == ("not confirmed", "7 of 8")
    assert found.figures.startswith("No: SoftSort n=5 61.0 against 70.7. Yes: ")


def test_a_cell_that_lacks_seeds_says_so():
    few = Summary(90.0, 1.0, 2)
    found = judge("here", SORTING_CLAIMS[0].parts(Changed(softsort_n5_baseline=few)))
    assert (found.status, found.count) == ("open", "7 of 8, 1 open")
    assert found.figures.endswith("Open: SoftSort n=5 (2 of 3 seeds).")


def test_a_missing_variant_matters_only_where_it_could_change_the_answer():
    """The better of two is at least the one that was measured: seen in "more than double", which one cell decides."""
    few, weak = Summary(20.0, 1.0, 2), Summary(13.0, 1.0, 10)
    nobody = {f"{column}-{method}".replace("-", "_"): weak for column in EIGHT for method in ("hessian", "fisher")}
    assert judge("here", DOUBLED.parts(Changed(**nobody)), "any").status == "not confirmed"
    undecided = Changed(**{**nobody, "logistic_n10_hessian": few})
    assert judge("here", DOUBLED.parts(undecided), "any").status == "open"
    decided = Changed(**{**nobody, "logistic_n10_hessian": few, "logistic_n10_fisher": Summary(24.7, 1.0, 10)})
    found = judge("here", DOUBLED.parts(decided), "any")
    assert (found.status, found.count) == ("confirmed", "1 of 8")
    assert found.figures.startswith("Yes: Logistic network n=10 24.7 against 12.3. No: ")


@pytest.mark.parametrize(("gain", "status"), [(-2.0, "not confirmed"), (0.5, "not confirmed"), (2.0, "confirmed")])
def test_a_gain_is_in_one_direction_as_the_rule_says(gain, status):
    claim = next(one for one in SORTING_CLAIMS if one.words.startswith("For Cauchy networks"))
    base = PaperFigures().figure("cauchy-n10", "baseline")
    at = Changed(cauchy_n10_hessian=Summary(base.mean + gain, base.std, base.count))
    assert judge("here", claim.parts(at)).status == status
    assert "more than 1 above the baseline" in claim.rule


def test_parts():
    low, high, close = Summary(70.0, 1.0, 10), Summary(72.0, 1.0, 10), Summary(70.2, 1.0, 10)
    few = Summary(99.0, math.nan, 1)
    assert better("x", high, low).holds
    assert not better("x", high, low, by=2.0).holds
    assert significant("x", high, low).holds
    assert not significant("x", close, low).holds
    assert alike("x", close, low).holds
    assert not alike("x", low, high).holds
    assert reaches("x", low, Summary(70.9, 1.0, 10)).holds
    assert not reaches("x", low, Summary(71.1, 1.0, 10)).holds
    assert better("x", few, low).words == "x (1 of 3 seeds)"
    assert better("x", None, low).words == "x (not run)"
    assert better("x", [low, high], close).holds
    assert better("x", [high, few], low).holds  # it is ahead already
    assert better("x", [low, few], high).holds is None
    assert better("x", low, [high, None]).holds is False  # it is behind already
    assert better("x", high, [low, few]).holds is None


@pytest.mark.parametrize(
    ("parts", "need", "status"),
    [
        ([True, True], "all", "confirmed"),
        ([True, False], "all", "not confirmed"),
        ([None, False], "all", "not confirmed"),
        ([True, None], "all", "open"),
        ([], "all", "open"),
        ([False, True, None], "any", "confirmed"),
        ([False, None], "any", "open"),
        ([False, False], "any", "not confirmed"),
        ([], "any", "open"),
    ],
)
def test_the_whole_follows_from_its_parts(parts, need, status):
    assert judge("here", [Part(holds, "x") for holds in parts], need).status == status


def test_ablation_needs_all_thirteen_values(tmp_path):
    for cell in cells("ablation"):
        plain = cell.variant == "baseline"
        value = 70.0 if plain else 80.0 - (cell.algorithm == "neuralsort") * cell.config["damping"] / 500
        write_cell(tmp_path, cell, {"exact_match": 50.0, "element_wise": value}, steps=100_000)
    full = gather(tmp_path).full
    assert [claim.verdict([full]).judgements[0].status for claim in ABLATION_CLAIMS] == ["confirmed"] * 2
    for folder in tmp_path.glob("softsort-n5-fisher-1-*"):
        (folder / "result.json").unlink()
    fewer = gather(tmp_path).full
    assert [claim.verdict([fewer]).judgements[0].status for claim in ABLATION_CLAIMS] == ["open"] * 2


@pytest.mark.parametrize(
    ("figures", "state", "best"),
    [
        ({}, "not run", None),
        ({"baseline": (99.0, 2)}, "open", "baseline"),
        ({"baseline": (99.0, 2), "hessian": (83.9, 3)}, "open", "hessian"),
        ({"baseline": (50.0, 3), "fisher-auto": (83.93, 3)}, "reached", "fisher-auto"),
        (dict.fromkeys(SETTINGS_OF_GOAL, (83.92, 3)), "not reached", "baseline"),
        (dict.fromkeys(SETTINGS_OF_GOAL, (83.92, 3)) | {"hessian-auto": (90.0, 2)}, "open", "baseline"),
    ],
)
def test_a_column_reaches_the_goal_by_one_setting_and_misses_it_by_all(figures, state, best):
    ours = {
        name: Summary(figures[name][0], 1.0, figures[name][1]) if name in figures else None for name in SETTINGS_OF_GOAL
    }
    one = Standing("neuralsort-n5", "fisher", Summary(83.93, 0.62, 10), ours)
    assert one.state == state
    assert math.isnan(one.p) if best is None else 0 <= one.p <= 0.5  # of the one that is ahead
    assert (one.best[0] if one.best else None) == best


def test_averaged_weights_stand_apart_from_the_goal(tmp_path):
    """Where the runs reach the paper as trained and not with averaged weights, and the other way round."""
    for column, trained, averaged in (("neuralsort-n5", 90.0, 70.0), ("softsort-n5", 70.0, 90.0)):
        (cell,) = cells("table1", only=f"{column}-baseline-stable")
        write_cell(tmp_path, cell, {"exact_match": trained}, averaged={"exact_match": averaged}, steps=100_000)
    runs = gather(tmp_path).full
    assert [one.state for one in standings(runs)][:3] == ["reached", "open", "not run"]
    assert [one.state for one in standings(runs, averaged=True)][:3] == ["open", "reached", "not run"]
    assert [part.holds for part in GOAL.parts(runs)][:3] == [True, None, None]
    assert [part.holds for part in GOAL_AVERAGED.parts(runs)][:3] == [None, True, None]
    assert PaperFigures().figure("softsort-n5", "fisher", averaged=True) is None
    assert "The paper does not average weights" in GOAL_AVERAGED.rule


def test_averaged_weights_count_from_as_many_seeds(tmp_path):
    (cell,) = cells("table1", only="softsort-n5-fisher-stable")
    for seed in range(4):
        config = cell.make(seed=seed, steps=100_000, device="cpu")
        averaged = {"exact_match": 90.0} if seed < 2 else None
        write_run(tmp_path / str(seed), config, {"exact_match": 90.0}, averaged=averaged)
    runs = gather(tmp_path).full
    found = [standings(runs, averaged=averaged)[1] for averaged in (False, True)]
    assert [(one.best[1].count, one.state) for one in found] == [(4, "reached"), (2, "open")]
