"""Packed runs: the same records as from their folders, added without loss, and never read when damaged."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from newton_losses import ArgumentError
from newton_losses_bench.cli.app import app
from newton_losses_bench.config import SortingConfig, run_name
from newton_losses_bench.store import RunError, RunFolder, Store, pack
from newton_losses_bench.store.atomic_io import checksum

BASE = SortingConfig(algorithm="softsort", steps=20, average=True, device="cpu").resolved()


def finish(path: Path, seed: int, figure: float = 50.0, *, finished: bool = True) -> Path:
    """A run folder as training leaves it, with figures that are no round numbers."""
    config = replace(BASE, seed=seed)
    ends = [{"step": 10 * k, "loss": 0.1 / k, "test": {"exact_match": figure + k / 3}} for k in (1, 2)]
    with RunFolder(path / run_name(config.to_dict()), config) as folder:
        for one in ends:
            folder.save({"step": one["step"]}, one)
        if finished:
            folder.finish({
                "configuration": config.to_dict(), "test": ends[-1]["test"], "reported": ends[-1], "final": ends[-1],
                "averaged": ends[0], "steps": 20, "seconds": 1.5, "milliseconds_per_step": 75.0,
            })  # fmt: skip
    return folder.path


@pytest.fixture
def runs(tmp_path):
    """A folder with three finished runs, at two depths."""
    for place, seed in (("runs", 0), ("runs", 1), ("runs/a day", 2)):
        finish(tmp_path / place, seed)
    return tmp_path / "runs"


def by_identity(store):
    return {record.identity: replace(record, path=Path(record.path.name)) for record in store.records()}


def test_packed_runs_are_the_records_of_their_folders(runs, tmp_path):
    before = by_identity(Store(runs))
    found = pack([runs], tmp_path / "packed" / "all.jsonl")
    assert len(found.added) == 3
    assert found.notes == found.known == []
    store = Store(tmp_path / "packed")
    assert by_identity(store) == before
    assert store.notes == []
    assert {record.path.parent.name for record in store.records()} == {"all.jsonl", "a day"}
    assert store.unfinished() == []


def test_folders_and_packed_files_lie_side_by_side(runs, tmp_path):
    pack([runs / "a day"], runs / "a day.jsonl")
    finish(runs, 3)
    store = Store(runs)
    assert sorted(record.seed for record in store.records()) == [0, 1, 2, 3]
    (note,) = store.notes
    assert "the same run as" in note
    shutil.rmtree(runs / "a day")
    assert sorted(record.seed for record in store.records()) == [0, 1, 2, 3]
    assert store.notes == []


def test_packing_again_changes_nothing_and_packing_more_adds(runs, tmp_path):
    out = tmp_path / "all.jsonl"
    pack([runs], out)
    before = out.read_bytes()
    assert len(pack([runs], out).known) == 3
    assert out.read_bytes() == before
    finish(runs, 4)
    assert len(pack([runs], out).added) == 1
    assert out.read_bytes().startswith(before)
    assert sorted(tmp_path.iterdir()) == [out, runs]  # nothing temporary is left


def test_what_is_not_finished_is_named_and_left_out(runs, tmp_path):
    begun = finish(runs, 5, finished=False)
    found = pack([runs], tmp_path / "all.jsonl")
    assert len(found.added) == 3
    assert found.notes == [f"{begun}: not finished, and left out."]


def damage_result(folder):
    path = folder / "result.json"
    path.write_text(path.read_text().replace("1.5", "1.6"))


def damage_evaluations(folder):
    path = folder / "evaluations.jsonl"
    path.write_text(path.read_text()[:-9])


@pytest.mark.parametrize("damage", [damage_result, damage_evaluations])
def test_a_damaged_run_is_refused_and_the_file_stays(runs, tmp_path, damage):
    out = tmp_path / "all.jsonl"
    pack([runs / "a day"], out)
    before = out.read_bytes()
    damage(Store(runs).records()[-1].path)
    with pytest.raises(RunError, match="damaged"):
        pack([runs], out)
    assert out.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [out, runs]


def test_two_contents_of_one_name_are_refused(runs, tmp_path):
    out = tmp_path / "all.jsonl"
    pack([runs], out)
    finish(tmp_path / "others", 0, figure=60.0)
    with pytest.raises(RunError, match="another content"):
        pack([tmp_path / "others"], out)
    with pytest.raises(ArgumentError, match="would both be called"):
        pack([runs, tmp_path / "others"], tmp_path / "new.jsonl")


def test_a_file_that_holds_something_else_is_not_extended(runs, tmp_path):
    out = tmp_path / "notes.jsonl"
    out.write_text('{"seed": 0}\n')
    with pytest.raises(ArgumentError, match="holds no packed runs"):
        pack([runs], out)
    assert out.read_text() == '{"seed": 0}\n'
    for name in ("runs.json", "evaluations.jsonl"):
        with pytest.raises(ArgumentError, match="ends in"):
            pack([runs], tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match="No finished run"):
        pack([tmp_path / "empty"], tmp_path / "new.jsonl")


def changed(text):
    return text.replace("50.3333", "90.3333")


def torn(text):
    return text[: len(text) // 2] + "\n"


def without_result(text):
    line = json.loads(text)
    del line["result"]
    return json.dumps(line) + "\n"


@pytest.mark.parametrize("damage", [changed, torn, without_result])
def test_a_damaged_line_is_noted_left_out_and_not_packed_upon(runs, tmp_path, damage):
    out = tmp_path / "packed" / "all.jsonl"
    pack([runs], out)
    first, second, third = out.read_text().splitlines(keepends=True)
    out.write_text(first + damage(second) + third)
    store = Store(out.parent)
    assert len(store.records()) == 2
    (note,) = store.notes
    assert "all.jsonl, line 2: left out" in note
    with pytest.raises(RunError, match="line 2"):
        pack([runs], out)


@pytest.mark.parametrize("part", ["configuration", "environment", "evaluations", "result"])
@pytest.mark.parametrize("nonsense", [3, "text", [3], None, {"task": "sorting"}])
def test_a_line_of_nonsense_is_noted_although_its_checksum_is_right(runs, tmp_path, part, nonsense):
    out = tmp_path / "packed" / "all.jsonl"
    pack([runs], out)
    first, *others = out.read_text().splitlines()
    line = {**json.loads(first), part: nonsense}
    del line["sha256"]
    out.write_text("\n".join([json.dumps({**line, "sha256": checksum(line)}), *others]) + "\n")
    store = Store(out.parent)
    # An environment may hold anything.
    is_fine = part == "environment" and isinstance(nonsense, dict)
    assert (len(store.records()), len(store.notes)) == ((3, 0) if is_fine else (2, 1))


def test_other_files_of_lines_are_no_runs(runs):
    (runs / "table.jsonl").write_text('{"arm": "fisher", "seed": 0}\n[1, 2]\n')
    store = Store(runs)
    assert len(store.records()) == 3
    assert store.notes == []


def test_a_line_before_the_runs_is_noted_and_empty_lines_are_not(runs, tmp_path):
    out = tmp_path / "packed" / "all.jsonl"
    pack([runs], out)
    out.write_text('{"comment": "of June"}\n\n' + out.read_text().replace("\n", "\n \n"))
    store = Store(out.parent)
    assert len(store.records()) == 3
    (note,) = store.notes
    assert note.endswith(f"{out}, line 1: left out, not a packed run.")
    with pytest.raises(RunError, match="line 1: left out, not a packed run"):
        pack([runs], out)


def test_the_command(runs, tmp_path):
    out = tmp_path / "all.jsonl"
    first = CliRunner().invoke(app, ["pack", str(runs), "--out", str(out)])
    assert (first.exit_code, first.stdout) == (0, f"{out}: 3 runs added.\n")
    again = CliRunner().invoke(app, ["pack", str(runs), "--out", str(out)])
    assert again.stdout == f"{out}: 0 runs added, 3 already there.\n"
    one = CliRunner().invoke(app, ["pack", str(runs / "a day"), "--out", str(tmp_path / "one.jsonl")])
    assert one.stdout.endswith(": 1 run added.\n")
    assert CliRunner().invoke(app, ["pack", str(tmp_path / "none"), "--out", str(out)]).exit_code == 2
