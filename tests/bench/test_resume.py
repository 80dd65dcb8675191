"""A run that is killed at any moment resumes to the same result, to the last bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from newton_losses_bench.store import read_checkpoint

RANDOM_KILLS = [10, pytest.param(50, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=RANDOM_KILLS)
def killed(tmp_path_factory, request):
    """Folders of runs that were killed, how often each was, and at how many random moments at least."""
    base = tmp_path_factory.mktemp("killed")
    worker = Path(__file__).with_name("killed_runs.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(worker), str(base), str(request.param)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return base, json.loads(done.stdout), request.param


def result_of(folder):
    result = json.loads((folder / "result.json").read_text())
    # How long it took is the one thing that may differ, and with it the sum over everything.
    timing = ("seconds", "milliseconds_per_step", "sha256")
    return {name: value for name, value in result.items() if name not in timing}


@pytest.mark.parametrize("task", ["sorting", "paths"])
def test_a_killed_run_ends_as_if_nothing_had_happened(killed, task):
    base, report, _ = killed
    whole = base / task / "whole"
    final = read_checkpoint(whole / "checkpoint.pt")
    for name in report[task]:
        folder = base / task / name
        assert (folder / "evaluations.jsonl").read_bytes() == (whole / "evaluations.jsonl").read_bytes(), name
        assert result_of(folder) == result_of(whole), name
        found = read_checkpoint(folder / "checkpoint.pt")
        assert found["step"] == final["step"]
        for kind in ("tensors", "generators"):
            assert found[kind].keys() == final[kind].keys()
            assert all(torch.equal(found[kind][key], final[kind][key]) for key in final[kind]), name
        weights = [torch.load(place / "weights.pt", weights_only=True) for place in (folder, whole)]
        assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[1]), name


@pytest.mark.parametrize("task", ["sorting", "paths"])
def test_the_kills_did_happen(killed, task):
    _, report, random_kills = killed
    kills = report[task]
    # A run has more calls that touch the disk than the last number, so each of these is one kill.
    assert all(kills[name] == 1 for name in kills if name.startswith("call-"))
    assert sum(kills[name] for name in kills if name.startswith("random-")) >= random_kills
