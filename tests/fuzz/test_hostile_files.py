"""Files that somebody else made: none of them runs code, and each that is wrong is refused by name.

The second half reads the sources: a call that could run what a file says has to ask for that, so it cannot slip in.
"""

import ast
import hashlib
import io
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import newton_losses
from newton_losses_bench.config import SortingConfig
from newton_losses_bench.data import MNIST, Terrain, terrain
from newton_losses_bench.data.files import DataError
from newton_losses_bench.store import BadCheckpoint, RunError, RunFolder, read_checkpoint

SOURCES = sorted(Path(newton_losses.__file__).parent.rglob("*.py"))


class Trap:
    """Makes a file when it is unpickled: the sign that code of the file ran."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, (str(self.sign),)


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    trap = Trap(tmp_path / "code of the file ran")
    yield trap
    assert not trap.sign.exists()


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "sign")))
    assert (tmp_path / "sign").exists()


def checkpoint(path: Path, payload: bytes) -> Path:
    """A checkpoint whose checksum is right, as an attacker would make it."""
    header = f"newton-losses checkpoint 1 sha256={hashlib.sha256(payload).hexdigest()}\n"
    path.write_bytes(header.encode() + payload)
    return path


def saved(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("make", ["torch.save", "pickle", "in a tensor's place"])
def test_a_checkpoint_with_code_in_it(tmp_path: Path, trap: Trap, make: str) -> None:
    payload = {
        "torch.save": lambda: saved(trap),
        "pickle": lambda: pickle.dumps(trap),
        "in a tensor's place": lambda: saved({"step": 1, "tensors": {"weight": trap}}),
    }[make]()
    with pytest.raises(BadCheckpoint, match="not loaded"):
        read_checkpoint(checkpoint(tmp_path / "checkpoint.pt", payload))


@pytest.mark.parametrize("payload", [b"", b"PK\x03\x04", saved({"step": 1})[:-40], b"\x80\x02]q\x00.", b"no pickle"])
def test_a_checkpoint_of_something_else(tmp_path: Path, payload: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        read_checkpoint(checkpoint(tmp_path / "checkpoint.pt", payload))


def test_maps_with_code_in_them(tmp_path: Path, trap: Trap) -> None:
    terrain.make(tmp_path, 2, (2, 2, 2))
    for name in ("maps", "vertex_weights", "shortest_paths"):
        (file,) = tmp_path.rglob(f"train_{name}.npy")
        whole = file.read_bytes()
        with file.open("wb") as out:
            np.save(out, np.array([trap], dtype=object), allow_pickle=True)
        with pytest.raises(DataError, match="train_"):
            Terrain(tmp_path, "train", 2)
        file.write_bytes(whole)


def test_mnist_with_code_in_it(tmp_path: Path, trap: Trap) -> None:
    bad = np.array([trap], dtype=object)
    np.savez(tmp_path / "mnist.npz", x_train=bad, y_train=bad, x_test=bad, y_test=bad)
    with pytest.raises(DataError, match=r"mnist\.npz"):
        MNIST(tmp_path, check=False)


def test_a_pickle_that_calls_itself_an_archive(tmp_path: Path, trap: Trap) -> None:
    (tmp_path / "mnist.npz").write_bytes(pickle.dumps(trap))
    with pytest.raises(DataError, match=r"mnist\.npz"):
        MNIST(tmp_path, check=False)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', "{", "\udcff", '{"configuration": []}'])
def test_a_run_folder_with_a_configuration_of_another_kind(tmp_path: Path, text: str) -> None:
    config = SortingConfig(algorithm="softsort", device="cpu").resolved()
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=r"config\.json"):
        RunFolder(tmp_path, config).__enter__()


def test_a_run_folder_with_a_result_of_another_kind(tmp_path: Path) -> None:
    config = SortingConfig(algorithm="softsort", device="cpu").resolved()
    with RunFolder(tmp_path / "run", config) as folder:
        (tmp_path / "run" / "result.json").write_text(json.dumps(["not", "a", "result"]))
        with pytest.raises(RunError, match=r"result\.json"):
            assert folder.result is None


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def said(call: ast.Call, argument: str) -> object:
    return next((k.value.value for k in call.keywords if k.arg == argument and isinstance(k.value, ast.Constant)), None)


RUNS_CODE = {"eval", "exec", "compile", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "os.system"}


def test_no_source_runs_what_a_file_says() -> None:
    assert len(SOURCES) > 50
    for path in SOURCES:
        for name, call in calls(path):
            where = f"{path.name}:{call.lineno}"
            assert name not in RUNS_CODE, f"{where} calls {name}"
            assert name.rpartition(".")[2] not in ("extractall", "unpack_archive"), (
                f"{where}: an archive may leave its folder"
            )
            assert said(call, "shell") is not True, f"{where} starts a shell"
            assert said(call, "allow_pickle") is not True, f"{where} allows a pickle"
            assert said(call, "weights_only") is not False, f"{where} allows more than weights"
            if name == "torch.load":
                assert said(call, "weights_only") is True, f"{where} has to say weights_only=True"
            if name in ("np.load", "numpy.load"):
                assert said(call, "allow_pickle") is False, f"{where} has to say allow_pickle=False"


def test_sources_name_no_unsafe_address() -> None:
    """What is downloaded is checked by its sum as well, but no address is worth less than https."""
    for path in SOURCES:
        assert "http://" not in path.read_text(), path
