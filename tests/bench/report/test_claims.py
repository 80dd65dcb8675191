"""The rules that decide claims: they hold for the paper's own figures, and open questions stay open."""

import json
import math

import pytest
from run_folders import write_cell, write_run

from newton_losses_bench.cells import cells
from newton_losses_bench.report import gather
from newton_losses_bench.report.claims import (
    Part,
    alike,
    better,
    better_by,
    compare,
    doubled,
    judge,
    reaches,
    significant,
)
from newton_losses_bench.report.collect import PaperFigures, every_cell
from newton_losses_bench.report.paper_claims import (
    EIGHT,
    GOAL,
    GOAL_AVERAGED,
    PATHS_CLAIMS,
    QUESTIONS,
    SORTING_CLAIMS,
    UNTUNED_PATHS,
    UNTUNED_SORTING,
    verdicts,
)
from newton_losses_bench.statistics import Summary

ABLATION_CLAIMS = SORTING_CLAIMS[-2:]
TABLE_CLAIMS = (*SORTING_CLAIMS[:-2], *PATHS_CLAIMS)
EVERY_CLAIM = (*SORTING_CLAIMS, *PATHS_CLAIMS, *QUESTIONS, UNTUNED_SORTING, UNTUNED_PATHS, GOAL, GOAL_AVERAGED)
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
    few, weak = Summary(20.0, 1.0, 2), Summary(24.5, 1.0, 10)
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
    assert not better_by(2.0)(high, low)
    assert better_by(1.9)(high, low)
    assert [doubled(Summary(mean, 1.0, 10), low) for mean in (139.9, 140.1)] == [False, True]
    assert significant(high, low)
    assert not significant(close, low)
    assert alike(close, low)
    assert not alike(low, high)
    assert reaches(low, Summary(70.9, 1.0, 10))
    assert not reaches(low, Summary(71.1, 1.0, 10))
    assert compare("x", [few], [low], better).words == "x (1 of 3 seeds)"
    assert compare("x", [None], [low], better).words == "x (not run)"
    assert compare("x", [low, high], [close], better).holds
    assert compare("x", [high, few], [low], better).holds  # it is ahead already
    assert compare("x", [low, few], [high], better).holds is None
    assert compare("x", [low], [high, None], better).holds is False  # it is behind already
    assert compare("x", [high], [low, few], better).holds is None


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


class Ours(PaperFigures):
    """The same figures in log space for every column of table 1, by method."""

    def __init__(self, **figures):
        super().__init__()
        object.__setattr__(self, "ours", {name.replace("_", "-"): figure for name, figure in figures.items()})

    def figure(self, column, method, numerics="reference", metric=None, averaged=False):
        return Summary(*self.ours[method][:1], 1.0, self.ours[method][1]) if method in self.ours else None


SIX = ("baseline", "hessian", "fisher", "sample_normalized", "fisher_normalized", "hessian_normalized")


@pytest.mark.parametrize(
    ("figures", "holds"),
    [
        ({}, None),
        ({"baseline": (99.0, 2)}, None),
        ({"baseline": (99.0, 2), "hessian": (83.9, 3)}, None),
        ({"baseline": (50.0, 3), "fisher_normalized": (83.93, 3)}, True),
        (dict.fromkeys(SIX, (83.92, 3)), False),
        (dict.fromkeys(SIX, (83.92, 3)) | {"hessian_normalized": (90.0, 2)}, None),
    ],
)
def test_a_column_reaches_the_goal_by_one_setting_and_misses_it_by_all(figures, holds):
    first = GOAL.parts(Ours(**figures))[0]
    assert first.words.startswith("NeuralSort n=5")
    assert first.holds is holds  # the paper's best is 83.93


def test_averaged_weights_stand_apart_from_the_goal(tmp_path):
    """Where the runs reach the paper as trained and not with averaged weights, and the other way round."""
    for column, trained, averaged in (("neuralsort-n5", 90.0, 70.0), ("softsort-n5", 70.0, 90.0)):
        cell = every_cell()[f"{column}-baseline-stable"]
        write_cell(tmp_path, cell, {"exact_match": trained}, averaged={"exact_match": averaged}, steps=100_000)
    for seed in range(4):  # enough seeds as trained, two of them with averaged weights
        config = every_cell()["logistic-n5-fisher-stable"].make(seed=seed, steps=100_000, device="cpu")
        averaged = {"exact_match": 90.0} if seed < 2 else None
        write_run(tmp_path / str(seed), config, {"exact_match": 90.0}, averaged=averaged)
    runs = gather(tmp_path).full
    assert [part.holds for part in GOAL.parts(runs)][:4] == [True, None, True, None]
    assert [part.holds for part in GOAL_AVERAGED.parts(runs)][:4] == [None, True, None, None]
    assert PaperFigures().figure("softsort-n5", "fisher", averaged=True) is None
    assert "The paper does not average weights" in GOAL_AVERAGED.rule


def test_what_is_not_tuned_is_compared_with_the_better_of_the_two_others(tmp_path):
    for method, value in (("fisher-normalized", 50.0), ("baseline", 60.0), ("fisher", 40.0)):
        write_cell(tmp_path, every_cell()[f"cauchy-n10-{method}-stable"], {"exact_match": value}, steps=10_000)
    parts = {part.words: part.holds for part in UNTUNED_SORTING.parts(gather(tmp_path).short)}
    assert len(parts) == 16
    (words,) = (words for words, holds in parts.items() if holds is False)
    name, _, level = words.partition(" against ")
    assert name.startswith("Cauchy network n=10, Fisher, per batch ")
    assert float(level) == pytest.approx(60, abs=0.5)


def others(found, start):
    """The judgements of the one verdict that starts with these words."""
    (verdict,) = (one for several in verdicts(found).values() for one in several if one.words.startswith(start))
    return [(one.setting, one.status, one.count) for one in verdict.judgements]


def test_times_are_compared_on_one_device_alone(tmp_path):
    def timed(key, milliseconds, seed=0, device="Made-up GPU"):
        config = every_cell()[f"{key}-timed"].make(seed=seed, device="cpu")
        folder = write_run(tmp_path / f"{key}-{seed}-{device}", config, {"exact_match": 1.0}, milliseconds=milliseconds)
        stored = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**stored, "environment": {"gpu": device}}))

    timed("softsort-n5-baseline", 2.0, device="a slow one")
    timed("softsort-n5-fisher", 1.0)
    start = "A step with the Fisher"
    assert others(gather(tmp_path), start) == [("timed runs", "open", "not run")]
    timed("softsort-n5-baseline", 1.0)
    assert others(gather(tmp_path), start)[0][2].startswith("1 of ")
    timed("logistic-n5-baseline", 1.0)
    timed("logistic-n5-fisher", 2.0)
    assert others(gather(tmp_path), start)[0][1] == "not confirmed"
    timed("logistic-n5-fisher", math.nan, seed=1)  # no time
    timed("logistic-n5-baseline", 0.0, seed=1)
    assert others(gather(tmp_path), start)[0][1] == "not confirmed"


def test_losses_of_convex_layers_are_compared_seed_by_seed(tmp_path):
    for seed, losses in enumerate([(0.0, 0.5), (1.0, 0.5), (1.0, 0.5), (1.0, 0.5), (1.0, 0.5)]):
        for cell, loss in zip(cells("cvxpy"), losses, strict=True):
            write_run(tmp_path / f"{cell.key}-{seed}", cell.make(seed=seed), {"loss": loss})
            if seed < 2:
                config = cell.make(seed=seed, batch_size=60, algorithm="relu-exact")
                write_run(tmp_path / f"{cell.key}-{seed}-exact", config, {"loss": loss})
    assert others(gather(tmp_path), "With convex layers") == [
        ("cvxpylayers, 300 samples", "not confirmed", "4 of 5"),
        ("known solution, 60 samples", "not confirmed", "1 of 5, 3 open"),
    ]
