"""The report's section about the automatic damping."""

import math
import re

import pytest
from run_folders import write_cell, write_run

from newton_losses_bench.cells import cells
from newton_losses_bench.report import gather
from newton_losses_bench.report._blocks import Figure, Mark, Paragraph, Table
from newton_losses_bench.report._damping_section import damping_section
from newton_losses_bench.report._measured import GRID, damped

SHORT = {"steps": 10_000, "precision": "bf16"}
MAPS = {"data": "terrain", "epochs": 50, "precision": "bf16"}
(CELL,) = cells("table1", only="softsort-n10-hessian-stable")
(OTHER,) = cells("table1", only="softsort-n10-fisher-stable")
(PLAIN,) = cells("table1", only="softsort-n10-baseline-stable")


def write(results, cell, value, seeds=3):
    write_cell(results, cell, {"exact_match": value, "element_wise": value}, seeds, **SHORT)


def tables(results):
    return {block.name: block for block in damping_section(gather(results)) if isinstance(block, Table)}


def test_nothing_run_is_said(tmp_path):
    _, paragraph = damping_section(gather(tmp_path))
    assert isinstance(paragraph, Paragraph)
    assert paragraph.text[0].startswith("Not run.")


def test_it_is_set_beside_the_papers_and_the_plain_loss(tmp_path):
    write(tmp_path, damped(CELL, "auto"), 40.0)
    write(tmp_path, PLAIN, 50.0)
    (table,) = tables(tmp_path).values()
    ((loss, curvature, plain, damping, tuned, own, p, paired),) = table.rows
    assert (loss.text, curvature.text, damping.text) == ("SoftSort n=10", "Hessian", "1")
    assert (plain.value, own.value) == pytest.approx((50, 40), abs=0.5)
    assert tuned.mark is Mark.ABSENT
    assert (p.text, paired.text) == ("0.00", "0.00")
    assert "below 0.05 in 1 of 1 cells, and in 1 of 1 with the runs of a seed as pairs" in table.caption


def test_one_seed_is_no_test(tmp_path):
    write(tmp_path, damped(CELL, "auto"), 40.0, seeds=1)
    write(tmp_path, CELL, 50.0)
    (table,) = tables(tmp_path).values()
    assert table.rows[0][-1].mark is Mark.ABSENT
    assert "below 0.05 in 0 of 0 cells" in table.caption


def test_the_grid_is_shown_when_it_is_whole(tmp_path):
    write(tmp_path, damped(CELL, "auto"), 40.0)
    for damping in GRID[:-1]:
        write(tmp_path, damped(CELL, damping), 30.0, seeds=1)
    assert "damping-grid" not in tables(tmp_path)
    write(tmp_path, damped(CELL, GRID[-1]), 50.0)
    (row,) = tables(tmp_path)["damping-grid"].rows
    assert [round(cell.value) for cell in row[2:10]] == [30] * 7 + [50]
    assert row[10].text == "3000"
    assert row[13].text == "0.00"
    (figure,) = (block for block in damping_section(gather(tmp_path)) if isinstance(block, Figure))
    (panel,) = figure.panels
    assert panel.title == "SoftSort n=10"
    told = re.fullmatch(r"Newton, Hessian from (.*) to (.*), with “auto” (.*)", panel.words)
    assert [float(figure) for figure in told.groups()] == pytest.approx([30, 50, 40], abs=0.5)
    assert panel.svg.count("<circle") == len(GRID)


def test_maps_have_a_grid_too(tmp_path):
    (cell,) = cells("table3", only="fenchel-young-3-hessian")
    for damping in ("auto", *GRID):
        write_cell(
            tmp_path, damped(cell, damping), {"perfect_match": 60.0}, 3 if damping in ("auto", 10) else 1, **MAPS
        )
    (row,) = tables(tmp_path)["damping-grid"].rows
    assert (row[0].text, row[1].text) == ("Fenchel-Young loss, 3 samples", "Hessian")
    assert [round(cell.value) for cell in row[2:10]] == [60] * 8


def test_the_choice_is_weighed_over_the_cells_with_and_without_the_seed_that_made_it(tmp_path):
    # Of two cells: λ = 3000 is 7 and 30 points ahead with the seed that chooses it, 4 and 2 behind with two others.
    for place, (cell, lead, lag) in enumerate([(CELL, 7.0, -4.0), (OTHER, 30.0, -2.0)]):
        for damping, seed, value in [
            *(("auto", seed, 40.0 + seed) for seed in range(4)),  # the last one has no counterpart
            *((damping, 0, 30.0) for damping in GRID[:-1]),
            (GRID[-1], 0, 40.0 + lead),
            *((GRID[-1], seed, 40.0 + seed + lag) for seed in (1, 2)),
        ]:
            config = damped(cell, damping).make(seed=seed, device="cpu", **SHORT)
            write_run(tmp_path / f"{place}-{damping}-{seed}", config, {"exact_match": value, "element_wise": value})
        assert ("damping-grid-average" in tables(tmp_path)) == (place == 1)  # one cell has no spread
    ((label, count, ahead, own, unseen),) = tables(tmp_path)["damping-grid-average"].rows
    assert (label.text, count.text, ahead.text) == ("sorting, 10,000 steps", "2", "1")
    # With 3000 seed 0 has 47 and 70 beside 41.5, with every other λ 30.
    fixed = [[cell.text for cell in row] for row in tables(tmp_path)["damping-fixed"].rows]
    assert [row[0] for row in fixed] == [f"{damping:g}" for damping in GRID]
    assert fixed[0][1:] == ["−11.50 ± 0.00", "2"]
    assert fixed[-1][1:] == ["+17.00 ± 11.50", "0"]
    # Means of 47, 37, 38 and of 70, 39, 40, beside 41.5. The error of two is half of what they differ by.
    assert own.text == "+3.67 ± 4.50"
    assert unseen.text == "−3.00 ± 1.00"


@pytest.mark.parametrize("validation", [{"element_wise": 99.0}, {"exact_match": None}, {"exact_match": math.nan}, [1]])
def test_a_run_without_a_validation_is_not_chosen(validation, tmp_path):
    write(tmp_path, damped(CELL, "auto"), 40.0)
    for damping in GRID[1:]:
        write(tmp_path, damped(CELL, damping), 30.0, seeds=1)
    config = damped(CELL, GRID[0]).make(seed=0, device="cpu", **SHORT)
    write_run(tmp_path / "odd", config, {"exact_match": 90.0, "element_wise": 90.0}, validation=validation)
    (row,) = tables(tmp_path)["damping-grid"].rows
    assert row[10].text != "0.001"
