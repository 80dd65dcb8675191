"""The command under torchrun, as a person starts it: `torchrun --nproc-per-node 2 -m newton_losses train …`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from newton_losses_bench.config import SortingConfig
from newton_losses_bench.loop import run
from newton_losses_bench.store import read_checkpoint

SETTINGS = {"data": "digits", "digits": 1, "batch_size": 8, "eval_every": 25, "device": "cpu"}
LENGTHS = {"steps": 200, "validation_sets": 20, "test_sets": 20}
CONFIG = SortingConfig(algorithm="softsort", curvature="fisher", n=3, **SETTINGS, **LENGTHS)
OPTIONS = [
    # Not --n: torchrun would take that for an abbreviation of its own options.
    *("train", "sorting", "-a", "softsort", "-c", "fisher", "-n", "3"),
    *(f"--{name.replace('_', '-')}={value}" for name, value in {**SETTINGS, **LENGTHS}.items()),
]


@contextmanager
def torchrun(
    *options: str, launcher: tuple[str, ...] = (), limit: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Two ranks of the command; both streams as one. They are gone at the end, whatever happens."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *launcher]
    shell = f"ulimit -f {limit}; exec " if limit else "exec "
    words = " ".join(f"'{word}'" for word in [*start, "-m", "newton_losses", *options])
    process = subprocess.Popen(
        ["bash", "-c", shell + words], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        for pid in workers(process):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def workers(process: subprocess.Popen[str]) -> list[int]:
    """The processes that torchrun has started, by rank."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout
    found = {}
    for pid in children.split():
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks = [entry for entry in entries if entry.startswith(b"RANK=")]
        if ranks:
            found[int(ranks[0][5:])] = int(pid)
    return [found[rank] for rank in sorted(found)]


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{path.name} never came"
        time.sleep(0.02)


def finish_alone(folder: Path) -> dict[str, object]:
    result = run(CONFIG, str(folder))
    assert result["steps"] == 200
    lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(25, 201, 25))
    return result


def test_a_polite_stop_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with torchrun(*OPTIONS, "--out", str(folder)) as process:
        wait_for(folder / "checkpoint.pt", process)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=60)[0]
    assert output.count("everything is saved") == 1, output
    assert "torchrun --nproc-per-node 2 -m newton_losses train sorting" in output
    step = int(output.split("stopped after step ")[1].split(";")[0])
    assert read_checkpoint(folder / "checkpoint.pt")["step"] == step
    assert finish_alone(folder)["ranks"] == 1


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_in_words_and_one_rank_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with torchrun(*OPTIONS, "--out", str(folder)) as process:
        wait_for(folder / "checkpoint.pt", process)
        os.kill(workers(process)[1], signal.SIGKILL)
        output = process.communicate(timeout=60)[0]
        assert process.returncode != 0
    assert "another rank of this run has ended" in output, output
    finish_alone(folder)


@pytest.mark.slow
def test_torchrun_may_start_the_ranks_anew_by_itself(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with torchrun(*OPTIONS, "--out", str(folder), launcher=("--max-restarts=2",)) as process:
        wait_for(folder / "checkpoint.pt", process)
        os.kill(workers(process)[0], signal.SIGKILL)
        output = process.communicate(timeout=120)[0]
        assert process.returncode == 0, output
    assert "going on after step" in output
    assert output.count("finished: test") == 1
    assert json.loads((folder / "result.json").read_text())["ranks"] == 2


@pytest.mark.slow
def test_a_full_disk_is_told_once_and_ends_all(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with torchrun(*OPTIONS, "--out", str(folder), limit=100) as process:
        output = process.communicate(timeout=120)[0]
        assert process.returncode != 0
    assert output.count("disk or your quota is full") == 1, output
    finish_alone(folder)


@pytest.mark.slow
def test_mistakes_are_told_once(tmp_path: Path) -> None:
    with torchrun(*OPTIONS, "--steps=0", "--out", str(tmp_path / "run")) as process:
        output = process.communicate(timeout=120)[0]
        assert process.returncode != 0
    assert output.count("error: --steps 0") == 1, output


@pytest.mark.slow
def test_several_seeds(tmp_path: Path) -> None:
    short = ("--steps=4", "--seeds=0-1", "--out", str(tmp_path / "runs"))
    with torchrun(*OPTIONS, *short) as process:
        output = process.communicate(timeout=120)[0]
        assert process.returncode == 0, output
    assert output.count("finished: test") == 2
    assert output.count("over 2 seeds") == 2  # two figures
    assert (tmp_path / "runs" / "seed-1" / "result.json").exists()
