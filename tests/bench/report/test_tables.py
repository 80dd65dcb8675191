"""The report's tables: their figures are those of the runs, each where it belongs, and missing runs are marked."""

from dataclasses import replace

import pytest
from run_folders import results_and_page, row_of, tables_of, write_cell, write_run

from newton_losses_bench.cells import cells
from newton_losses_bench.config import SortingConfig
from newton_losses_bench.report import compose, gather
from newton_losses_bench.report.collect import every_cell

SHORT, FULL = {"steps": 10_000, "precision": "bf16"}, {"steps": 100_000, "precision": "bf16"}
MAPS = {"data": "terrain", "epochs": 50, "precision": "bf16"}
NAMES = ("exact_match", "element_wise", "perfect_match")


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    return tables_of(results_and_page(tmp_path_factory)[0])


def write(results, cell, value, seeds=3, averaged=None, **settings):
    figures = dict.fromkeys(NAMES[:2] if cell.task == "sorting" else NAMES[2:], value)
    write_cell(results, cell, figures, seeds, averaged and dict.fromkeys(figures, averaged), **settings)


def write_seeds(results, cell, values, **settings):
    for seed, value in values.items():
        config = cell.make(seed=seed, device="cpu", **settings)
        write_run(results / f"{cell.key}-{seed}", config, dict.fromkeys(NAMES, value))


def texts(row):
    return [cell.text for cell in row]


def test_a_cell_is_that_of_its_runs(tmp_path):
    write_seeds(tmp_path, every_cell()["softsort-n5-fisher"], {0: 80.0, 1: 81.0, 2: 85.0}, steps=10_000)
    row = row_of(tables_of(tmp_path)["table1-figures"], "SoftSort n=5", "Fisher")
    assert texts(row) == ["84.0", "not run", "not run", "82.0", "not run"]
    assert [cell.detail for cell in row] == ["± 0.6 (10)", "", "", "± 2.6 (3)", ""]
    assert row[3].value == pytest.approx(82.0)


def test_lengths_and_numerics_are_kept_apart(made_up):
    row = row_of(made_up["table1-figures"], "SoftSort n=5", "plain")
    assert [cell.value for cell in row] == pytest.approx([70.7, 70.7, 75.7, 60.7, 65.7], abs=0.5)
    controls = [row_of(made_up["table1-figures"], "SoftSort n=5", name) for name in ("clipped", "energy")]
    assert [row[0].text for row in controls] == ["–"] * 2
    assert [row[3].value for row in controls] == pytest.approx([65.7, 65.7], abs=0.5)


def test_marks_follow_the_test_against_our_own_baseline(made_up):
    table = made_up["table1-figures"]
    assert [cell.kind for cell in row_of(table, "NeuralSort n=5", "Hessian")[:2]] == ["significant"] * 2
    assert row_of(table, "NeuralSort n=5", "plain")[1].kind == ""
    assert row_of(table, "Cauchy network n=5", "Hessian")[0].kind == ""


def test_maps_that_look_like_the_papers_are_never_called_its_maps(made_up):
    table = made_up["table3"]
    assert table.heads[4:6] == ("ours, Warcraft", "ours, look-alike")
    assert "not the benchmark" in table.caption
    row = row_of(table, "Fenchel-Young, 10 samples", "Hessian")
    assert row[2].text == "not run"
    assert row[3].value == pytest.approx(71.13, abs=0.5)
    assert row[4].value == pytest.approx(0.74, abs=1.0)  # only gains can be compared


def test_other_settings_are_in_no_cell(tmp_path):
    """Another batch, evaluation, data set, λ, spectrum or clipping is in no table or verdict, and counted apart."""
    cell = every_cell()["cauchy-n5-hessian"]
    write(tmp_path, cell, 20.0, **SHORT)
    before = {name: table.rows for name, table in tables_of(tmp_path).items() if name != "folders"}
    changes = (
        {"batch_size": 50},
        {"test_sets": 100},
        {"data": "digits"},
        {"damping": 10.0},
        {"spectrum": "absolute"},
        {"steepness": 20.0},
        {"clip_norm": 1.0},
        {"steps": 15_000},
    )
    for number, changed in enumerate(changes):
        write(tmp_path / str(number), cell, 90.0, **{**SHORT, **changed})
    assert {name: table.rows for name, table in tables_of(tmp_path).items() if name != "folders"} == before
    # Those of other batches, sets, data and lengths are the cell's, under a protocol that no table shows.
    assert compose(gather(tmp_path)).state.startswith("27 finished runs, 15 of them in a cell")


def test_the_answer_says_which_of_the_papers_figures_are_reproduced(tmp_path):
    for seeds, (name, value) in enumerate({"baseline": 69.0, "hessian": 84.5, "fisher": 80.0}.items(), start=1):
        write(tmp_path, every_cell()[f"softsort-n5-{name}"], value, seeds, **FULL)
        write(tmp_path, every_cell()[f"cauchy-n5-{name}-stable"], 10.0, **FULL)  # the paper has no such figure
    write(tmp_path, every_cell()["cauchy-n5-baseline"], 10.0, **SHORT)
    report = compose(gather(tmp_path))
    table1 = next(section for section in report.sections if section.anchor == "table1")
    for text in (report.repeats, table1.answer):
        assert "2 of 3 figures in table 1 lie where a repetition" in text
        assert text.endswith("would (1 to 3 seeds each).")
    assert table1.text.endswith("These do not: SoftSort n=5, Fisher (80.0).")
    assert [label for label, *_ in report.headline.legend][1] == "ours, 100,000 steps"


def test_precisions_are_not_mixed(tmp_path):
    """The table shows the protocol that most runs have."""
    plain, fisher = (every_cell()[f"softsort-n5-{name}"] for name in ("baseline", "fisher"))
    write(tmp_path / "32", plain, 10.0, 4, steps=10_000, precision="float32")
    for cell in (plain, fisher):
        write(tmp_path / "16", cell, 20.0, **SHORT)
    assert row_of(tables_of(tmp_path)["table1-figures"], "SoftSort n=5", "plain")[3].detail.endswith("(3)")


def test_evaluating_more_often_changes_nothing(tmp_path):
    write(tmp_path, cells("table1", only="softsort-n5-baseline")[0], 50.0, **SHORT, eval_every=500)
    assert gather(tmp_path).short.figure("softsort-n5", "baseline").count == 3


def test_plain_beside_newton_is_paired_by_seed(tmp_path):
    plain, newton = (every_cell()[f"softsort-n10-{name}-stable"] for name in ("baseline", "hessian-normalized"))
    write_seeds(tmp_path, plain, {0: 50.0, 1: 60.0, 2: 40.0}, **FULL)
    # Ahead by little on every seed, which only the pairs tell; the fourth seed has no partner.
    write_seeds(tmp_path, newton, {0: 51.0, 1: 61.1, 2: 41.2, 3: 0.0}, **FULL)
    tables = tables_of(tmp_path)
    row = row_of(tables["controls-mnist-100000"], "SoftSort n=10")
    assert (row[0].text, row[0].detail) == ("ahead", "p 0.00")
    assert (row[-1].text, row[-1].detail) == ("55.1", "± 1.1 (10)")  # the paper's best
    assert "controls-mnist-100000-averaged" not in tables


def test_averaged_weights_have_a_table_of_their_own(tmp_path):
    plain, newton = (every_cell()[f"softsort-n10-{name}-stable"] for name in ("baseline", "hessian-normalized"))
    write(tmp_path, plain, 50.0, averaged=55.0, **FULL)
    write(tmp_path, newton, 50.0, averaged=70.0, **FULL)
    tables = tables_of(tmp_path)
    assert row_of(tables["controls-mnist-100000"], "SoftSort n=10")[0].text == "within noise"
    assert row_of(tables["controls-mnist-100000-averaged"], "SoftSort n=10")[0].text == "ahead"


def test_n15_of_a_loss_that_the_paper_has_not_tried_is_among_the_controls(tmp_path):
    """Its runs are shown beside no figure of the paper, and no cell of table 1 is added."""
    config = SortingConfig(algorithm="neuralsort", n=15, device="cpu").resolved()  # as `sweep sorting --n 15` makes it
    for seed in range(3):
        write_run(tmp_path / str(seed), replace(config, seed=seed), {"exact_match": 40.0, "element_wise": 80.0})
    found = tables_of(tmp_path)
    row = row_of(found["controls-mnist-100000"], "NeuralSort n=15")
    assert [row[1].text, row[-1].text] == ["40.0", "–"]
    assert "NeuralSort n=15" not in {line[0].text for line in found["table1-figures"].rows}


def test_one_seed_is_no_test(tmp_path):
    for name in ("baseline", "fisher-normalized"):
        write(tmp_path, every_cell()[f"softsort-n10-{name}-stable"], 40.0, 1, **FULL)
    row = row_of(tables_of(tmp_path)["controls-mnist-100000"], "SoftSort n=10")
    assert (row[0].text, row[0].detail) == ("one seed", "p –")


def test_two_seeds_decide_nothing_although_their_leads_agree(tmp_path):
    for name, figure in (("baseline", 50.0), ("fisher-normalized:1000", 50.0), ("sample-normalized", 60.0)):
        write_seeds(tmp_path, every_cell()[f"smoothed-loss-10-{name}"], {0: figure, 1: figure + 2}, **MAPS)
    (row,) = tables_of(tmp_path)["controls-terrain-50"].rows
    assert (row[1].text, row[1].detail) == ("within noise", "p 0.00, 1.00, 0.00")


@pytest.mark.parametrize(
    ("normal", "sample", "fisher", "verdict"),
    [
        ([60, 61, 62.1], [60, 61.1, 62], [61, 60, 62], "ahead: normalising helps"),
        ([50, 52, 51], [60, 61, 62.1], [60, 61.1, 62], "ahead: soft clip helps"),
        ([50, 52, 51], [51, 50, 52], [60, 61, 62.1], "ahead: curvature helps"),
        ([60, 61, 62.1], [60, 61.1, 62], [40, 41, 42.1], "behind: normalising helps, curvature harms"),
        ([60, 61, 62.1], None, [70, 71, 72.1], "ahead: normalising helps, curvature helps"),
        ([50, 52, 51], [52, 50, 51], [51, 50, 52], "within noise"),
    ],
)
def test_controls_tell_the_size_of_the_step_from_a_clip_and_a_direction(normal, sample, fisher, verdict, tmp_path):
    runs = {
        "baseline": [50, 51, 52],
        "fisher-normalized:1000": normal,
        "sample-normalized": sample,
        "fisher-normalized": fisher,
    }
    for name, values in runs.items():
        figures = {seed: float(value) for seed, value in enumerate(values or ())}
        write_seeds(tmp_path, every_cell()[f"smoothed-loss-10-{name}"], figures, **MAPS)
    table = tables_of(tmp_path)["controls-terrain-50"]
    (row,) = table.rows
    cells = dict(zip(table.heads, row, strict=True))
    assert (cells["loss"].text, cells["clipped"].text) == ("Smoothed loss, 10 samples", "not run")
    assert cells["verdict"].text == verdict
    means = [cells[name].value for name in ("plain", "normalised only", "sample, per batch", "Fisher, per batch")]
    assert means == [values and sum(values) / 3 for values in runs.values()]


def test_the_default_is_compared_with_plain_and_with_the_batch_rule(tmp_path):
    runs = {"baseline": [50, 51, 52], "fisher-normalized": [62, 61, 63], "fisher-running": [60, 61.1, 62]}
    for name, values in runs.items():
        figures = {seed: float(value) for seed, value in enumerate(values)}
        write_seeds(tmp_path, every_cell()[f"smoothed-loss-10-{name}"], figures, **MAPS)
    table = tables_of(tmp_path)["controls-terrain-50"]
    cell = dict(zip(table.heads, table.rows[0], strict=True))["Fisher, running"]
    # scipy.stats.ttest_1samp says the same
    assert cell.detail == "± 1.0 (3); +10.0 to plain, p 0.000; −1.0 to per batch, p 0.252"


def test_the_default_is_what_a_user_of_the_library_gets(tmp_path):
    makes = {key: every_cell()[key].make(device="cpu") for key in every_cell() if key.endswith("-fisher-library")}
    assert makes["bellman-ford-for-l1-fisher-library"] == every_cell()["bellman-ford-for-l1-fisher-running"].make(
        device="cpu"
    )
    assert makes["smoothed-loss-10-fisher-library"].leave_one_out
    assert not makes["fenchel-young-10-fisher-library"].leave_one_out  # it takes part in the Hessian alone
    runs = {"baseline": 50.0, "fisher-running": 55.0, "plain-library": 58.0, "fisher-library": 61.0}
    for name, value in runs.items():
        write_seeds(tmp_path, every_cell()[f"smoothed-loss-10-{name}"], {0: value}, **MAPS)
    for name, value in {"baseline-stable": 70.0, "fisher-running-stable": 60.0, "fisher-library-stable": 71.0}.items():
        write_seeds(tmp_path, every_cell()[f"softsort-n5-{name}"], {0: value}, **SHORT)
    tables = {name: tables_of(tmp_path)[name] for name in ("controls-terrain-50", "controls-mnist-10000")}
    maps, sets = (dict(zip(table.heads, table.rows[0], strict=True)) for table in tables.values())
    assert [maps[name].text for name in ("Fisher, running", "plain, leave-one-out")] == ["55.0", "58.0"]
    assert maps["the default"].detail == "(1); +11.0 to plain; +3.0 to plain, leave-one-out"
    assert (sets["the default"].text, sets["the default"].detail) == ("71.0", "(1); +1.0 to plain")
    assert "plain, leave-one-out" not in sets


def test_which_method_is_clearly_behind_the_best_of_the_others(tmp_path):
    runs = {"baseline": [50, 51, 52], "fisher-normalized": [61, 61.2, 62.9], "fisher-running": [60, 61.1, 63]}
    for name, values in runs.items():
        figures = {seed: float(value) for seed, value in enumerate(values)}
        write_seeds(tmp_path, every_cell()[f"smoothed-loss-10-{name}"], figures, **MAPS)
    write_seeds(
        tmp_path, every_cell()["smoothed-loss-10-sample-normalized"], {0: 90.0, 1: 90.0}, **MAPS
    )  # two seeds only
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in tables_of(tmp_path)["behind-the-best"].rows}
    assert rows["plain"] == ["1 of 1", "Smoothed loss, 10 samples (−10.7 to Fisher, per batch)"]
    assert rows["Fisher, per batch"] == rows["Fisher, running"] == ["0 of 1", "none"]
    assert "sample, per batch" not in rows


def test_the_default_beside_the_plain_loss_with_the_same_smoothing(tmp_path):
    """A mean over all settings of a kind, seed by seed; a setting with two seeds counts for nothing."""
    runs = {
        "smoothed-loss-3-baseline": [10, 10, 10],  # the paper's smoothing, another loss
        "smoothed-loss-3-plain-library": [40, 42, 41],
        "smoothed-loss-3-fisher-library": [44, 46.1, 44.9],
        "smoothed-loss-10-plain-library": [60, 60, 60],
        "smoothed-loss-10-fisher-library": [60, 59, 61],
        "smoothed-loss-30-plain-library": [70, 70],
        "smoothed-loss-30-fisher-library": [10, 10],
        "fenchel-young-3-baseline": [90, 91, 92],
        "fenchel-young-3-fisher-normalized:1000": [91, 92.1, 93],
        "fenchel-young-3-fisher-library": [89, 90.1, 91],
    }
    for name, values in runs.items():
        write_seeds(tmp_path, every_cell()[name], {seed: float(value) for seed, value in enumerate(values)}, **MAPS)
    table = tables_of(tmp_path)["default"]
    rows = {row[0].text: dict(zip(table.heads, row, strict=True)) for row in table.rows}
    smoothed, fenchel = rows["Smoothed loss"], rows["Fenchel-Young"]
    assert [smoothed[name].text for name in ("plain", "normalised only", "the default")] == ["50.5", "not run", "52.5"]
    assert (smoothed["to plain"].text, smoothed["to plain"].detail) == ("+2.0", "p 0.016")  # 2, 1.55 and 2.45: t = 7.7
    assert smoothed["the default"].kind == "significant"
    assert (smoothed["ahead"].text, smoothed["behind"].text) == ("1 of 2", "0 of 2")
    assert (fenchel["normalised only"].kind, fenchel["the default"].kind) == ("significant", "")
    assert (fenchel["to normalised"].text, fenchel["behind"].text) == ("−2.0", "1 of 1")


def test_one_seed_has_a_lead_and_no_p(tmp_path):
    for name, value in {"baseline": 50.0, "fisher-running": 60.0}.items():
        write_seeds(tmp_path, every_cell()[f"smoothed-loss-10-{name}"], {0: value}, **MAPS)
    table = tables_of(tmp_path)["controls-terrain-50"]
    assert dict(zip(table.heads, table.rows[0], strict=True))["Fisher, running"].detail == "(1); +10.0 to plain"


def test_nothing_run_is_said(tmp_path):
    report = compose(gather(tmp_path))
    assert report.state.startswith(
        "0 finished runs, 0 of them in a cell of a table or an ablation of the paper. Of the paper’s 58 cells, none"
    )
    assert {"controls": "Not run.", "curves": "Not run."}.items() <= {
        section.anchor: section.answer for section in report.sections
    }.items()
