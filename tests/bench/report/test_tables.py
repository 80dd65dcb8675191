"""The report's tables: their figures are those of the runs, each where it belongs, and missing runs are marked."""

import json
import math

import pytest
from run_folders import results_and_page, row_of, tables_of, write_cell, write_run

from newton_losses_bench.cells import cells
from newton_losses_bench.report import compose, gather
from newton_losses_bench.report.collect import GRID, NORMALISED, by_sample, curved_cells, damped
from newton_losses_bench.report.extras import timing_source
from newton_losses_bench.store import Store

SHORT, FULL = {"steps": 10_000, "precision": "bf16"}, {"steps": 100_000, "precision": "bf16"}
MAPS = {"data": "terrain", "epochs": 50, "precision": "bf16"}
NAMES = ("exact_match", "element_wise", "perfect_match")


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    return tables_of(results_and_page(tmp_path_factory)[0])


def curved(key):
    (found,) = (cell for cell in curved_cells() if cell.key == key)
    return found


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
    write_seeds(tmp_path, cells("table1", only="softsort-n5-fisher")[0], {0: 80.0, 1: 81.0, 2: 85.0}, steps=10_000)
    tables = tables_of(tmp_path)
    row = row_of(tables["sorting-10000-exact_match"], "SoftSort n=5", "Fisher")
    assert texts(row) == ["84.0", "82.0", "not run"]
    assert [cell.detail for cell in row] == ["± 0.6 (10)", "± 2.6 (3)", ""]
    assert row[1].value == pytest.approx(82.0)
    assert "sorting-100000-exact_match" not in tables


def test_lengths_are_kept_apart(made_up):
    found = [
        row_of(made_up[f"sorting-{length}-exact_match"], "NeuralSort n=5", "plain") for length in (10_000, 100_000)
    ]
    assert [row[1].value for row in found] == pytest.approx([61.33, 71.33], abs=0.5)


def test_marks_follow_the_test_against_our_own_baseline(made_up):
    table = made_up["sorting-100000-exact_match"]
    assert [cell.kind for cell in row_of(table, "NeuralSort n=5", "Hessian")[:2]] == ["significant"] * 2
    assert row_of(table, "NeuralSort n=5", "plain")[1].kind == ""
    assert row_of(table, "Cauchy network n=5", "Hessian")[0].kind == "improved"


def test_controls_say_whether_log_space_is_enough(made_up):
    enough, plain, newton, clipped, energy, stable, _ = row_of(made_up["controls-10000"], "SoftSort n=10")
    assert (enough.text, enough.kind) == ("no", "bad")
    values = [cell.value for cell in (plain, newton, clipped, energy, stable)]
    assert values == pytest.approx([17.5, 45, 22.5, 22.5, 22.5], abs=1)


def test_two_seeds_leave_a_control_open(tmp_path):
    for key in ("softsort-n5-baseline-stable", "softsort-n5-hessian", "softsort-n5-fisher"):
        write(tmp_path, cells("table1", only=key)[0], 70.0, 2 if key.endswith("hessian") else 3, **SHORT)
    assert "controls-10000" not in tables_of(tmp_path)  # nothing in it would be decided
    for key in ("cauchy-n5-baseline-stable", "cauchy-n5-hessian", "cauchy-n5-fisher"):
        write(tmp_path, cells("table1", only=key)[0], 70.0, **SHORT)
    table = tables_of(tmp_path)["controls-10000"]
    assert [row_of(table, name)[0].text for name in ("SoftSort n=5", "Cauchy network n=5")] == ["open", "yes"]


def test_maps_that_look_like_the_papers_are_never_called_its_maps(made_up):
    table = made_up["table3"]
    assert table.heads[4:6] == ("ours, Warcraft", "ours, look-alike")
    assert "not the benchmark" in table.caption
    row = row_of(table, "Fenchel-Young, 10 samples", "Hessian")
    assert row[2].text == "not run"
    assert row[3].value == pytest.approx(71.13, abs=0.5)
    assert row[4].value == pytest.approx(0.74, abs=1.0)  # only gains can be compared


def test_other_settings_are_in_no_cell(tmp_path):
    """Another batch, evaluation, data set, λ, spectrum or clipping: listed apart, and in no table or verdict."""
    cell = cells("table1", only="cauchy-n5-hessian")[0]
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
    after = {name: table for name, table in tables_of(tmp_path).items() if name != "folders"}
    others = after.pop("others")
    assert {name: table.rows for name, table in after.items()} == before
    assert len(others.rows) == len(changes)
    assert all(row[4].text == "3" and row[5].text.startswith("exact_match ") for row in others.rows)
    assert any("spectrum absolute" in row[1].text for row in others.rows)


def test_precisions_are_not_mixed(tmp_path):
    """The table shows the protocol that most runs have; the others are listed apart."""
    plain, fisher = (cells("table1", only=f"softsort-n5-{name}")[0] for name in ("baseline", "fisher"))
    write(tmp_path / "32", plain, 10.0, 4, steps=10_000, precision="float32")
    for cell in (plain, fisher):
        write(tmp_path / "16", cell, 20.0, **SHORT)
    tables = tables_of(tmp_path)
    assert row_of(tables["sorting-10000-exact_match"], "SoftSort n=5", "plain")[1].detail.endswith("(3)")
    assert [row[4].text for row in tables["others"].rows] == ["4"]


def test_evaluating_more_often_changes_nothing(tmp_path):
    write(tmp_path, cells("table1", only="softsort-n5-baseline")[0], 50.0, **SHORT, eval_every=500)
    assert gather(tmp_path).short.figure("softsort-n5", "baseline").count == 3


def test_plain_beside_newton_is_paired_by_seed(tmp_path):
    plain, newton = cells("table1", only="softsort-n10-baseline-stable")[0], curved("softsort-n10-hessian-stable")
    write_seeds(tmp_path, plain, {0: 50.0, 1: 60.0, 2: 40.0}, **FULL)
    # Ahead by little on every seed, which only the pairs tell; the fourth seed has no partner.
    write_seeds(tmp_path, damped(newton, "auto"), {0: 51.0, 1: 61.1, 2: 41.2, 3: 0.0}, **FULL)
    trained, averaged = (
        row_of(tables_of(tmp_path)["plain-full"], "SoftSort n=10", name) for name in ("as trained", "averaged")
    )
    assert texts(trained)[0] == "Newton ahead"
    assert trained[3].text == "+1.1"
    assert trained[4].value < 0.01
    assert texts(averaged)[:3] == ["not run"] * 3
    assert row_of(tables_of(tmp_path)["plain-full"], "Cauchy network n=15", "as trained")[0].text == "not run"


def test_plain_beside_newton_says_level_where_it_is_noise(tmp_path):
    plain, newton = cells("table1", only="softsort-n10-baseline-stable")[0], curved("softsort-n10-hessian-stable")
    write(tmp_path, plain, 50.0, averaged=55.0, **FULL)
    write(tmp_path, damped(newton, "auto"), 50.0, averaged=70.0, **FULL)
    table = tables_of(tmp_path)["plain-full"]
    assert row_of(table, "SoftSort n=10", "as trained")[0].text == "level"
    assert row_of(table, "SoftSort n=10", "averaged")[0].text == "Newton ahead"


@pytest.mark.parametrize(
    ("plain", "normal", "fisher", "verdict"),
    [
        ([50, 51, 52], [60, 61, 62.1], [60, 61.1, 62], "normalising helps"),
        ([50, 51, 52], [60, 61, 62.1], [70, 71, 72], "curvature adds"),
        ([50, 51, 52], [60, 61, 62.1], [40, 41, 42], "curvature harms"),
        ([50, 51, 52], [50, 52, 51], [52, 50, 51], "within noise"),
    ],
)
def test_maps_tell_the_size_of_the_step_from_its_direction(plain, normal, fisher, verdict, tmp_path):
    cell = curved("smoothed-loss-10-fisher")
    baseline = cells("table3", only="smoothed-loss-10-baseline")[0]
    sample = [20.0, 21.0, 22.0]
    runs = (
        (baseline, plain),
        (damped(cell, NORMALISED), normal),
        (by_sample(cell), sample),
        (damped(cell, "auto"), fisher),
    )
    for one, values in runs:
        write_seeds(tmp_path, one, {seed: float(value) for seed, value in enumerate(values)}, **MAPS)
    (row,) = tables_of(tmp_path)["effects-terrain"].rows
    assert (row[0].text, row[1].text, row[3].text) == ("Smoothed loss, 10 samples", verdict, "not run")
    assert [row[place].value for place in (2, 4, 5, 6)] == [sum(values) / 3 for _, values in runs]


def test_auto_is_compared_with_the_better_of_the_two_others(tmp_path):
    cell = curved("cauchy-n10-fisher-stable")
    write(tmp_path, damped(cell, "auto"), 50.0, **SHORT)
    write(tmp_path, cells("table1", only="cauchy-n10-baseline-stable")[0], 60.0, **SHORT)
    write(tmp_path, cell, 40.0, **SHORT)
    row = row_of(tables_of(tmp_path)["damping-auto"], "Cauchy network n=10", "Fisher")
    assert row[0].text == "behind"
    assert [cell.value for cell in row[1:4]] == pytest.approx([50, 60, 40], abs=0.5)
    assert (row[4].text, row[5].text) == ("0.1", "0.00")


def test_one_seed_is_no_test(tmp_path):
    cell = curved("softsort-n10-hessian-stable")
    write(tmp_path, damped(cell, "auto"), 40.0, 1, **SHORT)
    write(tmp_path, cell, 50.0, **SHORT)
    (row,) = tables_of(tmp_path)["damping-auto"].rows
    assert (row[2].text, row[-1].text) == ("within noise", "–")


@pytest.mark.parametrize(("key", "settings"), [("softsort-n5-fisher-stable", SHORT), ("fenchel-young-10-fisher", MAPS)])
def test_a_damping_is_chosen_by_the_validation_of_one_seed(key, settings, tmp_path):
    cell = curved(key)
    write(tmp_path, damped(cell, "auto"), 70.0, **settings)

    def run(damping, seed, test, validation):
        config = damped(cell, damping).make(seed=seed, device="cpu", **settings)
        figures = [dict.fromkeys(NAMES, value) for value in (test, validation)]
        write_run(tmp_path / f"{damping:g}-{seed}", config, figures[0], validation=figures[1])

    for place, damping in enumerate(GRID[1:]):  # validation is best at the fifth, test at the first
        run(damping, 0, test=60.0 - place, validation=40.0 + place % 5)
    assert "damping-chosen" not in tables_of(tmp_path)  # a part of the grid chooses nothing
    run(GRID[0], 0, test=50.0, validation=30.0)
    for seed in (1, 2):
        run(100.0, seed, test=56.0 + seed, validation=10.0)
        run(1.0, seed, test=99.0, validation=99.0)  # no other seed has a say
    tables = tables_of(tmp_path)
    (row,) = tables["damping-grid"].rows
    assert texts(row)[2:10] == ["50", "60", "59", "58", "57", "56", "55", "54"]
    (row,) = tables["damping-chosen"].rows
    assert row[2].text == "highest"
    assert (row[4].text, row[4].detail, row[5].text) == ("57.0", "± 1.0 (3)", "100")


@pytest.mark.parametrize("validation", [{"element_wise": 99.0}, {"exact_match": None}, {"exact_match": math.nan}, [1]])
def test_a_run_without_a_validation_is_not_chosen(validation, tmp_path):
    cell = curved("softsort-n10-hessian-stable")
    for damping in ("auto", *GRID[1:]):
        write(tmp_path, damped(cell, damping), 30.0, 1, **SHORT)
    config = damped(cell, GRID[0]).make(seed=0, device="cpu", **SHORT)
    write_run(tmp_path / "odd", config, dict.fromkeys(NAMES, 90.0), validation=validation)
    (row,) = tables_of(tmp_path)["damping-chosen"].rows
    assert row[5].text != "0.001"


def test_the_choice_is_weighed_with_and_without_the_seed_that_made_it(tmp_path):
    # Of two cells: λ = 3000 is 7 and 30 points ahead with the seed that chooses it, 4 and 2 behind with two others.
    for kind, lead, lag in (("hessian", 7.0, -4.0), ("fisher", 30.0, -2.0)):
        cell = curved(f"softsort-n10-{kind}-stable")
        write_seeds(tmp_path, damped(cell, "auto"), {seed: 40.0 + seed for seed in range(4)}, **SHORT)
        for damping in GRID[:-1]:
            write_seeds(tmp_path, damped(cell, damping), {0: 30.0}, **SHORT)
        values = {0: 40.0 + lead, 1: 41.0 + lag, 2: 42.0 + lag}
        write_seeds(tmp_path, damped(cell, GRID[-1]), values, **SHORT)
    tables = tables_of(tmp_path)
    # Means of 47, 37, 38 and of 70, 39, 40, beside 41.5. The error of two is half of what they differ by.
    assert texts(tables["damping-advantage"].rows[0]) == ["sorting", "+3.67 ± 4.50", "−3.00 ± 1.00", "1 of 2"]
    fixed = [texts(row) for row in tables["damping-fixed"].rows]
    assert fixed[0] == ["0.001", "−11.50 ± 0.00", "2"]
    assert fixed[-1] == ["3000", "+17.00 ± 11.50", "0"]


def test_goal_and_averages(tmp_path):
    (plain,) = cells("table1", only="softsort-n5-baseline-stable")
    write(tmp_path, plain, 80.0, averaged=85.0, **FULL)
    tables = tables_of(tmp_path)
    assert row_of(tables["goal"], "SoftSort n=5")[0].text == "open"
    state, ours, setting, paper, gap = row_of(tables["goal-averaged"], "SoftSort n=5")
    assert (state.text, setting.text, paper.text) == ("reached", "plain", "84.0")
    assert ours.value == pytest.approx(85, abs=0.4)
    assert gap.value == pytest.approx(ours.value - 84.03)
    assert texts(row_of(tables["goal-averaged"], "Cauchy network n=5"))[:3] == ["not run", "not run", "–"]


def test_nothing_run_is_said(tmp_path):
    report = compose(gather(tmp_path))
    assert report.state.startswith("0 finished runs. Of the paper’s 58 cells, none has been run")
    assert {"controls": "Not run.", "effects": "Not run.", "damping": "Not run.", "ablation": "Not run."}.items() <= {
        section.anchor: section.answer for section in report.sections
    }.items()


def test_times_of_a_shared_device_are_kept_apart(tmp_path):
    cell = cells("runtimes")[0]
    for name, at_once in (("alone", None), ("shared", 3)):
        folder = write_run(tmp_path / name / "run", cell.make(device="cpu", seed=at_once or 0), {"exact_match": 1.0})
        if at_once:
            result = json.loads((folder / "result.json").read_text())
            (folder / "result.json").write_text(json.dumps({**result, "at_once": at_once}))
    alone, shared = Store(tmp_path).records()
    assert "at once" not in timing_source(alone)
    assert timing_source(shared).endswith(", 3 at once")
