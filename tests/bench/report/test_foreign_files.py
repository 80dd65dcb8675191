"""Files of unknown origin in a folder of results: each counts or is named and left out, and the report is made."""

import json
import math
from pathlib import Path

import pytest
from run_folders import write_run

from cli.running import command
from newton_losses_bench.cells import cells
from newton_losses_bench.report import compose, gather, write_report
from newton_losses_bench.report.figures import learning_curves

NONSENSE = (
    *(None, True, "x", "\ud800", [], [1, [2]], {}, {"a": {}}),
    *(0, -1, 1e308, 10**400, math.inf, -math.inf, math.nan),
)


def folder_of_a_run(results: Path, number: int, key: str = "softsort-n5-fisher") -> Path:
    figures = {"exact_match": 80.0, "element_wise": 90.0}
    config = cells("table1", only=key)[0].make(seed=number, steps=100_000, device="cpu")
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
    """All places in a JSON object, except those in its configuration."""
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
    write_report(results, tmp_path / "report")
    assert (tmp_path / "report" / "index.html").stat().st_size > 10_000


def test_settings_with_nonsense_anywhere(tmp_path):
    for cell in (cells("table1", only="softsort-n5-fisher")[0], cells("table3", only="fenchel-young-3-hessian")[0]):
        config = cell.make(seed=0, device="cpu")
        for name in config.to_dict():
            for number, value in enumerate(NONSENSE):
                folder = write_run(tmp_path / f"{cell.key}-{name}-{number}", config, {"exact_match": 50.0})
                for file in ("config.json", "result.json"):
                    change(folder / file, ("configuration", name), value)
    write_report(tmp_path, tmp_path / "report")


@pytest.mark.parametrize("place", [("step",), ("test",), ("test", "exact_match")])
def test_a_curve_of_nonsense_leaves_that_of_the_others(tmp_path, place):
    folder_of_a_run(tmp_path, 0)
    for number, value in enumerate(NONSENSE, 1):
        change(folder_of_a_run(tmp_path, number) / "evaluations.jsonl", place, value)
    (figure,) = learning_curves(gather(tmp_path).full)
    label = "Fisher" if place == ("test", "exact_match") else "Fisher (1 seed)"  # 0 is an accuracy
    assert [name for name, *_ in figure.legend] == [label]
    assert not any(word in figure.svg for word in ("nan", "inf"))


def test_curves_of_nonsense_alone_are_no_figure(tmp_path):
    for number, value in enumerate(NONSENSE):
        change(folder_of_a_run(tmp_path, number) / "evaluations.jsonl", ("step",), value)
    assert learning_curves(gather(tmp_path).full) == []


def test_accuracies_beyond_their_range_are_named_and_left_out(tmp_path):
    for number, value in enumerate((-50.0, 150.0, 80.0, math.nan)):
        change(folder_of_a_run(tmp_path, number) / "result.json", ("test", "exact_match"), value)
    change(folder_of_a_run(tmp_path, 4) / "result.json", ("averaged", "test", "exact_match"), math.nan)
    found = gather(tmp_path)
    assert [record.seed for record in found.index.records] == [2]
    assert sorted(note.split(":")[0] for note in found.notes) == ["0", "1", "3", "4"]


def test_the_command_says_how_much_was_left_out(tmp_path):
    results, more = tmp_path / "results", ("--out", str(tmp_path / "report"))
    folder_of_a_run(results, 0)
    change(folder_of_a_run(results, 1) / "result.json", ("test", "exact_match"), 150.0)
    folder_of_a_run(results, 2)
    (results / "2" / "result.json").unlink()  # unfinished, which is no reason to say anything
    said = command("report", "--results", str(results), *more)[1]
    assert "1 run or line of a file was left out; the page says which and why" in said
    (results / "packed.jsonl").write_text("torn\n\n")
    said = command("report", "--results", str(results), *more)[1]
    assert "2 runs or lines of files were left out; the page says which and why" in said


def test_folders_with_the_names_of_files(tmp_path):
    for name in ("run/result.json", "b/config.json", "c/evaluations.jsonl"):
        (tmp_path / name).mkdir(parents=True)
    good = folder_of_a_run(tmp_path, 0)
    (good / "evaluations.jsonl").unlink()
    (good / "evaluations.jsonl").mkdir()
    found = gather(tmp_path)
    assert {note.split(":")[0] for note in found.notes} == {"0"}
    compose(found)
