"""Files in a folder of results that nobody knows the origin of: each counts or is left out, and the report is made."""

import json
import math
from pathlib import Path

import pytest
from run_folders import write_run

from newton_losses_bench.cells import cells
from newton_losses_bench.report import write_report
from newton_losses_bench.report._convex import convex_losses, convex_table, convex_verdict
from newton_losses_bench.report._evidence import gather
from newton_losses_bench.report._figures import _curve, path_panels, sorting_panels
from newton_losses_bench.report._measured import Measured
from newton_losses_bench.store import read_record

NONSENSE = (
    None,
    True,
    "x",
    "\ud800",
    [],
    [1, [2]],
    {},
    {"a": {}},
    0,
    -1,
    1e308,
    10**400,
    math.inf,
    -math.inf,
    math.nan,
)
TIMED = "torch 2.11.0, Made-up GPU\n{}sorting n=5  softsort fisher 1.10 ms/step\n"
PLAIN = "sorting n=5  softsort none 1.00 ms/step\n"


def folder_of_a_run(results: Path, number: int, key: str = "softsort-n5-fisher-stable") -> Path:
    cell = cells("table1", only=key)[0]
    figures = {"exact_match": 80.0, "element_wise": 90.0}
    config = cell.make(seed=number, steps=100_000, device="cpu")
    return write_run(results / str(number), config, figures, averaged=figures)


def put(content, place, value):
    """Replace what is at a place in a JSON object."""
    *parents, last = place
    for name in parents:
        content = content[name]
    content[last] = value


def change(file: Path, place, value) -> None:
    """Replace what is at a place in every line of a file of JSON."""
    changed = []
    for line in file.read_text().splitlines():
        content = json.loads(line)
        put(content, place, value)
        changed.append(json.dumps(content))
    file.write_text("\n".join(changed))


def places(content, depth=3):
    """All places in a JSON object, but for those in its configuration."""
    for name, value in content.items():
        yield (name,)
        if isinstance(value, dict) and depth > 1 and name != "configuration":
            yield from ((name, *rest) for rest in places(value, depth - 1))


@pytest.mark.parametrize("file", ["result.json", "evaluations.jsonl", "config.json"])
def test_runs_with_nonsense_anywhere(tmp_path, file):
    results, number = tmp_path / "results", 0
    first = folder_of_a_run(results, 0)
    for place in places(json.loads((first / file).read_text().splitlines()[0])):
        for value in NONSENSE:
            number += 1
            change(folder_of_a_run(results, number) / file, place, value)
    for other in range(number + 1, number + 1 + len(NONSENSE)):  # and runs that were only begun
        folder = folder_of_a_run(results, other)
        (folder / "result.json").unlink()
        change(folder / "evaluations.jsonl", ("step",), NONSENSE[other - number - 1])
    write_report(results, tmp_path / "site")
    assert (tmp_path / "site" / "index.html").stat().st_size > 10_000


@pytest.mark.parametrize("place", [("step",), ("test",), ("test", "exact_match"), ("averaged",), ("averaged", "test")])
def test_a_curve_of_nonsense_leaves_that_of_the_others(tmp_path, place):
    good = folder_of_a_run(tmp_path, 0)
    averaged = place[0] == "averaged"
    for number, value in enumerate(NONSENSE, 1):
        folder = folder_of_a_run(tmp_path, number)
        change(folder / "evaluations.jsonl", place, value)
        line = _curve("x", 0, [read_record(folder), read_record(good)], "exact_match", averaged=averaged)
        makes_sense = place == ("test", "exact_match") and value == 0 and value is not False
        assert line.label == ("x" if makes_sense else "x (1 seed)"), value
        assert [step for step, _ in line.points] == [20_000.0, 40_000.0, 60_000.0, 80_000.0, 100_000.0]


def test_curves_of_nonsense_alone_are_no_panel(tmp_path):
    for number, value in enumerate(NONSENSE):
        change(folder_of_a_run(tmp_path, number, "softsort-n5-fisher") / "evaluations.jsonl", ("step",), value)
    found = gather(tmp_path)
    assert sorting_panels(found.sorting[0]) == []
    assert path_panels(found.paths[0]) == []


def test_accuracies_beyond_their_range_are_left_out(tmp_path):
    for number, value in enumerate((-50.0, 150.0, 80.0)):
        change(folder_of_a_run(tmp_path, number) / "result.json", ("test", "exact_match"), value)
    found = gather(tmp_path)
    assert [record.seed for record in found.measured.records] == [2]
    assert len(found.notes) == 2


@pytest.mark.parametrize(
    "line",
    [
        "sorting n=5  softsort none 1.2.3 ms/step\n",
        "sorting n=5  softsort none 0.00 ms/step\n",
        "sorting n=5  softsort none " + "9" * 400 + " ms/step\n",
        "sorting n=5  bubblesort none 1.00 ms/step\n",
        "paths  softsort none 1.00 ms/step\n",
    ],
    ids=["no number", "nought", "too long", "unknown", "of the other task"],
)
def test_timings_of_nonsense_are_noted_and_leave_the_others(tmp_path, line):
    (tmp_path / "step_a.txt").write_text(TIMED.format(line))
    (tmp_path / "step_b.txt").write_text(TIMED.format(PLAIN))
    found = gather(tmp_path)
    assert [one.ratio("softsort-n5", "fisher") for one in found.timings] == [None, pytest.approx(1.1)]
    assert found.timings[0].steps == {"softsort-n5": {"fisher": 1.1}}
    assert [note.split(":")[0] for note in found.notes] == ["step_a.txt"]


def test_a_run_without_a_time_is_no_timing(tmp_path):
    for number, cell in enumerate(cells("runtimes", only="softsort-n5")):
        for value in NONSENSE:
            folder = tmp_path / f"{cell.key}-{value!r:.8}"
            write_run(folder, cell.make(seed=number, device="cpu", **cell.protocol), {"exact_match": 80.0})
            change(folder / "result.json", ("milliseconds_per_step",), value)
    write_report(tmp_path, tmp_path / "site")


def test_folders_with_the_names_of_files(tmp_path):
    names = ("step_a.txt", "cvxpy/a.json", "run/result.json", "b/config.json", "c/evaluations.jsonl")
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    good = folder_of_a_run(tmp_path, 0)
    (good / "evaluations.jsonl").unlink()
    (good / "evaluations.jsonl").mkdir()
    write_report(tmp_path, tmp_path / "site")
    notes = gather(tmp_path).notes
    assert {note.split(":")[0] for note in notes} == {"step_a.txt", "cvxpy/a.json", str(good)}


@pytest.mark.parametrize("name", ["seed", "baseline", "fisher"])
def test_losses_of_nonsense(tmp_path, name):
    (tmp_path / "cvxpy").mkdir()
    for number, value in enumerate([*NONSENSE, [0.0], [math.nan], ["x"]]):
        run = {"seed": 0, "baseline": [1.0], "fisher": [0.5], name: value}
        (tmp_path / "cvxpy" / f"{number}.json").write_text(json.dumps({"runs": [run, {**run, "seed": 1}]}))
    (tmp_path / "cvxpy" / "deep.json").write_text("[" * 100_000)
    found, notes = convex_losses(tmp_path, Measured([]))
    assert convex_table(found, "t", "").rows
    assert convex_verdict(found).judgements
    assert notes[-1].startswith("cvxpy/deep.json: ")


def test_a_loss_of_nought_is_shown(tmp_path):
    (tmp_path / "cvxpy").mkdir()
    runs = [{"seed": 0, "baseline": [0.0], "fisher": [0.5]}, {"seed": 1, "baseline": [1.0], "fisher": [0.5]}]
    (tmp_path / "cvxpy" / "a.json").write_text(json.dumps({"runs": runs}))
    row = convex_table(gather(tmp_path).convex, "t", "").rows[-1]
    assert [cell.text for cell in row[1:4]] == ["1 of 2", "0.000 → 0.500", "1.000 → 0.500"]
