"""What the report shows of runs: its figures are theirs, each where it belongs, and what was not run says so."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import results_and_site
from run_folders import write_cell, write_run

from newton_losses.errors import ArgumentError
from newton_losses_bench.cells import cells
from newton_losses_bench.config import SortingConfig
from newton_losses_bench.loop import run
from newton_losses_bench.report import write_report
from newton_losses_bench.report._blocks import Heading, Mark, Table, Verdict
from newton_losses_bench.report._compose import compose
from newton_losses_bench.report._evidence import gather
from newton_losses_bench.report._measured import Measured, Runs
from newton_losses_bench.report._runtimes import _source
from newton_losses_bench.report._tables import control_table, paths_table, sorting_table
from newton_losses_bench.store import Store

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    return results_and_site(tmp_path_factory)[0]


def runs_of(results, length=10_000, data="mnist"):
    return Runs(Measured(Store(results).records()), "here", length, data)


def row_of(table, *labels):
    """The row that begins with these labels, by the heads of its columns, each as a list in the table's order."""
    rows = [row for row in table.rows if tuple(cell.text for cell in row[: len(labels)]) == labels]
    assert len(rows) == 1
    return rows[0]


def test_cells_of_a_table_are_those_of_the_runs(tmp_path):
    cell = cells("table1", only="softsort-n5-fisher")[0]
    for seed, value in enumerate((80.0, 81.0, 85.0)):
        config = cell.make(seed=seed, steps=10_000, device="cpu")
        write_run(tmp_path / str(seed), config, {"exact_match": value, "element_wise": value + 10})
    table = sorting_table(runs_of(tmp_path), "t", "")
    row = row_of(table, "SoftSort n=5", "Fisher")
    assert [cell.text for cell in row[2:]] == ["84.03", "92.82", "82.00", "92.00", "−2.03", "not run"]
    assert [cell.detail for cell in row[2:]] == ["± 0.59", "± 0.24", "± 2.65 (3)", "± 2.65", "", ""]
    assert row[4].value == pytest.approx(82.0)


def test_lengths_are_kept_apart(made_up):
    short, full = (
        row_of(sorting_table(runs_of(made_up, length), "t", ""), "NeuralSort n=5", "baseline")
        for length in (10_000, 100_000)
    )
    assert abs(short[4].value - 61.33) < 0.5
    assert abs(full[4].value - 71.33) < 0.5
    assert runs_of(made_up, 20_000).figure("neuralsort-n5", "baseline") is None


def test_other_batches_and_short_evaluations_are_no_cells(tmp_path):
    cell = cells("table1", only="softsort-n5-baseline")[0]
    figures = {"exact_match": 50.0, "element_wise": 70.0}
    write_cell(tmp_path, cell, figures, steps=10_000, batch_size=50)
    write_cell(tmp_path, cell, figures, steps=10_000, test_sets=100)
    write_cell(tmp_path, cell, figures, steps=10_000, data="digits")
    assert runs_of(tmp_path).figure("softsort-n5", "baseline") is None
    write_cell(tmp_path, cell, figures, steps=10_000, eval_every=500)
    assert runs_of(tmp_path).figure("softsort-n5", "baseline").count == 3


def test_bold_follows_the_test_against_our_baseline(made_up):
    table = sorting_table(runs_of(made_up, 100_000), "t", "")
    assert row_of(table, "NeuralSort n=5", "Hessian")[4].mark is Mark.SIGNIFICANT
    assert row_of(table, "NeuralSort n=5", "baseline")[4].mark is Mark.PLAIN
    assert row_of(table, "NeuralSort n=5", "Hessian")[2].mark is Mark.SIGNIFICANT
    assert row_of(table, "Cauchy network n=5", "Hessian")[2].mark is Mark.IMPROVED


def test_controls_have_their_columns(made_up):
    table = control_table(runs_of(made_up), "t", "")
    row = row_of(table, "SoftSort n=10")
    assert table.columns[2:7] == ("baseline", "Hessian", "Fisher", "clipped", "energy")
    values = [round(cell.value) for cell in row[2:]]
    assert values[3:5] == pytest.approx([27.46 - 5, 27.46 - 5], abs=1)
    assert values[5:] == pytest.approx([22.5, 50, 49], abs=1)


def test_terrain_is_never_called_the_benchmark(made_up):
    benchmark, look_alike = runs_of(made_up, 50, "warcraft"), runs_of(made_up, 50, "terrain")
    table = paths_table("table3", benchmark, look_alike, "t", "")
    assert [text for text, _ in table.groups] == [
        "",
        "the paper, Warcraft",
        "ours, Warcraft",
        "ours, terrain (a look-alike)",
    ]
    row = row_of(table, "Fenchel-Young loss", "10", "Hessian")
    assert row[5].text == "not run"
    assert row[6].value == pytest.approx(71.13, abs=0.5)
    # What can be compared is the gain over the baseline, not the accuracy.
    assert row[7].value == pytest.approx(0.74, abs=1.0)
    assert "benchmark" not in " ".join(column for column in table.columns)


def test_what_was_not_run_says_so(tmp_path):
    write_report(tmp_path, tmp_path / "site")
    text = (tmp_path / "site" / "index.html").read_text()
    assert "0 finished runs" in text
    assert "none has been run" in text
    assert text.count("not run") > 26
    assert "There is no finished run in this folder." in text
    assert 'class="status confirmed"' not in re.sub(r"exploding gradients.*", "", text, flags=re.DOTALL)


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(ArgumentError, match=r"--results .*nowhere: there is no such folder"):
        write_report(tmp_path / "nowhere", tmp_path / "site")


def test_other_lengths_and_other_runs_are_shown(tmp_path):
    cell = cells("table1", only="softsort-n5-fisher")[0]
    write_cell(tmp_path, cell, {"exact_match": 80.0, "element_wise": 90.0}, seeds=1, steps=15_000)
    odd = SortingConfig(algorithm="softsort", n=7, steps=5, device="cpu").resolved()
    write_run(tmp_path / "odd", odd, {"exact_match": 12.0})
    begun = SortingConfig(algorithm="cauchy", n=7, steps=50, device="cpu").resolved()
    write_run(tmp_path / "begun", begun, {"exact_match": 1.0}, finished=False)
    write_report(tmp_path, tmp_path / "site")
    text = (tmp_path / "site" / "report.md").read_text()
    assert "Another length, 15,000 steps" in text
    assert re.search(r"\| odd \|.*exact\\_match 12.00", text)
    assert re.search(r"\| begun \|.*\| 50 \| 50 \|", text)


def test_real_run_is_shown(tmp_path):
    config = SortingConfig(
        algorithm="softsort",
        data="digits",
        digits=1,
        n=3,
        steps=4,
        eval_every=2,
        batch_size=4,
        validation_sets=10,
        test_sets=10,
        device="cpu",
    )
    result = run(config, str(tmp_path / "results" / "real"))
    report = compose(tmp_path / "results")
    others = next(block for block in report.blocks if getattr(block, "name", "") == "others")
    assert [cell.text for cell in others.rows[0][:4]] == ["real", "sorting", "softsort", "digits"]
    assert f"exact_match {result['test']['exact_match']:.2f}" in others.rows[0][-1].text
    averaged = run(replace(config, seed=1, average=True), str(tmp_path / "results" / "averaged"))["averaged"]["test"]
    report = compose(tmp_path / "results")
    others = next(block for block in report.blocks if getattr(block, "name", "") == "others")
    assert others.columns[-1] == "test, averaged weights"
    assert f"exact_match {averaged['exact_match']:.2f}" in others.rows[0][-1].text


def test_precisions_are_not_mixed(tmp_path):
    """Most runs are bf16, so that the table is; the odd ones are listed apart."""
    for precision, count, value in (("float32", 4, 10.0), ("bf16", 3, 20.0)):
        for cell in cells(
            "table1", only="softsort-n5-baseline,softsort-n5-fisher", numerics="reference", controls=False
        ):
            if precision == "bf16" or cell.variant == "baseline":
                figures = {"exact_match": value, "element_wise": value}
                write_cell(tmp_path / precision, cell, figures, seeds=count, steps=10_000, precision=precision)
    runs = runs_of(tmp_path)
    assert runs.figure("softsort-n5", "baseline").count == 3
    assert runs.figure("softsort-n5", "fisher").mean == pytest.approx(20, abs=0.5)
    assert runs.protocols("table1") == ["10,000 steps, mnist, bf16"]
    assert len(runs.measured.others) == 4


def test_runs_with_another_damping_are_in_no_cell_and_listed_apart(tmp_path):
    """Neither as seeds of a cell, nor in the choice between protocols, nor in a verdict or a figure."""
    chosen = cells("table1", only="cauchy-n5", numerics="reference", controls=False)
    for cell in chosen:
        figures = {"exact_match": 20.0, "element_wise": 60.0}
        write_cell(tmp_path / "cells", cell, figures, steps=10_000, precision="bf16")
        if cell.variant == "baseline":
            write_cell(tmp_path / "float32", cell, figures, seeds=4, steps=10_000)
    before, verdicts = shown(compose(tmp_path)), claims(compose(tmp_path))
    assert len(before["Other runs"][0].rows) == 1  # the baseline in float32, which most cells are not
    hessian = next(cell for cell in chosen if cell.variant == "hessian")
    several = (
        {"damping": "auto"},
        {"damping": 10.0},
        {"spectrum": "absolute"},
        {"steepness": 20.0},
        {"clip_norm": 1.0},
    )
    for changes in several:
        figures = {"exact_match": 90.0, "element_wise": 99.0}
        write_cell(tmp_path / "others", hessian, figures, seeds=3, steps=10_000, **changes)
    report = compose(tmp_path)
    after = shown(report)
    others = after.pop("Other runs")
    assert claims(report) == verdicts
    assert {name: text for name, text in after.items() if name not in VOLATILE} == {
        name: text for name, text in before.items() if name not in VOLATILE
    }
    rows = [[cell.text for cell in row] for row in others[0].rows]
    assert len(rows) == 5 + 1
    told = {(row[5], row[7]): (row[9], row[10][:14]) for row in rows if row[4] == "hessian"}
    assert set(told) == {
        ("auto", "n 5"),
        ("10", "n 5"),
        ("0.1", "n 5, spectrum absolute"),
        ("0.1", "n 5, steepness 20"),
        ("0.1", "n 5, clip norm 1"),
    }
    assert all(seeds == "3" and re.match(r"exact_match \d\d", text) for seeds, text in told.values())
    assert all("±" in row[10] for row in rows)


def test_averaged_weights_have_a_part_of_their_own(tmp_path):
    before = [block for block in shown(compose(tmp_path))["Our goal"] if not isinstance(block, Table)]
    assert [block.text for block in before if isinstance(block, Heading)] == ["With averaged weights"]
    assert before[-1].text[0] == "Not run. "
    (plain,) = cells("table1", only="softsort-n5-baseline-stable")
    write_cell(tmp_path, plain, {"exact_match": 80.0}, averaged={"exact_match": 85.0}, steps=100_000)
    report = compose(tmp_path)
    tables = {block.name: block for block in shown(report)["Our goal"] if isinstance(block, Table)}
    assert list(tables) == ["goal-columns", "averaged-columns", "averaged-gains"]
    goal, standing = (row_of(tables[name], "SoftSort n=5") for name in ("goal-columns", "averaged-columns"))
    assert goal[-1].text == "open"
    state, gap, ours, setting, paper = standing[1:]
    assert (state.text, setting.text, paper.text) == ("reached", "baseline", "84.03")
    assert ours.value == pytest.approx(85, abs=0.4)
    assert gap.text == f"{ours.value - 84.03:+.2f}"
    other = row_of(tables["averaged-columns"], "Cauchy network n=5")
    assert [cell.text for cell in other[1:]] == ["not run", "–", "not run", "–", "85.11"]
    (gain,) = tables["averaged-gains"].rows
    assert [cell.text for cell in gain[:2]] == ["SoftSort n=5", "baseline"]
    assert [cell.value for cell in gain[2:]] == pytest.approx([80, 85, 5], abs=0.4)
    assert gain[4].text.startswith("+")
    assert gain[4].detail.startswith("± 0.")
    verdicts = [one for one in claims(report) if "reaches the paper’s best figure in every column" in one.claim]
    assert [one.source for one in verdicts] == ["our goal", "beside our goal"]
    words = f"1 of 1, 8 more not measured: SoftSort n=5 (baseline) {ours.value:.1f} against 84.0."
    assert [one.judgements[0].figures for one in verdicts] == ["", words]


def test_a_run_with_an_averaged_figure_without_sense_is_left_out(tmp_path):
    (plain,) = cells("table1", only="softsort-n5-baseline-stable")
    config = plain.make(seed=0, steps=100_000, device="cpu")
    write_run(tmp_path / "a", config, {"exact_match": 80.0}, averaged={"exact_match": math.nan})
    found = gather(tmp_path)
    assert found.measured.records == []
    assert "makes no sense" in found.notes[-1]


# Sections that tell of all runs that are there.
VOLATILE = ("", "Where the figures come from", "Other runs")


def shown(report):
    """The blocks of a report by the heading of the second level that they are under."""
    found, name = {"": []}, ""
    for block in report.blocks:
        if isinstance(block, Heading) and block.level == 2:
            name = block.text
        found.setdefault(name, []).append(block)
    return {name: blocks[1:] if name else blocks for name, blocks in found.items()}


def claims(report):
    return [block for block in report.blocks if isinstance(block, Verdict)]


def test_the_repository_s_runs_with_another_damping_are_listed_apart():
    """Each cell of the stored runs has its own λ, that of the paper or auto, its own spectrum, and each seed once."""
    measured = gather(REPOSITORY / "results").measured
    for (_, key), groups in measured._groups.items():
        for one in groups:
            assert len({record.seed for record in one.records}) == len(one.records), key
            own = one.cell.make(device="cpu")
            assert {record.configuration["damping"] for record in one.records} == {own.damping}
            assert {record.configuration.get("spectrum") or "raw" for record in one.records} == {own.spectrum}, key
    report = compose(REPOSITORY / "results")
    tables = {block.name: block for block in report.blocks if isinstance(block, Table)}
    others = {tuple(cell.text for cell in row[2:9]) for row in tables["others"].rows}
    assert ("cauchy", "mnist", "hessian", "0.1", "stable", "n 5, spectrum absolute, precision bf16", "10000") in others
    # Those with "auto" and with the grid of λ have tables of their own.
    assert all(key[3] != "auto" for key in others if key[1] in ("mnist", "terrain") and key[6] == "10000")
    rows = {tuple(cell.text for cell in row[:2]): row for row in tables["damping-auto"].rows}
    assert rows["Cauchy network n=5", "Hessian"][5].detail.endswith("(3)")
    assert len(tables["damping-grid"].rows) >= 8


def test_report_from_the_repository_tells_how_far_it_is(tmp_path):
    results = REPOSITORY / "results"
    report = compose(results)
    records = Store(results).records()
    lead = "".join(part if isinstance(part, str) else part.text for part in report.blocks[0].text)
    assert f"{len(records)} finished runs" in lead
    assert "58 cells" in lead
    scores = {row[0].text + ", " + row[1].text: [cell.text for cell in row[2:]] for row in report.blocks[1].rows}
    assert all(int(run) <= int(total) for run, total, *_ in scores.values())
    assert scores["Table 1, 100,000 steps"][1] == "26"
    assert scores["Tables 2 and 3, terrain, a look-alike"][1] == "32"
    assert scores["Curvature or numerics?, 10,000 steps"][1] == str(len(cells("table1")) - 26)


def test_times_of_a_shared_device_are_kept_apart(tmp_path):
    cell = cells("runtimes")[0]
    for name, at_once in (("alone", None), ("shared", 3)):
        folder = write_run(tmp_path / name / "run", cell.make(device="cpu", seed=at_once or 0), {"exact_match": 1.0})
        if at_once:
            result = json.loads((folder / "result.json").read_text())
            (folder / "result.json").write_text(json.dumps({**result, "at_once": at_once}))
    alone, shared = Store(tmp_path).records()
    assert "at once" not in _source(alone)
    assert _source(shared).endswith(", 3 at once")
