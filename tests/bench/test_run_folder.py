"""A run folder refuses what would lose something, and says what to do."""

import json
import os
import resource
import subprocess
import sys

import pytest
import torch

from newton_losses_bench.config import PathsConfig, SortingConfig
from newton_losses_bench.machine import environment
from newton_losses_bench.store import (
    BadCheckpoint,
    RunError,
    RunFolder,
    read_checkpoint,
    read_json,
    write_atomically,
    write_checkpoint,
)

CONFIG = SortingConfig(algorithm="softsort", device="cpu").resolved()
OTHER = SortingConfig(algorithm="softsort", curvature="fisher", n=7, device="cpu").resolved()


def state(step):
    return {"step": step, "tensors": {"weight": torch.full((3,), float(step))}, "seconds": 1.5}


def record(step):
    return {"step": step, "loss": 0.1 * step}


def fill(path, steps=(1, 2, 3)):
    with RunFolder(path, CONFIG) as folder:
        for step in steps:
            folder.save(state(step), record(step))
    return path


def lines(path):
    return [json.loads(line) for line in (path / "evaluations.jsonl").read_text().splitlines()]


def test_what_was_saved_comes_back(tmp_path):
    fill(tmp_path / "run")
    with RunFolder(tmp_path / "run", CONFIG) as folder:
        found = folder.load()
        assert found["step"] == 3
        assert torch.equal(found["tensors"]["weight"], torch.full((3,), 3.0))
        assert folder.evaluations == lines(folder.path) == [record(1), record(2), record(3)]
        assert folder.result is None
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["configuration"] == json.loads(json.dumps(CONFIG.to_dict()))
    assert stored["environment"]["torch"] == torch.__version__


def test_a_new_folder_has_nothing_to_go_on_from(tmp_path):
    with RunFolder(tmp_path / "a" / "b", CONFIG) as folder:
        assert folder.load() is None


def test_a_second_process_is_refused(tmp_path):
    refused = pytest.raises(RunError, match=f"in use by another run .process {os.getpid()}")
    with RunFolder(tmp_path / "run", CONFIG), refused:
        RunFolder(tmp_path / "run", CONFIG).__enter__()
    with RunFolder(tmp_path / "run", CONFIG):
        pass  # free again


def test_another_configuration_is_refused_with_the_differences(tmp_path):
    before = sorted((p.name, p.read_bytes()) for p in fill(tmp_path / "run").iterdir() if p.name != ".lock")
    with pytest.raises(RunError) as caught:
        RunFolder(tmp_path / "run", OTHER).__enter__()
    message = str(caught.value)
    assert "--curvature: none there, fisher here" in message
    assert "--n: 5 there, 7 here" in message
    assert "--seed" not in message
    assert sorted((p.name, p.read_bytes()) for p in (tmp_path / "run").iterdir() if p.name != ".lock") == before


def test_a_setting_of_another_version_is_no_option(tmp_path):
    file = fill(tmp_path / "run") / "config.json"
    stored = {**CONFIG.to_dict(), "momentum": 0.9, "n": 7, "switched_off": False}
    file.write_text(json.dumps({"configuration": stored}))
    with pytest.raises(RunError) as caught:
        RunFolder(tmp_path / "run", CONFIG).__enter__()
    assert str(caught.value).splitlines()[1:] == [
        "  --n: 7 there, 5 here",
        "  momentum: 0.9 there, a setting that this version does not have",
        "Use the version of newton-losses that has these settings, named in its config.json, to resume it, choose "
        "another folder with --out, or add --overwrite to delete it.",
    ]
    file.write_text(json.dumps({"configuration": {**CONFIG.to_dict(), "switched_off": False, "other": None}}))
    with RunFolder(tmp_path / "run", CONFIG) as folder:
        assert folder.load()["step"] == 3


def test_a_run_of_another_task_is_refused_by_its_task(tmp_path):
    fill(tmp_path / "run")
    paths = PathsConfig(algorithm="fenchel-young", device="cpu").resolved()
    with pytest.raises(RunError, match=r"(?m)^  task: sorting there, paths here\nUse the same settings to resume it"):
        RunFolder(tmp_path / "run", paths).__enter__()


def test_a_run_resumed_with_other_versions_says_so_and_keeps_both(tmp_path, monkeypatch):
    fill(tmp_path / "run", steps=(1, 2))
    here, first = environment(), json.loads((tmp_path / "run" / "config.json").read_text())
    packages = {**here["packages"], "numpy": "9.0", "rich": "99.0"}
    there = {**here, "commit": "0123", "threads": here["threads"] + 1, "packages": packages, "command": "train again"}
    monkeypatch.setattr("newton_losses_bench.store.run_folder.environment", lambda: there)
    for again in (False, True):  # the same change is noted once
        with RunFolder(tmp_path / "run", CONFIG) as folder:
            folder.load()
            folder.save(state(3), None if again else record(3))
            assert folder.notes == ([] if again else [
                f"resuming with commit 0123 instead of {here['commit']}, threads {there['threads']} instead of "
                f"{here['threads']}, numpy 9.0 instead of {here['packages']['numpy']}: the result may differ in its "
                "last digits from that of a run without this change. config.json keeps both."
            ])  # fmt: skip
    stored = read_json(tmp_path / "run" / "config.json")
    (later,) = stored["environment"].pop("resumed")
    assert stored["environment"] == first["environment"]
    assert later.pop("started")
    assert later == {"after_step": 2, **there}
    # An early run, or one written by hand, has no environment to compare with.
    (tmp_path / "run" / "config.json").write_text(json.dumps({"configuration": CONFIG.to_dict()}))
    with RunFolder(tmp_path / "run", CONFIG) as folder:
        folder.load()
        assert folder.notes == []


def test_a_run_that_never_began_may_be_configured_again(tmp_path):
    with RunFolder(tmp_path / "run", CONFIG):
        pass  # as when the data was not there
    with RunFolder(tmp_path / "run", OTHER):
        pass
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["configuration"] == json.loads(json.dumps(OTHER.to_dict()))


def test_the_same_data_may_lie_elsewhere(tmp_path):
    fill(tmp_path / "run")
    moved = SortingConfig(algorithm="softsort", device="cpu", data_root="elsewhere").resolved()
    with RunFolder(tmp_path / "run", moved) as folder:
        assert folder.load()["step"] == 3


def test_overwrite_starts_over_and_spares_other_files(tmp_path):
    fill(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with RunFolder(tmp_path / "run", CONFIG, overwrite=True) as folder:
        # A note of the user's is neither deleted nor a reason to refuse what was asked for.
        assert folder.load() is None
        folder.save(state(1), record(1))
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    with pytest.raises(RunError, match="another configuration"):
        RunFolder(tmp_path / "run", OTHER).__enter__()


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match=r"not a run folder and holds other files .thesis.tex"):
        RunFolder(tmp_path, CONFIG).__enter__()
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder(tmp_path, CONFIG, overwrite=True).__enter__()
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    path = fill(tmp_path / "run")
    content = (path / "checkpoint.pt").read_bytes()
    flipped = content[:-200] + bytes([content[-200] ^ 1]) + content[-199:]
    (path / "checkpoint.pt").write_bytes(flipped if damage is None else damage)
    with RunFolder(path, CONFIG) as folder:
        assert folder.load()["step"] == 2
        # The lines know no more than the checkpoint that is gone on from.
        assert lines(path) == [record(1), record(2)]
        assert "Resuming from the previous one, of step 2" in folder.notes[0]


def test_two_damaged_checkpoints_are_an_error_that_changes_nothing(tmp_path):
    path = fill(tmp_path / "run")
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (path / name).write_bytes((path / name).read_bytes()[:100])
    with RunFolder(path, CONFIG) as folder, pytest.raises(RunError, match="no older one that can be read"):
        folder.load()
    assert len(lines(path)) == 3


def test_a_removed_checkpoint_is_an_error(tmp_path):
    path = fill(tmp_path / "run")
    (path / "checkpoint.pt").unlink()
    (path / "checkpoint.previous.pt").unlink()
    with RunFolder(path, CONFIG) as folder, pytest.raises(RunError, match="no checkpoint to resume from"):
        folder.load()
    assert len(lines(path)) == 3


@pytest.mark.parametrize("keep", [0, 10, -1, -5])
def test_torn_and_missing_lines_are_restored(tmp_path, keep):
    path = fill(tmp_path / "run")
    whole = (path / "evaluations.jsonl").read_bytes()
    (path / "evaluations.jsonl").write_bytes(whole[:keep])
    with RunFolder(path, CONFIG) as folder:
        folder.load()
    assert (path / "evaluations.jsonl").read_bytes() == whole


def test_a_checkpoint_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, ("touch evil",)

    write_checkpoint(tmp_path / "c.pt", {"step": Evil()})
    with pytest.raises(BadCheckpoint, match="weights"):
        read_checkpoint(tmp_path / "c.pt")


def test_a_full_disk_loses_nothing(tmp_path):
    """The kernel refuses to let files grow: as on a full disk, a write fails halfway."""
    path = fill(tmp_path / "run")
    big = {**state(4), "tensors": {"weight": torch.zeros(100_000)}}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunFolder(path, CONFIG) as folder:
        folder.load()
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        try:
            with pytest.raises(RunError, match="disk or your quota is full"):
                folder.save(big, record(4))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(path.glob("*.tmp")) + list(path.glob(".*.tmp")) + list(path.glob(".*.new"))
    with RunFolder(path, CONFIG) as folder:
        assert folder.load()["step"] == 3
        assert len(lines(path)) == 3


def test_a_read_only_folder_is_a_clear_error(tmp_path, monkeypatch):
    def refuse(self, *arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(type(tmp_path), "mkdir", refuse)
    with pytest.raises(RunError, match=r"could not be written .Read-only file system.*--out"):
        RunFolder(tmp_path / "run", CONFIG).__enter__()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_a_clear_error(tmp_path):
    path = fill(tmp_path / "run")
    path.chmod(0o500)
    try:
        (path / ".lock").chmod(0o400)
        with pytest.raises(RunError, match="--out"):
            RunFolder(path, CONFIG).__enter__()
    finally:
        path.chmod(0o700)


def test_a_failed_write_keeps_the_old_content(tmp_path, monkeypatch):
    target = tmp_path / "file"
    write_atomically(target, b"old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunError, match="No space left"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_lock_ends_with_its_process(tmp_path):
    script = f"""
import os, signal
from newton_losses_bench.config import SortingConfig
from newton_losses_bench.store import RunFolder
RunFolder({str(tmp_path)!r}, SortingConfig(algorithm="softsort", device="cpu").resolved()).__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert killed.returncode == -9
    with RunFolder(tmp_path, CONFIG):
        pass
