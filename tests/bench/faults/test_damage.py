"""A flipped bit or a missing end, in every file that is read: it is noticed, or it changes nothing that is used."""

import gzip
import json
import os
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from newton_losses_bench.config import SortingConfig
from newton_losses_bench.data import MNIST, Terrain, terrain
from newton_losses_bench.data import digits as mnist_module
from newton_losses_bench.data.files import DataError
from newton_losses_bench.store import RunError, read_json, read_record
from newton_losses_bench.train import Progress, run

CONFIG = SortingConfig(
    algorithm="softsort", data="digits", digits=1, n=3, steps=4, eval_every=2, batch_size=4, validation_sets=5,
    test_sets=5, device="cpu",
)  # fmt: skip


class Notes(Progress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, run(CONFIG, str(folder))


@pytest.fixture
def copy(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def damages(content: bytes, seed: int = 0) -> list[bytes]:
    """Flipped bits at 40 places, and 5 beginnings, the empty one among them."""
    chance = random.Random(seed)
    flips = [flipped(content, chance.randrange(len(content)), chance.randrange(8)) for _ in range(40)]
    return [*flips, b"", *(content[: chance.randrange(1, len(content))] for _ in range(3)), content[:-1]]


@pytest.mark.parametrize("name", ["result.json", "config.json"])
def test_every_bit_of_a_json_file(finished: tuple[Path, dict[str, Any]], tmp_path: Path, name: str) -> None:
    """A bit of each byte of the file, and beginnings of it: an error, or not one value is different."""
    content = (finished[0] / name).read_bytes()
    wanted = read_json(finished[0] / name)
    target = tmp_path / name
    variants = [flipped(content, place, place % 8) for place in range(len(content))]
    refused = 0
    for variant in [*variants, *(content[:length] for length in range(0, len(content) - 1, 17))]:
        target.write_bytes(variant)
        try:
            found = read_json(target)
        except RunError:
            refused += 1
            continue
        # The one thing that can be lost is the name of the sum itself; every value is then as it was.
        assert {key: value for key, value in found.items() if key in wanted} == wanted
    assert refused > 0.8 * len(variants)


def test_a_damaged_result_is_restored_from_the_checkpoint(copy: Path, finished: tuple[Path, dict[str, Any]]) -> None:
    text = (copy / "result.json").read_text()
    figure = json.dumps(finished[1]["test"]["exact_match"])
    (copy / "result.json").write_text(text.replace(f'"exact_match": {figure}', '"exact_match": 99.0'))
    with pytest.raises(RunError, match=r"result\.json: damaged.*delete it and rerun the command"):
        run(CONFIG, str(copy))
    (copy / "result.json").unlink()
    again = run(CONFIG, str(copy))
    for name in ("test", "reported", "final", "steps", "files"):
        assert again[name] == finished[1][name]


def test_a_result_of_before_the_sums_is_still_read(copy: Path, finished: tuple[Path, dict[str, Any]]) -> None:
    old = {name: value for name, value in finished[1].items() if name not in ("files", "ranks")}
    (copy / "result.json").write_text(json.dumps(old))
    assert run(CONFIG, str(copy)) == old


def test_damaged_evaluations_are_never_used_and_written_again(
    copy: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    content = (copy / "evaluations.jsonl").read_bytes()
    for damage in damages(content)[::5]:
        (copy / "evaluations.jsonl").write_bytes(damage)
        with pytest.raises(RunError, match=r"evaluations\.jsonl: damaged.*delete result\.json"):
            read_record(copy)
        notes = Notes()
        assert run(CONFIG, str(copy), progress=notes) == finished[1]
        assert "Do not use it; the figures of the result are not affected, but reports and tables" in notes.texts[0]
        (copy / "result.json").unlink()
        run(CONFIG, str(copy))
        assert (copy / "evaluations.jsonl").read_bytes() == content
        shutil.copy(finished[0] / "result.json", copy)
    (copy / "evaluations.jsonl").unlink()
    notes = Notes()
    assert run(CONFIG, str(copy), progress=notes) == finished[1]
    assert "evaluations.jsonl: missing; the figures of the result are not affected, but reports" in notes.texts[0]


def test_damaged_weights_are_reported(copy: Path, finished: tuple[Path, dict[str, Any]]) -> None:
    content = (copy / "weights.pt").read_bytes()
    for damage in damages(content):
        (copy / "weights.pt").write_bytes(damage)
        notes = Notes()
        assert run(CONFIG, str(copy), progress=notes) == finished[1]
        assert "Do not use it" in notes.texts[0]


def test_a_damaged_checkpoint_is_never_resumed_from(copy: Path, finished: tuple[Path, dict[str, Any]]) -> None:
    content = (copy / "checkpoint.pt").read_bytes()
    header = [flipped(content, place, place % 8) for place in range(content.index(b"\n") + 1)]
    # Finished, but for the result: whatever checkpoint is taken, the same result comes out.
    for damage in [*header[::7], *damages(content)[::5]]:
        (copy / "result.json").unlink()
        (copy / "checkpoint.pt").write_bytes(damage)
        notes = Notes()
        assert run(CONFIG, str(copy), progress=notes)["final"] == finished[1]["final"]
        assert "Resuming from the previous one" in notes.texts[0]
        shutil.copy(finished[0] / "checkpoint.previous.pt", copy)


def damage_in_place(path: Path, content: bytes) -> None:
    """With the old times, as a disk does it: they are no sign of anything."""
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_damaged_maps(tmp_path: Path) -> None:
    folder = terrain.make(tmp_path, 4, (3, 2, 2))
    Terrain(tmp_path, "train", 4)  # whole, and remembered as such
    for path in sorted(folder.glob("train_*.npy")):
        content = path.read_bytes()
        for damage in damages(content):
            damage_in_place(path, damage)
            with pytest.raises(DataError, match=path.name):
                Terrain(tmp_path, "train", 4)
        damage_in_place(path, content)
        Terrain(tmp_path, "train", 4)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("kind", ["idx", "idx.gz", "npz"])
def test_damaged_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """As MNIST's files, a few pictures long, with the sums of these."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (4, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, 4, dtype=np.uint8)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    if kind == "npz":
        paths = [tmp_path / "mnist.npz"]
        np.savez(paths[0], x_train=images, y_train=labels, x_test=images, y_test=labels)
    else:
        suffix = ".gz" if kind == "idx.gz" else ""
        paths = [raw / f"train-{name}-ubyte{suffix}" for name in ("images-idx3", "labels-idx1")]
        for path, array in zip(paths, (images, labels), strict=True):
            path.write_bytes(gzip.compress(idx(array)) if suffix else idx(array))
    sums = tuple(mnist_module.hashlib.md5(array.tobytes()).hexdigest() for array in (images, labels))
    monkeypatch.setitem(mnist_module._CONTENT_SUMS, "train", sums)
    assert len(MNIST(tmp_path)) == 4
    for path in paths:
        content = path.read_bytes()
        for damage in damages(content):
            path.write_bytes(damage)
            try:
                found = MNIST(tmp_path)
            except DataError:
                continue
            # A bit that no value depends on, as the time in a packed file's header.
            assert np.array_equal(found.images.numpy(), images)
            assert np.array_equal(found.labels.numpy(), labels)
        path.write_bytes(content)
