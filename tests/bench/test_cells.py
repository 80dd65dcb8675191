"""The presets: every cell of the paper is there, with the paper's settings, and runs."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from newton_losses import ArgumentError
from newton_losses_bench.cells import TABLES, cells, matches
from newton_losses_bench.config import identity, run_name
from newton_losses_bench.groups import Protocol, group
from newton_losses_bench.store import RunRecord


def record(config, seed=0, figure=50.0, **settings):
    """A finished run that nobody ran."""
    configuration = replace(config, seed=seed, **settings).resolved().to_dict()
    test = {"exact_match": figure}
    end = {"step": 1, "test": test}
    return RunRecord(
        Path(run_name(configuration)), configuration, {}, test, 1, 1.0, 1.0, [end], identity(configuration)
    )


def test_the_tables_have_all_their_cells():
    papers = {
        table: [cell for cell in cells(table) if cell.paper or cell.paper_seeds or table == "ablation"]
        for table in TABLES
    }
    # Three variants of eight columns, and two of n = 15; two variants of four; three of six and two of three.
    assert [len(papers[table]) for table in ("table1", "table2", "table3")] == [26, 8, 24]
    assert len(papers["ablation"]) == 2 * (1 + 2 * 13)
    assert len(papers["runtimes"]) == 8 * 3 + 4 * 2 + 6 * 3 + 3 * 2
    assert sum(len(cell.paper_seeds) for cell in papers["cvxpy"]) == 10


def test_sorting_has_columns_that_the_paper_does_not_have():
    kinds = Counter((cell.numerics, cell.variant, cell.control) for cell in cells("table1"))
    assert kinds == {
        **{(numerics, variant, None): 9 for numerics in ("reference", "stable") for variant in
           ("baseline", "hessian", "fisher")},
        ("reference", "baseline", "clip"): 9,
        ("reference", "baseline", "energy"): 9,
    }  # fmt: skip
    for cell in cells("table1"):
        assert (cell.paper is None) == (cell.numerics == "stable" or cell.control is not None
                                        or cell.key == "cauchy-n15-hessian")  # fmt: skip


def test_keys_are_names():
    for table in TABLES:
        keys = [cell.key for cell in cells(table)]
        assert len(set(keys)) == len(keys)


def test_the_settings_are_those_that_the_command_takes_by_itself():
    """What the presets say and the defaults of `train` come from the same appendix, typed twice."""
    for table in ("table1", "table2", "table3", "cvxpy"):
        for cell in cells(table):
            config = cell.make(device="cpu")
            given = ("algorithm", "curvature", "n", "loop", "norm", "num_samples", "numerics", "clip_norm")
            bare = {name: cell.config[name] for name in given if name in cell.config}
            assert type(config)(device="cpu", **bare).resolved() == config, cell.key


def test_the_ablation_spans_six_orders_of_magnitude():
    found = [cell.config["damping"] for cell in cells("ablation", only="softsort-n5-fisher-*")]
    assert len(found) == 13
    assert found == [pytest.approx(10 ** (k / 2), rel=2e-3) for k in range(-6, 7)]


def test_controls_change_one_thing():
    baseline, clipped, normalised = (
        cells("table1", only=f"softsort-n10-{arm}")[0].make(device="cpu") for arm in ("baseline", "clip", "energy")
    )
    assert replace(clipped, clip_norm=None) == baseline
    assert replace(normalised, curvature="none", damping=None) == baseline
    assert normalised.damping == 100.0


def test_selecting():
    assert {cell.key for cell in cells("table1", only="softsort-n5", numerics="reference", controls=False)} == {
        "softsort-n5-baseline", "softsort-n5-hessian", "softsort-n5-fisher",
    }  # fmt: skip
    assert len(cells("table3", numerics="stable")) == 24  # paths have no choice of numerics
    assert matches("cauchy-n15-fisher", "softsort, cauchy-n15")
    with pytest.raises(ArgumentError, match="reproduce list table1"):
        cells("table1", only="softsrot")
    with pytest.raises(ArgumentError, match="did you mean table1"):
        cells("tabel1")
    with pytest.raises(ArgumentError, match="did you mean batch_size"):
        cells("table1")[0].make(batchsize=3)


def test_runs_find_their_cell_and_seeds_their_group():
    cell = cells("table1", only="softsort-n5-fisher")[0]
    config = cell.make(device="cpu")
    runs = [record(config, seed, 80.0 + seed) for seed in (2, 0, 1)]
    others = [record(cells("table1", only="softsort-n5-energy")[0].make(device="cpu"))]
    (found,) = group([cell], [*runs, *others])
    assert [run.seed for run in found.records] == [0, 1, 2]
    assert found.protocol.is_full
    assert (found.summary("exact_match").mean, found.summary("no_such_figure")) == (81.0, None)


def test_averaged_figures_are_summarised_over_the_seeds_that_have_them():
    cell = cells("table1", only="softsort-n5-fisher")[0]
    runs = [record(cell.make(device="cpu"), seed, 80.0 + seed) for seed in range(3)]
    runs = [replace(runs[0], averaged={"exact_match": 90.0}), replace(runs[1], averaged={"exact_match": 92.0}), runs[2]]
    (found,) = group([cell], runs)
    assert list(found.by_seed("exact_match", averaged=True).values()) == [90.0, 92.0]
    assert (found.summary("exact_match", averaged=True).mean, found.summary("exact_match").mean) == (91.0, 81.0)
    assert found.summary("element_wise", averaged=True) is None


def test_a_run_with_averages_is_a_seed_like_the_others():
    cell = cells("table1", only="softsort-n5-fisher")[0]
    config = cell.make(device="cpu")
    (found,) = group([cell], [record(config, 0), record(config, 1, average=True)])
    assert [one.seed for one in found.records] == [0, 1]


def test_lengths_data_and_precision_are_kept_apart():
    cell = cells("table1", only="softsort-n5-fisher")[0]
    config = cell.make(device="cpu")
    changes = [{}, {"steps": 10_000}, {"steps": 10_000, "precision": "bf16"}, {"data": "digits"}, {"batch_size": 50}]
    found = group([cell], [record(config, **change) for change in changes])
    assert len(found) == 5
    assert [one.protocol.is_full for one in found].count(True) == 2
    assert str(found[-1].protocol).startswith("10,000 steps, mnist")
    assert found[-1].protocol != Protocol.of(config.to_dict())


def test_a_timed_run_is_no_result_and_a_result_no_timed_run():
    timed, full = cells("runtimes", only="softsort-n5-fisher")[0], cells("table1", only="softsort-n5-fisher")[0]
    long, short = record(full.make(device="cpu")), record(timed.make(device="cpu"))
    assert [one.records for one in group([timed], [long, short])] == [(short,)]
    assert [one.protocol.is_full for one in group([full], [long, short])] == [True, False]


@pytest.mark.parametrize(
    ("table", "settings", "words"),
    [
        ("table1", {}, "100,000 steps, mnist, float32"),
        ("table1", {"digits": 1, "test_sets": 50}, "100,000 steps, mnist, float32, digits 1, test sets 50"),
        ("table2", {"data": "warcraft"}, "50 epochs, warcraft, float32"),
        ("table2", {"size": 4, "epochs": 1}, "1 epoch, terrain, float32, size 4"),
        ("runtimes", {}, "2,000 steps, mnist, float32"),
        ("runtimes", {"batch_size": 50}, "2,000 steps, mnist, float32, batch size 50"),
        ("cvxpy", {}, "50 steps, random, float32"),
    ],
)
def test_a_protocol_says_what_is_not_as_usual(table, settings, words):
    """Figures of other digits, maps or sets are no figures of the paper's, at whatever length."""
    assert str(Protocol.of(cells(table)[0].make(**settings, device="cpu").to_dict())) == words
