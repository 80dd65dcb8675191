"""The rules that decide claims: they hold for the paper's own figures, and open questions stay open."""

import math

import pytest
from run_folders import write_cell, write_run

from newton_losses_bench.cells import cells
from newton_losses_bench.report._averaged import averages, how_often_above
from newton_losses_bench.report._averaged_section import averaged_section
from newton_losses_bench.report._blocks import Figure, Status
from newton_losses_bench.report._claims import ABLATION_CLAIMS, PATHS_CLAIMS, SORTING_CLAIMS
from newton_losses_bench.report._goal import SETTINGS, Standing, standings
from newton_losses_bench.report._measured import Measured, PaperFigures, Runs
from newton_losses_bench.report._questions import GOAL, GOAL_AVERAGED, QUESTIONS
from newton_losses_bench.report._rules import Part, alike, best, better, judge, reaches, significant
from newton_losses_bench.statistics import Summary
from newton_losses_bench.store import Store

TABLE_CLAIMS = (*SORTING_CLAIMS, *PATHS_CLAIMS)
EVERY_CLAIM = (*TABLE_CLAIMS, *ABLATION_CLAIMS, *QUESTIONS, GOAL, GOAL_AVERAGED)


def words(claim):
    return claim.words[:60]


class Changed(PaperFigures):
    """The paper's figures with some of them replaced."""

    def __init__(self, **figures):
        super().__init__()
        object.__setattr__(self, "changed", figures)

    def figure(self, column, method, numerics="reference", metric=None, *, averaged=False):
        key = f"{column}_{method}".replace("-", "_")
        if key in self.changed:
            return self.changed[key]
        return super().figure(column, method, numerics, metric, averaged=averaged)


@pytest.mark.parametrize("claim", TABLE_CLAIMS, ids=words)
def test_paper_meets_its_own_claims(claim):
    found = judge("the paper", claim.parts(PaperFigures()), claim.need)
    assert found.status is Status.CONFIRMED
    assert claim.verdict([]).own.startswith("The paper’s own figures meet it (")


@pytest.mark.parametrize("claim", EVERY_CLAIM, ids=words)
def test_nothing_measured_decides_nothing(claim, tmp_path):
    nothing = Runs(Measured(Store(tmp_path).records()), "here", 100_000, "mnist")
    verdict = claim.verdict([nothing])
    assert verdict.judgements[0].status is Status.OPEN
    assert verdict.judgements[0].figures == ""


def test_one_cell_that_fails_is_enough():
    worse = Changed(softsort_n5_hessian=Summary(60.0, 1.0, 10), softsort_n5_fisher=Summary(61.0, 1.0, 10))
    found = judge("here", SORTING_CLAIMS[0].parts(worse))
    assert found.status is Status.UNCONFIRMED
    assert found.figures.startswith("7 of 8. No: SoftSort n=5 61.0 against 70.7. Yes: ")


def test_one_cell_that_is_missing_keeps_it_open():
    for missing in (None, Summary(90.0, 1.0, 2)):
        found = judge("here", SORTING_CLAIMS[0].parts(Changed(softsort_n5_hessian=missing)))
        assert found.status is Status.OPEN
        assert found.figures.startswith("7 of 7, 1 more not measured")


def test_doubling_is_asked_of_any_cell():
    doubled = SORTING_CLAIMS[2]
    weak = {f"{name}_n{n}_{method}": Summary(13.0, 1.0, 10) for name in ("neuralsort", "softsort", "logistic", "cauchy")
            for n in (5, 10) for method in ("hessian", "fisher")}  # fmt: skip
    assert judge("here", doubled.parts(Changed(**weak)), "any").status is Status.UNCONFIRMED
    strong = {**weak, "logistic_n10_hessian": Summary(24.7, 1.0, 10)}
    found = judge("here", doubled.parts(Changed(**strong)), "any")
    assert found.status is Status.CONFIRMED
    assert found.figures == "1 of 8: logistic network n=10 24.7 against 12.3."


@pytest.mark.parametrize(
    ("gain", "status"), [(-2.0, Status.UNCONFIRMED), (0.5, Status.UNCONFIRMED), (2.0, Status.CONFIRMED)]
)
def test_a_gain_is_in_one_direction_as_the_rule_says(gain, status):
    claim = next(one for one in SORTING_CLAIMS if one.words.startswith("For Cauchy networks"))
    base = PaperFigures().figure("cauchy-n10", "baseline")
    at = Changed(cauchy_n10_hessian=Summary(base.mean + gain, base.std, base.count))
    assert judge("here", claim.parts(at)).status is status
    assert "more than 1 above the baseline" in claim.rule


def test_parts():
    low, high, close = Summary(70.0, 1.0, 10), Summary(72.0, 1.0, 10), Summary(70.2, 1.0, 10)
    assert better("x", high, low).holds
    assert not better("x", high, low, by=2.0).holds
    assert significant("x", high, low).holds
    assert not significant("x", close, low).holds
    assert alike("x", close, low).holds
    assert not alike("x", low, high).holds
    assert reaches("x", low, Summary(70.9, 1.0, 10)).holds
    assert not reaches("x", low, Summary(71.1, 1.0, 10)).holds
    assert better("x", Summary(99.0, math.nan, 1), low).holds is None
    assert better("x", None, low).words == "x has 0 of the 3 seeds needed"
    assert best(low, high) == high
    assert best(low, None) is None


@pytest.mark.parametrize(
    ("parts", "need", "status"),
    [
        ([True, True], "all", Status.CONFIRMED),
        ([True, False], "all", Status.UNCONFIRMED),
        ([None, False], "all", Status.UNCONFIRMED),
        ([True, None], "all", Status.OPEN),
        ([], "all", Status.OPEN),
        ([False, True, None], "any", Status.CONFIRMED),
        ([False, None], "any", Status.OPEN),
        ([False, False], "any", Status.UNCONFIRMED),
        ([], "any", Status.OPEN),
    ],
)
def test_the_whole_follows_from_its_parts(parts, need, status):
    assert judge("here", [Part(holds, "x") for holds in parts], need).status is status


def test_ablation_needs_all_thirteen_values(tmp_path):
    for cell in cells("ablation"):
        value = (
            70.0
            if cell.variant == "baseline"
            else 80.0 - (cell.algorithm == "neuralsort") * cell.config["damping"] / 500
        )
        write_cell(tmp_path, cell, {"exact_match": 50.0, "element_wise": value}, steps=100_000)
    runs = Runs(Measured(Store(tmp_path).records()), "here", 100_000, "mnist")
    robust, sensitive = (claim.verdict([runs]).judgements[0] for claim in ABLATION_CLAIMS)
    assert robust.status is Status.CONFIRMED
    assert sensitive.status is Status.CONFIRMED
    for folder in tmp_path.glob("softsort-n5-fisher-1-*"):
        (folder / "result.json").unlink()
    fewer = Runs(Measured(Store(tmp_path).records()), "here", 100_000, "mnist")
    assert [claim.verdict([fewer]).judgements[0].status for claim in ABLATION_CLAIMS] == [Status.OPEN, Status.OPEN]


def test_the_goal_is_measured_against_the_papers_best(tmp_path):
    runs = Runs(Measured(Store(tmp_path).records()), "here", 100_000, "mnist")
    part = GOAL.parts(runs)[0]
    assert part.holds is None
    for cell in cells("table1", only="neuralsort-n5-*-stable"):
        write_cell(tmp_path, cell, {"exact_match": 84.5, "element_wise": 93.0}, steps=100_000)
    part = GOAL.parts(Runs(Measured(Store(tmp_path).records()), "here", 100_000, "mnist"))[0]
    assert part.holds
    assert part.words.endswith("against 83.9")


@pytest.mark.parametrize(
    ("figures", "holds", "state", "best"),
    [
        ({}, None, "not run", None),
        ({"baseline": (99.0, 2)}, None, "open", "baseline"),
        ({"baseline": (99.0, 2), "hessian": (83.9, 3)}, None, "open", "hessian"),
        ({"baseline": (50.0, 3), "fisher-auto": (83.93, 3)}, True, "reached", "fisher-auto"),
        (dict.fromkeys(SETTINGS, (83.92, 3)), False, "not reached", "baseline"),
        (dict.fromkeys(SETTINGS, (83.92, 3)) | {"hessian-auto": (90.0, 2)}, None, "open", "baseline"),
    ],
)
def test_a_column_reaches_the_goal_by_one_setting_and_misses_it_by_all(figures, holds, state, best):
    ours = {name: Summary(figures[name][0], 1.0, figures[name][1]) if name in figures else None for name in SETTINGS}
    one = Standing("neuralsort-n5", "fisher", Summary(83.93, 0.62, 10), ours)
    assert (one.part.holds, one.state) == (holds, state)
    assert math.isnan(one.p) if best is None else 0 <= one.p <= 0.5  # of the one that is ahead
    assert (one.best[0] if one.best else None) == best


def full_runs(results):
    return Runs(Measured(Store(results).records()), "here", 100_000, "mnist")


def test_averaged_weights_stand_apart_from_the_goal(tmp_path):
    """Where the runs reach the paper as trained and not with averaged weights, and the other way round."""
    for column, trained, averaged in (("neuralsort-n5", 90.0, 70.0), ("softsort-n5", 70.0, 90.0)):
        (cell,) = cells("table1", only=f"{column}-baseline-stable")
        write_cell(tmp_path, cell, {"exact_match": trained}, averaged={"exact_match": averaged}, steps=100_000)
    runs = full_runs(tmp_path)
    assert [one.state for one in standings(runs)][:3] == ["reached", "open", "not run"]
    assert [one.state for one in standings(runs, averaged=True)][:3] == ["open", "reached", "not run"]
    assert [part.holds for part in GOAL.parts(runs)][:3] == [True, None, None]
    assert [part.holds for part in GOAL_AVERAGED.parts(runs)][:3] == [None, True, None]
    assert runs.figure("softsort-n5", "baseline", "stable").mean == pytest.approx(70, abs=0.5)
    assert runs.figure("softsort-n5", "baseline", "stable", averaged=True).mean == pytest.approx(90, abs=0.5)
    assert runs.figure("softsort-n5", "baseline", "stable", "element_wise", averaged=True) is None


def test_the_claim_about_averaging_says_what_it_is_not():
    assert PaperFigures().figure("softsort-n5", "fisher", averaged=True) is None
    assert "averaged" not in GOAL.words + GOAL.rule
    assert GOAL_AVERAGED.words.startswith("With averaged weights ")
    assert "The paper does not average weights." in GOAL_AVERAGED.rule
    assert "can be taken of any run, with the plain loss as well" in GOAL_AVERAGED.rule
    assert "no comparison of methods" in GOAL_AVERAGED.rule


def test_averaged_weights_count_from_as_many_seeds(tmp_path):
    (cell,) = cells("table1", only="softsort-n5-fisher-stable")
    for seed in range(4):
        config = cell.make(seed=seed, steps=100_000, device="cpu")
        averaged = {"exact_match": 90.0} if seed < 2 else None
        write_run(tmp_path / str(seed), config, {"exact_match": 90.0}, averaged=averaged)
    runs = full_runs(tmp_path)
    assert [(one[1].best[1].count, one[1].state) for one in (standings(runs), standings(runs, averaged=True))] == [
        (4, "reached"),
        (2, "open"),
    ]


def test_the_gain_of_averaging_is_that_of_the_same_seeds(tmp_path):
    (plain,) = cells("table1", only="softsort-n5-baseline-stable")
    (fisher,) = cells("table1", only="softsort-n5-fisher-stable")
    figures = [(80.0, 82.0), (70.0, 71.0), (10.0, None)]  # the last seed has no averaged figure
    for cell, sign in ((plain, 1), (fisher, -1)):
        for seed, (trained, averaged) in enumerate(figures):
            config = cell.make(seed=seed, steps=100_000, device="cpu")
            means = averaged and {"exact_match": trained + sign * (averaged - trained)}
            write_run(tmp_path / f"{cell.key}{seed}", config, {"exact_match": trained}, averaged=means)
    first, second = several = averages(full_runs(tmp_path))
    assert (first.column, first.method, second.method) == ("softsort-n5", "baseline", "fisher")
    assert (first.trained.mean, first.trained.count, first.averaged.mean) == (75.0, 2, 76.5)
    assert first.gain == Summary(1.5, pytest.approx(0.5**0.5), 2)
    assert second.gain.mean == -1.5
    assert (
        how_often_above(several)
        == "above zero in 1 of 1 settings with the plain loss and in 0 of 1 settings with curvature"
    )
    told = "above zero in 0 of 1 settings with curvature; with the plain loss it has not been measured"
    assert how_often_above([second]) == told
    assert averages(Runs(Measured(Store(tmp_path).records()), "here", 10_000, "mnist")) == []


def test_curves_of_averaged_weights_are_of_the_seeds_that_have_them(tmp_path):
    (cell,) = cells("table1", only="softsort-n5-fisher-stable")
    for seed, (trained, averaged) in enumerate([(80.0, 82.0), (70.0, 71.0), (10.0, None)]):
        config = cell.make(seed=seed, steps=100_000, device="cpu")
        means = averaged and {"exact_match": averaged}
        write_run(tmp_path / str(seed), config, {"exact_match": trained}, averaged=means)
    (figure,) = (block for block in averaged_section(full_runs(tmp_path)) if isinstance(block, Figure))
    (panel,) = figure.panels
    assert panel.words == "as trained ends at 75.0; averaged ends at 76.5; the paper’s best ends at 84.0"
    assert panel.title == "SoftSort n=5, Fisher"
    for evaluations in tmp_path.glob("*/evaluations.jsonl"):
        evaluations.unlink()
    assert not any(isinstance(block, Figure) for block in averaged_section(full_runs(tmp_path)))
