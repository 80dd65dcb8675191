"""The store: every finished run once, whoever wrote it, and nothing that is broken."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from newton_losses_bench import machine
from newton_losses_bench.config import ConvexConfig, PathsConfig, SortingConfig, identity, run_name
from newton_losses_bench.store import Store, compact
from newton_losses_bench.train import run

ROOT = Path(__file__).parents[2]
CONFIG = SortingConfig(
    algorithm="softsort", data="digits", digits=1, n=3, steps=2, eval_every=1, batch_size=4, validation_sets=5,
    test_sets=5, device="cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A store with two runs, to be copied and broken."""
    path = tmp_path_factory.mktemp("store")
    for seed in (0, 1):
        config = replace(CONFIG, seed=seed, average=bool(seed)).resolved()
        run(config, str(path / "a day" / run_name(config.to_dict())))
    return path


@pytest.fixture
def store(trained, tmp_path):
    return Store(shutil.copytree(trained, tmp_path / "store"))


def test_a_record_has_everything(store):
    first, second = store.records()
    assert store.notes == []
    assert sorted([first.seed, second.seed]) == [0, 1]
    assert first.configuration["algorithm"] == "softsort"
    assert first.steps == 2
    assert [record["step"] for record in first.curve] == [1, 2]
    assert first.test in [record["test"] for record in first.curve]
    assert first.seconds > 0
    assert {"torch", "python", "gpu", "cpu", "commit", "started", "command"} <= first.environment.keys()


def test_a_copied_run_counts_once_and_the_first_wins(store):
    first = store.records()[0]
    shutil.copytree(first.path, store.path / "z elsewhere" / "copy")
    assert [record.path for record in store.records() if record.identity == first.identity] == [first.path]
    assert "the same run as" in store.notes[0]
    assert "copy" in store.notes[0]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"configuration": 3}', '{"configuration": {"task": "x"}}', "\x00"])
def test_a_broken_result_is_noted_and_left_out(store, content):
    first, second = store.records()
    (first.path / "result.json").write_text(content)
    assert [record.identity for record in store.records()] == [second.identity]
    assert len(store.notes) == 1
    assert str(first.path) in store.notes[0]


def test_a_damaged_curve_is_noted_and_left_out(store):
    first, second = store.records()
    with open(first.path / "evaluations.jsonl", "a") as file:
        file.write('{"step": 3, "lo')
    (second.path / "config.json").unlink()
    assert [record.identity for record in store.records()] == [second.identity]
    assert "evaluations.jsonl: damaged" in store.notes[0]


def test_runs_without_a_result_are_unfinished(store):
    first = store.records()[0]
    (first.path / "result.json").unlink()
    (found,) = store.unfinished()
    assert (found.path, found.step, found.configuration) == (first.path, 2, first.configuration)
    (first.path / "config.json").write_text("{}")
    assert store.unfinished() == []
    assert str(first.path) in store.notes[0]


def test_of_two_records_the_one_with_averaged_weights_counts(store):
    plain, averaged = sorted(store.records(), key=lambda record: record.seed)
    config = replace(SortingConfig.from_dict(plain.configuration), average=True)
    run(config, str(store.path / "z elsewhere" / "again"))
    paths = [record.path for record in store.records()]
    assert paths == [averaged.path, store.path / "z elsewhere" / "again"]
    assert store.notes == [f"{plain.path}: the same run as {paths[1]}, which counts. This one is left out."]


def test_hidden_folders_are_no_part_of_the_store(store):
    shutil.copytree(store.records()[0].path, store.path / ".trash" / "run")
    assert len(store.records()) == 2
    assert store.notes == []


def test_compacting_keeps_the_record_and_nothing_large(store):
    before = store.records()
    for record in before:
        compact(record.path)
        assert {file.name for file in record.path.iterdir()} == {
            ".lock", "config.json", "evaluations.jsonl", "result.json",
        }  # fmt: skip
    assert store.records() == before
    # The finished run is still one: the same command returns its result.
    config = SortingConfig.from_dict(before[0].configuration)
    assert run(config, str(before[0].path))["test"] == before[0].test


def test_compacting_spares_an_unfinished_run(store):
    first = store.records()[0]
    (first.path / "result.json").unlink()
    compact(first.path)
    assert (first.path / "checkpoint.pt").exists()


def test_a_setting_of_another_version_makes_another_experiment():
    config = SortingConfig(algorithm="softsort", device="cpu").resolved().to_dict()
    assert identity({**config, "optimizer": "sgd"}) != identity(config)
    assert identity({**config, "schedule": {"drops": [1]}}) != identity(config)
    assert identity({**config, "momentum": None, "nesterov": False}) == identity(config)


def test_what_does_not_belong_to_the_experiment_is_not_in_the_identity():
    config = CONFIG.resolved().to_dict()
    for name, value in {
        "device": "cuda",
        "graph": True,
        "compile": True,
        "kernels": True,
        "data_root": "/data",
    }.items():
        assert identity({**config, name: value}) == identity(config)
    for name, value in {"steps": 3, "precision": "bf16", "seed": 5, "clip_norm": 1.0, "eval_every": 2}.items():
        assert identity({**config, name: value}) != identity(config)


def test_an_identity_survives_json_and_settings_that_came_later():
    config = PathsConfig(algorithm="fenchel-young", curvature="hessian", damping=10, device="cpu").resolved()
    stored = json.loads(json.dumps(config.to_dict()))
    assert identity(stored) == identity(config.to_dict())
    assert identity({**stored, "damping": 10.0}) == identity(stored)
    stored.pop("data_seed")
    assert identity(stored) == identity(config.to_dict())


def test_names_are_readable():
    clipped = replace(CONFIG, clip_norm=1.0, numerics="reference", steps=10_000, seed=4).resolved()
    assert run_name(clipped.to_dict()).startswith("softsort-n3-reference-baseline-clip1-10000-s4-")
    relaxed = PathsConfig(algorithm="bellman-ford", curvature="fisher", loop="while", norm="l2", device="cpu")
    assert run_name(relaxed.resolved().to_dict()).startswith("bellman-ford-while-l2-fisher-50e-s0-")
    smoothed = PathsConfig(algorithm="smoothed-loss", num_samples=30, epochs=5, device="cpu")
    assert run_name(smoothed.resolved().to_dict()).startswith("smoothed-loss-30-baseline-5e-s0-")
    convex = ConvexConfig(algorithm="relu", curvature="fisher", seed=2)
    assert run_name(convex.resolved().to_dict()).startswith("relu-fisher-50-s2-")


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="the source distribution has no results")
def test_the_measured_runs_of_the_repository_are_read():
    store = Store(ROOT / "results")
    found = {record.path.name: record for record in store.records()}
    assert store.notes == []
    assert len(found) >= 836
    fisher = found["softsort-reference-fisher-15k"]
    assert (fisher.configuration["numerics"], fisher.steps) == ("reference", 15_000)
    assert fisher.test["exact_match"] == 80.23
    assert fisher.environment["gpu"] == "NVIDIA H200"
    assert len(fisher.curve) == 15


WRITER = """
import sys
from newton_losses_bench.store import RunFolder
from newton_losses_bench.config import SortingConfig
from newton_losses_bench.store import RunError
for seed in range(12):
    config = SortingConfig(algorithm="softsort", seed=seed, device="cpu").resolved()
    try:
        with RunFolder(f"{sys.argv[1]}/{seed}", config) as folder:
            if folder.result is None:
                one = {"step": 1, "test": {"exact_match": 1.0}}
                folder.finish({"configuration": config.to_dict(), "test": {"exact_match": 1.0}, "reported": one,
                    "final": one, "steps": 1, "seconds": 1.0, "milliseconds_per_step": 1.0})
                print(seed)
    except RunError as error:
        assert "in use" in str(error)
"""


def test_writers_at_the_same_time_write_each_run_once(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    written = [int(word) for writer in writers for word in writer.communicate()[0].split()]
    assert all(writer.returncode == 0 for writer in writers)
    assert sorted(written) == list(range(12))
    store = Store(tmp_path)
    assert len(store.records()) == 12
    assert store.notes == []


def test_the_commit_is_that_of_the_code(monkeypatch):
    machine.commit.cache_clear()
    wanted = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if wanted.returncode == 0:
        assert machine.commit().removesuffix("-dirty") == wanted.stdout.strip()
    machine.commit.cache_clear()
    monkeypatch.setenv("NEWTON_LOSSES_COMMIT", "abc")
    assert machine.environment()["commit"] == "abc"
    machine.commit.cache_clear()
