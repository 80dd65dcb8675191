"""MNIST from idx files, packed or not, and from an .npz; what is damaged is refused with a reason."""

import gzip

import numpy as np
import pytest
import torch

from bench.data.sources import mnist_root
from newton_losses_bench.data import MNIST, DataError, DataNotFoundError
from newton_losses_bench.data.digits import read_idx

IMAGES = np.arange(3 * 28 * 28, dtype=np.uint32).reshape(3, 28, 28).astype(np.uint8)
LABELS = np.array([7, 0, 9], dtype=np.uint8)


def idx(array):
    header = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.tobytes()


def put(root, kind, part="train"):
    raw = root / "MNIST" / "raw"
    names = {"train": ("x_train", "y_train"), "t10k": ("x_test", "y_test")}[part]
    if kind == "npz":
        np.savez_compressed(root / "mnist.npz", **dict(zip(names, (IMAGES, LABELS), strict=True)))
        return
    raw.mkdir(parents=True)
    for name, array in ((f"{part}-images-idx3-ubyte", IMAGES), (f"{part}-labels-idx1-ubyte", LABELS)):
        content = idx(array)
        (raw / (name + (".gz" if kind == "gz" else ""))).write_bytes(
            gzip.compress(content) if kind == "gz" else content
        )


@pytest.mark.parametrize("kind", ["raw", "gz", "npz"])
@pytest.mark.parametrize("part", ["train", "t10k"])
def test_every_kind_of_file_gives_the_same(tmp_path, kind, part):
    put(tmp_path, kind, part)
    data = MNIST(tmp_path, train=part == "train", check=False)
    assert torch.equal(data.images, torch.from_numpy(IMAGES))
    assert data.labels.tolist() == [7, 0, 9]
    assert data.labels.dtype == torch.int64


def test_what_is_not_mnist_is_refused(tmp_path):
    put(tmp_path, "raw")
    with pytest.raises(DataError, match=r"images under .* are not MNIST's: the md5 sum"):
        MNIST(tmp_path)


def test_missing_files_say_where_they_were_looked_for(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"download=True.*train-images-idx3-ubyte.*mnist\.npz"):
        MNIST(tmp_path)


def test_a_missing_file_is_also_the_built_in_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        MNIST(tmp_path)


def test_the_root_comes_from_the_environment(tmp_path, monkeypatch):
    put(tmp_path, "gz")
    monkeypatch.setenv("NEWTON_LOSSES_DATA", str(tmp_path))
    assert len(MNIST(check=False)) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(IMAGES)[:-1], "has 2351 values where"),
        (idx(IMAGES) + b"x", "has 2353 values where"),
        (idx(IMAGES)[:10], "ends within its header"),
        (b"<html>", "does not begin like an idx file"),
        (b"", "does not begin like an idx file"),
    ],
)
def test_damaged_idx_files(tmp_path, content, message):
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(path)


@pytest.mark.parametrize("content", [gzip.compress(idx(IMAGES))[:-20], idx(IMAGES), b""])
def test_damaged_packed_files(tmp_path, content):
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"images\.gz"):
        read_idx(path)


def test_damaged_npz(tmp_path):
    put(tmp_path, "npz")
    path = tmp_path / "mnist.npz"
    with pytest.raises(DataError, match="has no array 'x_test"):
        MNIST(tmp_path, train=False)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match="truncated or damaged"):
        MNIST(tmp_path)


def test_the_real_mnist_and_its_parts():
    train, val, test = MNIST.splits(mnist_root())
    assert (len(train), len(val), len(test)) == (55000, 5000, 10000)
    assert train.images.shape == (55000, 28, 28)
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert test.labels[:5].tolist() == [7, 2, 1, 0, 4]
