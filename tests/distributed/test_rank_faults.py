"""What happens to one rank ends all of them, in words and in time; then the run goes on to the same last bit."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from newton_losses_bench import ranks
from newton_losses_bench.store import read_checkpoint

FAULTS = ("kill_last", "kill_first", "freeze_last", "fill_disk", "raise_last")


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    base = tmp_path_factory.mktemp("faults")
    worker = Path(__file__).with_name("fault_worker.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(worker), str(base)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return base, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("fault", "victim", "kind", "others", "text"),
    [
        ("kill_last", "1", "killed", "RankError", "another rank of this run has ended"),
        ("kill_first", "0", "killed", "RankError", "goes on from the last checkpoint"),
        ("freeze_last", "1", "killed", "RankError", "did not answer"),
        ("fill_disk", "0", "RunError", "EndedElsewhere", "another rank has failed"),
        ("raise_last", "1", "RuntimeError", "RankError", "another rank of this run has ended"),
    ],
)
def test_the_others_end_and_say_why(
    faults: tuple[Path, dict[str, Any]], fault: str, victim: str, kind: str, others: str, text: str
) -> None:
    found = faults[1][fault]
    assert found["ranks"][victim]["kind"] == kind
    other = found["ranks"]["1" if victim == "0" else "0"]
    assert other["kind"] == others, other
    assert text in other["text"]
    # An ended rank is noticed at once; the limit of the frozen one's is eight seconds.
    assert found["seconds"] < 20


def test_a_full_disk_is_rank_0s_to_tell(faults: tuple[Path, dict[str, Any]]) -> None:
    assert "disk or your quota is full" in faults[1]["fill_disk"]["ranks"]["0"]["text"]


@pytest.mark.parametrize("fault", FAULTS)
def test_then_the_run_goes_on_to_the_same_last_bit(faults: tuple[Path, dict[str, Any]], fault: str) -> None:
    base, report = faults
    assert [rank["kind"] for rank in report[f"{fault}, after"]["ranks"].values()] == ["finished"] * 2
    whole = read_checkpoint(base / "whole" / "checkpoint.pt")
    found = read_checkpoint(base / fault / "checkpoint.pt")
    assert found["evaluations"] == whole["evaluations"]
    for kind in ("tensors", "generators"):
        assert all(torch.equal(found[kind][key], whole[kind][key]) for key in whole[kind])


def test_ranks_that_do_not_find_each_other_are_told_in_a_sentence(monkeypatch):
    """As after a kill, when torchrun starts ranks anew and one still has the address of the last round."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setattr(ranks, "PATIENCE", timedelta(seconds=1))
    with pytest.raises(ranks.RankError, match="did not find each other"), ranks.joined_ranks("cpu"):
        pass
