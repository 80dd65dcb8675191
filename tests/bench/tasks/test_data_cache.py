"""Runs one after another share the data that they have in common, and nothing that a run does to it."""

import gc
import io
import json
import os
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.data.sources import mnist_root
from newton_losses_bench.config import PathsConfig, SortingConfig
from newton_losses_bench.data import MNIST
from newton_losses_bench.sweep import Job, worker
from newton_losses_bench.tasks import DataCache, from_config, load_data
from newton_losses_bench.train import run

SORTING = SortingConfig(
    algorithm="softsort", curvature="fisher", data="digits", digits=1, n=3, augment=True, steps=4, eval_every=2,
    batch_size=4, validation_sets=20, test_sets=20, device="cpu",
).resolved()  # fmt: skip
PATHS = PathsConfig(
    algorithm="fenchel-young", curvature="hessian", num_samples=3, size=4, train_maps=10, test_maps=5, epochs=2,
    batch_size=4, device="cpu",
).resolved()  # fmt: skip


@pytest.fixture
def paths(tmp_path):
    """With maps that are drawn and kept already."""
    config = replace(PATHS, data_root=str(tmp_path / "data"))
    load_data(config)
    return config


@pytest.fixture
def loads(monkeypatch):
    """What is read, in this order."""
    found = []
    monkeypatch.setattr(from_config, "load_data", lambda config: found.append(config.data) or load_data(config))
    return found


def tensors(splits):
    return [tensor for part in splits for tensor in vars(part).values() if isinstance(tensor, torch.Tensor)]


def test_the_next_run_with_the_same_data_reads_nothing(paths, loads):
    data = DataCache()
    first = data.splits(SORTING)
    assert data.splits(replace(SORTING, seed=1, n=5, algorithm="logistic")) is first
    maps = data.splits(paths)
    assert data.splits(replace(paths, seed=1, algorithm="smoothed-loss")) is maps
    assert loads == ["digits", "terrain"]


@pytest.mark.parametrize("change", [{"train_maps": 9}, {"test_maps": 4}, {"data_seed": 1}, {"size": 5}])
def test_other_maps_are_other_data(paths, change):
    data = DataCache()
    first = data.splits(paths)
    other = replace(paths, **change)
    found, wanted = data.splits(other), load_data(other)
    assert found is not first
    assert all(torch.equal(one, two) for one, two in zip(tensors(found), tensors(wanted), strict=True))


def test_another_folder_is_other_data(paths, tmp_path, loads):
    data = DataCache()
    data.splits(paths)
    data.splits(replace(paths, data_root=str(tmp_path / "elsewhere")))
    assert loads == ["terrain", "terrain"]


def test_so_it_is_where_the_folder_is_the_environment_s(tmp_path, loads, monkeypatch):
    data = DataCache()
    for name in ("one", "two"):
        monkeypatch.setenv("NEWTON_LOSSES_DATA", str(tmp_path / name))
        data.splits(PATHS)
    assert loads == ["terrain", "terrain"]


def test_changed_files_are_read_again(paths, loads):
    data = DataCache()
    data.splits(paths)
    data.splits(paths)
    file = Path(paths.data_root) / "terrain" / "4x4" / "val_maps.npy"
    os.utime(file, ns=(0, 0))
    data.splits(paths)
    assert loads == ["terrain", "terrain"]


@pytest.mark.parametrize("name", ["MNIST/raw/train-images-idx3-ubyte", "MNIST/mnist.npz", "mnist.npz"])
def test_all_places_of_mnist_are_looked_at(tmp_path, name, loads, monkeypatch):
    monkeypatch.setattr(MNIST, "splits", lambda root: object())
    monkeypatch.setattr(from_config, "_versions", lambda splits: ())
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    config = replace(SORTING, data="mnist", data_root=str(tmp_path))
    data = DataCache()
    data.splits(config)
    (tmp_path / name).write_bytes(b"new")
    data.splits(config)
    data.splits(config)
    assert loads == ["mnist", "mnist"]


def test_data_that_was_written_to_is_read_again(loads):
    data = DataCache()
    data.splits(SORTING).val.images[0].fill_(7)
    again = data.splits(SORTING)
    assert loads == ["digits", "digits"]
    assert not (again.val.images[0] == 7).all()


def test_one_set_is_kept_at_most_and_none_while_another_is_read(paths, monkeypatch):
    data = DataCache()
    reference = weakref.ref(data.splits(SORTING).train)

    def load(config):
        gc.collect()
        assert reference() is None
        return load_data(config)

    monkeypatch.setattr(from_config, "load_data", load)
    data.splits(paths)


@pytest.mark.parametrize("task", ["sorting", "paths"])
def test_a_run_writes_nothing_into_its_data_and_ends_as_alone(task, paths, tmp_path):
    config = {"sorting": SORTING, "paths": paths}[task]
    data = DataCache()
    before = [(tensor, tensor.clone(), tensor._version) for tensor in tensors(data.splits(config))]
    for seed in range(2):
        run(replace(config, seed=seed), str(tmp_path / f"kept-{seed}"), make=data.make_task)
    assert all(torch.equal(tensor, copy) and tensor._version == version for tensor, copy, version in before)
    run(replace(config, seed=1), str(tmp_path / "alone"))
    for name in ("evaluations.jsonl", "weights.pt"):
        assert (tmp_path / "kept-1" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_a_worker_reads_once(tmp_path, loads, monkeypatch):
    monkeypatch.setattr(worker, "_log_to", lambda path: None)
    monkeypatch.setattr(sys, "argv", ["worker"])
    data, told = DataCache(), io.StringIO()
    for seed in range(3):
        job = Job.of("a run", replace(SORTING, seed=seed), tmp_path, "cpu")
        assert worker._do(job, "log", worker.Events(told), data) == (0, True, None)
    assert loads == ["digits"]
    assert [json.loads(line)["event"] for line in told.getvalue().splitlines()].count("finished") == 3


def test_real_mnist_is_kept(loads):
    data = DataCache()
    config = replace(SORTING, data="mnist", data_root=str(mnist_root()))
    first = data.splits(config)
    assert data.splits(replace(config, seed=1)) is first
    assert [len(part) for part in first] == [55_000, 5_000, 10_000]
