"""Whole runs on 1, 2 and 4 ranks are the same run; one may begin with one number of them and go on with another.

In float64. After six steps of Adam all tensors of a run agree to a relative 1e-9 (measured: 4e-12): what is left are
sums in another order. Sorting losses do not see a shift of all scores, so the gradients of some biases are zero but
for rounding, up to 1e-15; Adam takes that times rate/ε = 1e5 into the weights in each step: 6e-10 after six.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from launch import launch
from training_worker import CASES

RANKS = [2, 1, 4]  # in this order the runs of the chain go on: fewer ranks than before, then more


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    return launch("training_worker", RANKS, tmp_path_factory.mktemp("training"), seconds=300.0)


def assert_same_state(found: dict[str, Any], wanted: dict[str, Any], name: str) -> None:
    assert found["step"] == wanted["step"]
    for key, tensor in wanted["tensors"].items():
        absolute = 1e-9 if key.startswith(("model.", "average.")) else 1e-12
        torch.testing.assert_close(found["tensors"][key], tensor, rtol=1e-9, atol=absolute, msg=f"{name}: {key}")
    for key, state in wanted["generators"].items():
        assert torch.equal(found["generators"][key], state), f"{name}: {key}"
    for line, other in zip(found["evaluations"], wanted["evaluations"], strict=True):
        assert_same_record(json.loads(line), json.loads(other))


def assert_same_record(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """All figures are the same; the loss is a float64 that was summed in another order."""
    assert found.pop("loss") == pytest.approx(wanted.pop("loss"), rel=1e-9)
    assert found == wanted


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", [*CASES, "skipped"])
def test_a_run_does_not_depend_on_the_number_of_ranks(found: dict[int, list[Any]], name: str, ranks: int) -> None:
    runs = {k: found[k][0]["skipped"] if name == "skipped" else found[k][0]["whole"][name] for k in (1, ranks)}
    assert_same_state(runs[ranks]["state"], runs[1]["state"], name)
    moments = [tensor.abs().max() for key, tensor in runs[1]["state"]["tensors"].items() if key.endswith("exp_avg")]
    assert max(moments) > 1e-6  # there was a gradient to share
    assert runs[ranks]["result"]["test"] == runs[1]["result"]["test"]
    assert runs[ranks]["result"].get("averaged") == runs[1]["result"].get("averaged")
    assert runs[ranks]["result"]["ranks"] == ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_return_the_result(found: dict[int, list[Any]], ranks: int) -> None:
    for name in CASES:
        results = [rank["whole"][name]["result"] for rank in found[ranks]]
        assert all(result == results[0] for result in results), name


def test_samples_that_are_left_out_are_counted_over_all_ranks(found: dict[int, list[Any]]) -> None:
    counts = {ranks: found[ranks][0]["skipped"]["result"]["final"]["skipped_samples"] for ranks in RANKS}
    assert len(set(counts.values())) == 1
    assert counts[1] > 0


@pytest.mark.parametrize("name", ["sorting, Fisher", "paths, Fenchel-Young, Hessian"])
def test_a_run_goes_on_with_another_number_of_ranks(found: dict[int, list[Any]], name: str) -> None:
    """A signal to the last rank stops all of them after the same step, saved; then others go on."""
    for ranks, step in zip(RANKS, (2, 4, 6), strict=True):
        stopped = [rank["chain"][name]["stopped"] for rank in found[ranks]]
        assert stopped == [(step, 128 + 15)] * ranks
    last = found[RANKS[-1]][0]["chain"][name]["state"]
    assert_same_state(last, found[1][0]["whole"][name]["state"], name)


def test_ranks_with_different_runs_are_refused(found: dict[int, list[Any]]) -> None:
    for ranks in (2, 4):
        assert all("different configurations" in rank["different"] for rank in found[ranks])


@pytest.mark.gpu
def test_a_run_on_a_device_does_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    found = launch("training_gpu_worker", [1, 2], tmp_path)
    for name, alone in found[1][0].items():
        assert_same_state(found[2][0][name]["state"], alone["state"], name)


@pytest.mark.gpu
def test_each_rank_of_torchrun_has_a_device_of_its_own(tmp_path: Path) -> None:
    """With NCCL; on a machine with one GPU, two ranks are told so, once."""
    options = ["--data=digits", "--digits=1", "-n", "3", "--steps=4", "--eval-every=2", "--device=cuda"]
    sets = ["--validation-sets=20", "--test-sets=20", f"--out={tmp_path / 'run'}"]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "newton_losses"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*start, "train", "sorting", "-c", "fisher", *options, *sets],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if torch.cuda.device_count() > 1:
        assert done.returncode == 0, done.stderr
        assert json.loads((tmp_path / "run" / "result.json").read_text())["ranks"] == 2
    else:
        assert done.returncode != 0
        assert done.stderr.count("2 ranks on this machine and 1 GPUs") == 1
