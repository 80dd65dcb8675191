"""Where data lies, and files that appear whole or not at all."""

from pathlib import Path

import pytest

from newton_losses_bench.data import data_root
from newton_losses_bench.data.files import atomic_folder, file_md5


def test_the_root_is_the_argument_then_the_variable_then_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NEWTON_LOSSES_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    assert data_root(tmp_path / "argument") == tmp_path / "argument"
    assert data_root() == tmp_path / "variable"
    monkeypatch.delenv("NEWTON_LOSSES_DATA")
    assert data_root() == tmp_path / "cache" / "newton-losses"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "newton-losses"
    assert data_root("~/x") == Path.home() / "x"


def test_a_folder_is_put_back_when_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    path = tmp_path / "set"
    path.mkdir()
    (path / "file").write_text("old")
    rename = Path.rename

    def refuse_new(self, target):
        if self.suffix == ".part":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_new)

    def swap():
        with atomic_folder(path) as temporary:
            (temporary / "file").write_text("new")

    with pytest.raises(OSError, match="no"):
        swap()
    assert (path / "file").read_text() == "old"
    monkeypatch.setattr(Path, "rename", rename)
    swap()
    assert (path / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_md5_sum(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert file_md5(tmp_path / "file") == "d41d8cd98f00b204e9800998ecf8427e"


def test_importing_the_data_reads_nothing_and_needs_no_extra(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys\n"
        "for name in ('sklearn', 'matplotlib', 'scipy', 'numba'): sys.modules[name] = None\n"
        "import newton_losses_bench.data, newton_losses_bench.models\n"
    )
    source = Path(__file__).resolve().parents[3] / "src"
    environment = {"PYTHONPATH": str(source), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert list(tmp_path.iterdir()) == []
