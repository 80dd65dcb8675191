"""Several runs in a real process that is killed, or asked to stop."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from typer.testing import CliRunner

from newton_losses_bench.cli.app import app
from newton_losses_bench.store import read_checkpoint

LONG = [
    *("train", "sorting", "--data", "digits", "--digits", "1", "-n", "3", "--steps", "60", "--eval-every", "20"),
    *("--batch-size", "4", "--validation-sets", "10", "--test-sets", "10", "--device", "cpu", "--seeds", "0-2"),
]


def start(out, *more):
    worker = Path(__file__).with_name("together_worker.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(worker), *LONG, "--out", str(out), *more],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)


def test_killed_runs_go_on_with_the_same_command(tmp_path):
    killed = start(tmp_path / "runs")
    wait_for(tmp_path / "runs" / "seed-1" / "checkpoint.pt", killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert not any((tmp_path / "runs" / f"seed-{seed}" / "result.json").exists() for seed in range(3))
    again = start(tmp_path / "runs", "--json")
    output, complaint = again.communicate(timeout=120)
    assert again.returncode == 0, complaint
    events = [json.loads(line) for line in output.splitlines()]
    assert {event["seed"] for event in events[:-1]} == {0, 1, 2}
    assert any(event["step"] > 0 for event in events if event["event"] == "started")
    assert CliRunner().invoke(app, [*LONG, "--out", str(tmp_path / "whole")]).exit_code == 0
    for seed in range(3):
        names = ("evaluations.jsonl", "weights.pt")
        found, wanted = (tmp_path / base / f"seed-{seed}" for base in ("runs", "whole"))
        assert all((found / name).read_bytes() == (wanted / name).read_bytes() for name in names)


def test_control_c_saves_all_and_says_how_to_go_on(tmp_path):
    process = start(tmp_path / "runs", "--steps", "100000", "--eval-every", "100000")
    starts = [process.stdout.readline() for _ in range(3)]
    assert [line.split(":")[0] for line in starts] == ["seed 0", "seed 1", "seed 2"]
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, complaint = process.communicate(timeout=60)
    assert process.returncode == 130, complaint
    assert complaint.startswith("stopped after step ")
    assert "newton-losses train sorting --data digits" in complaint
    steps = [read_checkpoint(tmp_path / "runs" / f"seed-{seed}" / "checkpoint.pt")["step"] for seed in range(3)]
    assert complaint.startswith(f"stopped after step {min(steps)};")
    for seed, step in enumerate(steps):
        assert f"seed {seed}: saved after step {step}" in output
