"""Two processes in one folder, a disk that is really full, and a clock that goes backwards."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from train_processes import command, config, environment, start

from newton_losses_bench.store import read_checkpoint
from newton_losses_bench.train import run


def test_a_second_process_in_the_folder_is_refused_and_disturbs_nothing(tmp_path: Path) -> None:
    """It says whose the folder is, and the first one ends as if it had been alone. That one pauses meanwhile."""
    folder = tmp_path / "run"
    first = start(command(60, 20, folder))
    while not (folder / "checkpoint.pt").exists():
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)
    second = start([*command(60, 20, folder), "--overwrite"])
    output = second.communicate(timeout=120)[0]
    assert second.returncode == 2, output
    assert f"in use by another run (process {first.pid})" in output
    first.send_signal(signal.SIGCONT)
    output = first.communicate(timeout=120)[0]
    assert first.returncode == 0, output
    run(config(60, 20), str(tmp_path / "alone"))
    assert (folder / "evaluations.jsonl").read_bytes() == (tmp_path / "alone" / "evaluations.jsonl").read_bytes()


def interrupted(folder: Path, pauses: list[float]) -> tuple[int, str]:
    """A long run that gets Ctrl-C after each of these seconds, once it trains; its exit code and what it says."""
    process = start(command(1_000_000, 20, folder))
    while not (folder / "checkpoint.pt").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    for pause in pauses:
        time.sleep(pause)
        process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=120)[0]
    return process.returncode, output


def test_control_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, output = interrupted(folder, [0.0])
    assert code == 130
    step = read_checkpoint(folder / "checkpoint.pt")["step"]
    assert f"stopped after step {step}; everything is saved. The same command resumes:" in output
    assert "newton-losses train sorting -a softsort --data=digits" in output


@pytest.mark.parametrize("pause", [0.0, 0.001, 0.003, 0.01])
def test_a_second_control_c_ends_in_a_sentence(tmp_path: Path, pause: float) -> None:
    """Wherever it arrives: in a step, while saving, or when the run has ended already."""
    code, output = interrupted(tmp_path / "run", [0.05, pause])
    # Python may be shutting down already, where the signal itself ends it: a shell calls both 130.
    assert code in (130, -signal.SIGINT)
    assert "Traceback" not in output
    assert "stopped" in output.splitlines()[-1] or "newton-losses train" in output.splitlines()[-1]
    # Between the two renames of a save there is only the previous one, which a resumed run takes then.
    names = ("checkpoint.pt", "checkpoint.previous.pt")
    newest = next(tmp_path / "run" / name for name in names if (tmp_path / "run" / name).exists())
    assert read_checkpoint(newest)["step"] > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with room for one checkpoint and a half."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk takes the rights of root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount here")
def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    """The run ends with a sentence, keeps what it had, and resumes once there is room."""
    folder = small_disk / "run"
    full = start(command(6, 2, folder))
    output = full.communicate(timeout=120)[0]
    assert full.returncode == 2, output
    assert "No space left on device" in output
    assert "The disk or your quota is full. Free some space and rerun the command" in output
    assert "Traceback" not in output
    left = sorted(path.name for path in folder.iterdir() if "tmp" in path.name or "new" in path.name)
    assert left == []
    saved = read_checkpoint(folder / "checkpoint.pt")["step"]
    assert saved > 0
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    result = run(config(6, 2), str(folder))
    whole = run(config(6, 2), str(tmp_path / "whole"))
    assert result["final"] == whole["final"]
    assert (folder / "evaluations.jsonl").read_bytes() == (tmp_path / "whole" / "evaluations.jsonl").read_bytes()


# Imported by Python at its start: every look at the clock is an hour before the last one.
BACKWARDS = """
import time
_real, _calls = time.time, [0]
def _backwards():
    _calls[0] += 1
    return _real() - 3600.0 * _calls[0]
time.time = _backwards
time.time_ns = lambda: int(_backwards() * 1e9)
"""


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path) -> None:
    """Neither in the process nor in the times of the files: some are in the future, the newest is the oldest."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    wanted = run(config(8, 2), str(whole))
    run(config(8, 2), str(folder))
    # As after a kill in the last epoch, with a clock that was wrong then.
    (folder / "result.json").unlink()
    shutil.move(folder / "checkpoint.previous.pt", folder / "checkpoint.pt")
    assert read_checkpoint(folder / "checkpoint.pt")["step"] == 6
    for place, name in enumerate(sorted(path.name for path in folder.iterdir())):
        moment = time.time() + (10 - place) * 1e6
        os.utime(folder / name, (moment, moment))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BACKWARDS)
    process = start(command(8, 2, folder), env=environment(tmp_path / "site"))
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    result = json.loads((folder / "result.json").read_text())
    assert result["final"] == wanted["final"]
    assert result["seconds"] >= 0
    assert result["milliseconds_per_step"] > 0
    assert (folder / "evaluations.jsonl").read_bytes() == (whole / "evaluations.jsonl").read_bytes()
    states = [read_checkpoint(place / "checkpoint.pt")["tensors"] for place in (folder, whole)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])


def test_the_backward_clock_does_go_backwards(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BACKWARDS)
    script = "import time; first = time.time(); print(time.time() < first - 3000)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"
