"""On a Ray cluster of two nodes, of which one is killed in the middle, every run is finished, and none twice."""

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from newton_losses import ArgumentError
from newton_losses_bench.config import SortingConfig
from newton_losses_bench.store import Store
from newton_losses_bench.sweep import Job
from newton_losses_bench.sweep import ray as on_ray

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")
def test_a_node_dies_and_nothing_is_lost_or_repeated(tmp_path):
    worker = Path(__file__).with_name("ray_worker.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(worker), str(tmp_path)],
        env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    dying = report["dying"]
    assert dying["failures"] == []
    assert dying["finished"] == 6
    assert dying["finished_at_death"] >= 1
    assert dying["done_again"] == []
    store = Store(tmp_path / "shared")
    records = store.records()
    assert sorted(record.seed for record in records) == list(range(6))
    assert store.notes == []
    # Each evaluation is there once: what was taken over went on from its checkpoint.
    assert all([line["step"] for line in record.curve] == list(range(50, 301, 50)) for record in records)
    assert report["apart"]["finished"] == 1
    assert report["apart"]["files"] == ["config.json", "evaluations.jsonl", "result.json"]


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArgumentError, match=r"newton-losses\[ray\]"):
        on_ray.RayPool("auto", tmp_path)


SMALL = SortingConfig(
    algorithm="softsort", data="digits", digits=1, n=3, steps=2, batch_size=4, validation_sets=5, test_sets=5,
    device="cpu",
)  # fmt: skip


def test_a_machine_that_does_not_share_the_store_sends_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "own"))
    (tmp_path / "own").mkdir()
    job = Job.of("one", SMALL.resolved(), tmp_path / "store", "cpu")
    found = on_ray.do_on_node(job.to_dict(), str(tmp_path / "store"), "token")
    assert sorted(found["files"]) == ["config.json", "evaluations.jsonl", "result.json"]
    assert list(found["files"])[-1] == "result.json"  # written last, as everywhere
    assert not (tmp_path / "store").exists()
    assert list((tmp_path / "own").glob("newton-losses*")) == []


def test_a_machine_that_does_not_share_the_store_sends_weights_that_are_to_be_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "newton-losses-token" / "another run").mkdir(parents=True)
    job = Job.of("one", SMALL.resolved(), tmp_path / "store", "cpu", keep_weights=True)
    found = on_ray.do_on_node(job.to_dict(), str(tmp_path / "store"), "token")
    assert list(found["files"]) == ["config.json", "evaluations.jsonl", "checkpoint.pt", "weights.pt", "result.json"]
    assert [folder.name for folder in (tmp_path / "newton-losses-token").iterdir()] == ["another run"]


def test_what_a_run_raises_comes_back_as_text(tmp_path):
    job = Job.of("one", SMALL.resolved(), tmp_path, "cpu")
    broken = {**job.to_dict(), "configuration": {**job.configuration, "algorithm": "softsrot"}}
    assert "did you mean softsort" in on_ray.do_on_node(broken, str(tmp_path), "token")["error"]


def test_a_device_with_a_number_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    with pytest.raises(ArgumentError, match="--device cuda:1: Ray assigns each run a GPU"):
        on_ray.RayPool("auto", tmp_path, device="cuda:1")
