"""The page of evidence: it shows what there is and nothing else, and its commands run the cells that it shows."""

import re
import runpy
import shlex
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_folders import write_cell, write_run
from typer.testing import CliRunner

from newton_losses_bench.cells import cells
from newton_losses_bench.cli.app import app
from newton_losses_bench.report import AVERAGING, GOAL, GOAL_AVERAGED, GRID, SELECTION, curved_cells, gather, standings
from newton_losses_bench.report._blocks import Status
from newton_losses_bench.report._commands import grids
from newton_losses_bench.report._measured import damped
from newton_losses_bench.sweep import Job, train_command

REPOSITORY = Path(__file__).parents[3]
PAGE = SimpleNamespace(**runpy.run_path(str(REPOSITORY / "docs" / "evidence.py")))
SHORT, FULL = {"steps": 10_000, "precision": "bf16"}, {"steps": 100_000, "precision": "bf16"}
MAPS = {"data": "terrain", "epochs": 50, "precision": "bf16"}


def write(results, chosen, value, seeds=3, averaged=None, **settings):
    for cell in chosen:
        names = ("exact_match", "element_wise") if cell.task == "sorting" else ("perfect_match",)
        means = averaged and dict.fromkeys(names, averaged)
        write_cell(results, cell, dict.fromkeys(names, value), seeds=seeds, averaged=means, **settings)


def auto(pattern):
    """The cells with damping auto, by the names of those with the paper's λ."""
    keys = {cell.key for name in ("table1", "table2", "table3") for cell in _matching(name, pattern)}
    return [damped(cell, "auto") for cell in curved_cells() if cell.key in keys]


def _matching(table, pattern):
    try:
        return cells(table, only=pattern)
    except ValueError:
        return ()


def rows(section, *labels):
    """The rows of a section's tables that begin with these labels, without them."""
    found = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [row[len(labels) :] for row in found if tuple(row[: len(labels)]) == labels]


def row(section, *labels):
    (found,) = rows(section, *labels)
    return found


def commands(section):
    return re.findall(r"^    newton-losses (.*)$", section, re.MULTILINE)


def trained(command):
    """The runs that a command says it would do, each as a command."""
    words = shlex.split(command.replace("--device cuda", "--device cpu"))
    done = CliRunner().invoke(app, [*words, "--dry-run", "--results", "nothing"], prog_name="newton-losses")
    assert done.exit_code == 0, done.output
    return [line.partition(": newton-losses ")[2] for line in done.stdout.splitlines()]


def expected(chosen, seeds, **settings):
    """The same of cells."""
    configs = [cell.make(seed=seed, device="cpu", **settings) for cell in chosen for seed in range(seeds)]
    jobs = [Job.of("", config, Path("results"), "cpu") for config in configs]
    return sorted(shlex.join(train_command(job.configuration)) for job in jobs)


def test_a_table_for_every_length_of_sets_that_has_runs(tmp_path):
    write(tmp_path, cells("table1", only="n5"), 70.0, **SHORT)
    write(tmp_path, cells("table1", only="neuralsort-n10-baseline,neuralsort-n10-fisher-stable"), 40.0, 2, **SHORT)
    write(tmp_path, cells("table1", only="cauchy-n15"), 20.0, **FULL)
    section = PAGE.sorting(gather(tmp_path))
    assert re.findall(r"^### .*", section, re.MULTILINE) == ["### Sets of 5", "### Sets of 10"]
    assert all(text.endswith("(3)") for text in row(section, "SoftSort n=5"))
    partial = row(section, "NeuralSort n=10")
    assert [text.endswith("(2)") for text in partial] == [text != "not run" for text in partial]
    assert [place for place, text in enumerate(partial) if text != "not run"] == [0, 5, 6]
    assert set(row(section, "Cauchy network n=10")) == {"not run"}
    first, second = commands(section)
    assert sorted(trained(first)) == expected(cells("table1", only="n5"), 3, **SHORT)
    assert sorted(trained(second)) == expected(cells("table1", only="n10"), 2, **SHORT)


def test_nothing_run_is_said_and_not_a_mistake(tmp_path):
    found = gather(tmp_path)
    for section in (PAGE.sorting, PAGE.full_length, PAGE.paths, PAGE.damping):
        assert section(found).startswith("## ")
    assert "9 not run. The goal as a whole: not yet tested." in PAGE.full_length(found)
    assert "in 0 of 0 cells; p is below 0.05 in 0 of 0 cells, and in 0 of 0 with" in PAGE.damping(found)
    assert commands(PAGE.sorting(found)) == commands(PAGE.damping(found)) == []


def test_tables_of_paths_are_those_of_their_commands(tmp_path):
    wanted = (*cells("table2"), *cells("table3"))
    write(tmp_path, [cell for cell in wanted if cell.key != "fenchel-young-3-hessian"], 60.0, **MAPS)
    section = PAGE.paths(gather(tmp_path))
    assert row(section, "Relaxed Bellman-Ford, while, L₂²")[2] == "–"
    assert row(section, "Fenchel-Young loss, 3 samples")[2] == "not run"
    runs = [line for command in commands(section) for line in trained(command)]
    assert sorted(runs) == expected(wanted, 3, epochs=50, precision="bf16")


@pytest.mark.parametrize(
    "pattern",
    [
        "*-n5-*-stable",
        "*-n5-*-stable,*-n10-*-stable,cauchy-n15-*-stable",
        "softsort-n10-*-stable,cauchy-n10-fisher-stable,neuralsort-n5-hessian-stable",
        "bellman-ford-*,smoothed-*,fenchel-young-*",
        "bellman-ford-for-l1-*,bellman-ford-while-*,smoothed-loss-3-fisher,smoothed-loss-30-*,fenchel-young-10-hessian",
        "*",
    ],
)
def test_commands_of_the_damping_are_its_rows(pattern, tmp_path):
    chosen = auto(pattern)
    sorts, maps = ([cell for cell in chosen if cell.task == task] for task in ("sorting", "paths"))
    write(tmp_path, sorts, 70.0, **SHORT)
    write(tmp_path, maps, 60.0, **MAPS)
    section = PAGE.damping(gather(tmp_path))
    assert len(rows(section)) == 2 + len(chosen)
    runs = [line for command in commands(section) for line in trained(command)]
    assert sorted(runs) == sorted([*expected(sorts, 3, **SHORT), *expected(maps, 3, epochs=50, precision="bf16")])


def test_damping_is_compared_with_the_better_of_the_two_others(tmp_path):
    write(tmp_path, auto("cauchy-n10-*-stable,cauchy-n15-fisher-stable"), 50.0, **SHORT)
    write(tmp_path, auto("smoothed-loss-30-fisher"), 50.0, **MAPS)
    write(tmp_path, cells("table1", only="cauchy-n10-baseline-stable"), 60.0, **SHORT)
    write(tmp_path, cells("table1", only="cauchy-n10-fisher-stable"), 40.0, **SHORT)
    write(tmp_path, cells("table3", only="smoothed-loss-30-baseline"), 40.0, 1, **MAPS)
    section = PAGE.damping(gather(tmp_path))
    fisher = row(section, "Cauchy network n=10", "Fisher")
    figures = [float(fisher[place].split()[0]) for place in (0, 2, 3)]
    assert figures == pytest.approx([60, 40, 50], abs=0.5)
    assert fisher[1] == "0.1"
    assert fisher[4] == "0.00"
    assert row(section, "Cauchy network n=10", "Hessian")[2] == "not run"
    assert row(section, "Cauchy network n=15", "Fisher")[0] == "not run"
    assert row(section, "Cauchy network n=15", "Fisher")[4] == "–"
    assert row(section, "Smoothing of the loss, 30 samples", "Fisher")[4] == "–"
    assert "in 1 of 3 cells; p is below 0.05 in 2 of 2 cells, and in 2 of 2 with" in section


@pytest.mark.parametrize(
    ("key", "title", "settings"),
    [
        ("softsort-n5-fisher-stable", "SoftSort n=5", SHORT),
        ("fenchel-young-10-fisher", "Fenchel-Young loss, 10 samples", MAPS),
    ],
)
def test_a_damping_is_chosen_by_the_validation_of_one_seed(key, title, settings, tmp_path):
    (cell,) = (cell for cell in curved_cells() if cell.key == key)
    write(tmp_path, auto(key), 70.0, **settings)

    def run(damping, seed, test, validation):
        config = damped(cell, damping).make(seed=seed, device="cpu", **settings)
        names = ("exact_match", "element_wise", "perfect_match")
        figures = (dict.fromkeys(names, value) for value in (test, validation))
        write_run(tmp_path / f"{damping:g}-{seed}", config, next(figures), validation=next(figures))

    for place, damping in enumerate(GRID[1:]):
        run(
            damping, 0, test=60.0 - place, validation=40.0 + place % 5
        )  # validation is best at the fifth, test at the first
    assert PAGE.choice(gather(tmp_path)) == ""  # a part of the grid chooses nothing
    run(GRID[0], 0, test=50.0, validation=30.0)
    for seed in (1, 2):
        run(100.0, seed, test=56.0 + seed, validation=10.0)
        run(1.0, seed, test=99.0, validation=99.0)  # no other seed has a say
    section = PAGE.choice(gather(tmp_path))
    found = row(section, title, "Fisher")
    assert found[:8] == ["50.0", "60.0", "59.0", "58.0", "57.0", "56.0", "55.0", "54.0"]
    assert found[8] == "100"
    assert found[9] == "57.00 ± 1.00 (3)"
    assert float(found[10].split()[0]) == pytest.approx(70, abs=0.5)
    assert float(found[11]) > 0.5
    assert float(found[12]) > 0.9
    assert "p is below 0.05 in 0 of 1 cells, and in 0 of 1 with the runs of a seed as pairs." in section
    whole, rest = commands(section)
    grid = [damped(cell, damping) for damping in GRID]
    assert sorted(trained(whole)) == expected(grid, 1, **settings)
    assert sorted(trained(rest)) == expected([damped(cell, 100.0)], 3, **settings)


def test_full_length_says_where_the_goal_stands(tmp_path):
    write(tmp_path, auto("softsort-n5-fisher-stable"), 90.0, **FULL)  # one setting that is there
    write(tmp_path, cells("table1", only="*-n5-baseline-stable"), 80.0, **FULL)
    every = [cell for cell in cells("table1", only="neuralsort-n5-*-stable") if cell.variant != "baseline"]
    write(tmp_path, [*every, *auto("neuralsort-n5-*-stable")], 70.0, **FULL)
    write(tmp_path, cells("table1", only="logistic-n10-fisher-stable"), 99.0, 2, **FULL)
    write(tmp_path, cells("table1", only="cauchy-n10-fisher-stable"), 30.0, **SHORT)
    found = gather(tmp_path)
    section = PAGE.full_length(found)
    states = {name: row(section, name)[-4:] for name in ("SoftSort n=5", "NeuralSort n=5", "Logistic network n=10")}
    assert states["SoftSort n=5"][0].endswith('(3), Fisher, "auto"')
    assert [state for *_, state, _ in states.values()] == ["reached", "not reached", "open"]
    # 90 and 70 against 84, with ten seeds of the paper's and three of ours; of one without a run nothing can be said.
    assert [p for _, p, *_ in states.values()][:2] == ["0.00", "0.00"]
    assert row(section, "Cauchy network n=15")[-3] == "–"
    assert row(section, "Logistic network n=5")[-2] == "reached"  # 80 against 75
    assert row(section, "Cauchy network n=5")[-2] == "open"  # the plain loss misses it, the others were not run
    assert row(section, "Cauchy network n=15")[-2] == "not run"
    assert row(section, "Cauchy network n=10")[-1].endswith("(3), Fisher")
    assert row(section, "Cauchy network n=10")[0] == "56.49 ± 1.02, Hessian"
    assert "Of 9 columns: 1 not reached, 2 reached, 2 open, 4 not run. The goal as a whole: not confirmed." in section


def test_the_report_and_the_page_decide_alike(tmp_path):
    write(tmp_path, [*cells("table1", numerics="stable"), *auto("*-stable")], 99.0, averaged=20.0, **FULL)
    found = gather(tmp_path)
    assert GOAL.verdict(found.sorting[:1]).judgements[0].status is Status.CONFIRMED
    assert GOAL_AVERAGED.verdict(found.sorting[:1]).judgements[0].status is Status.UNCONFIRMED
    section = PAGE.full_length(found)
    assert "Of 9 columns: 9 reached. The goal as a whole: confirmed." in section
    assert "Of 9 columns: 9 not reached. As a whole: not confirmed." in section
    assert [one.part.holds for one in standings(found.sorting[0])] == [True] * 9
    stable = [cell for cell in cells("table1") if cell.numerics == "stable"]
    runs = [line for command in commands(section) for line in trained(command)]
    assert sorted(runs) == expected([*stable, *auto("*-stable")], 3, average=True, **FULL)


def part_about_averages(section):
    """What a section says before its part about averaged weights, and that part."""
    before, after = section.split("### With averaged weights")
    return before, after


def test_full_length_keeps_averaged_weights_apart(tmp_path):
    write(tmp_path, cells("table1", only="softsort-n5-baseline-stable"), 80.0, averaged=85.0, **FULL)
    write(tmp_path, auto("softsort-n5-fisher-stable"), 81.0, averaged=84.5, **FULL)
    write(tmp_path, cells("table1", only="neuralsort-n5-hessian-stable"), 90.0, 2, averaged=89.0, **FULL)
    write(tmp_path, cells("table1", only="cauchy-n5-hessian-stable"), 90.0, **FULL)  # nobody averaged here
    section = PAGE.full_length(gather(tmp_path))
    trained_ones, averaged = part_about_averages(section)
    assert [row(trained_ones, f"{name} n=5")[-2] for name in ("SoftSort", "NeuralSort", "Cauchy network")] == [
        "open",
        "open",
        "reached",
    ]
    assert "Of 9 columns: 2 open, 6 not run, 1 reached. The goal as a whole: not yet tested." in trained_ones
    standing, plain, fisher = rows(averaged, "SoftSort n=5")
    assert re.fullmatch(r"8[45]\.\d\d ± \d\.\d\d \(3\), plain", standing[1])
    assert re.fullmatch(r"\+[01]\.\d\d", standing[2])
    assert standing[3] == "reached"
    assert [plain[0], fisher[0]] == ["plain", 'Fisher, "auto"']
    assert [round(float(text.split()[0])) for text in plain[1:]] == [80, 85, 5]
    assert re.fullmatch(r"\+\d\.\d\d ± 0\.\d\d", plain[3])
    standing, hessian = rows(averaged, "NeuralSort n=5")
    assert standing[-1] == "open"  # two seeds decide nothing
    assert re.fullmatch(r"−[01]\.\d\d ± 0\.\d\d", hessian[3])  # a loss is told like a gain
    assert rows(averaged, "Cauchy network n=5") == [["85.11 ± 0.78, Hessian", "not run", "–", "not run"]]
    assert "Of 9 columns: 1 open, 1 reached, 7 not run. As a whole: not yet tested." in averaged
    assert "above zero in 1 of 1 settings with the plain loss and in 1 of 2 settings with curvature" in averaged
    assert AVERAGING in averaged


def test_averages_that_nobody_ran_are_no_table(tmp_path):
    write(tmp_path, cells("table1", only="softsort-n5-baseline-stable"), 99.0, **FULL)
    before, averaged = part_about_averages(PAGE.full_length(gather(tmp_path)))
    assert row(before, "SoftSort n=5")[-2] == "reached"
    assert rows(averaged) == []
    assert "\nNot run.\n" in averaged
    assert all("average" in command for command in commands(averaged))


def test_how_figures_are_chosen_is_said_once():
    page = (REPOSITORY / "docs" / "evidence.md").read_text()
    assert page.count(SELECTION) == 1
    assert page.count("best validation") == 1


def test_every_command_of_the_page_has_something_to_run():
    section = (REPOSITORY / "docs" / "evidence.md").read_text()
    found = [command for command in commands(section) if not command.startswith("report ")]
    assert len(found) > 5
    assert all(len(trained(command)) > 0 for command in found)


@pytest.mark.parametrize("left_out", [(), (0,), (0, 5), (1, 2, 7), tuple(range(11))])
def test_grids_have_every_point_once(left_out):
    points = [one for place, one in enumerate(product("ab", (1, 2, 3), "xy")) if place not in left_out]
    found = [point for grid in grids(points) for point in product(*grid)]
    assert sorted(found) == sorted(points)
