"""Maps that do not exist yet are drawn once, whoever comes first, and a folder that cannot be written is named."""

import threading
import time
from dataclasses import replace

import pytest

from newton_losses_bench.config import PathsConfig
from newton_losses_bench.data import DataError, terrain
from newton_losses_bench.tasks import load_maps

CONFIG = PathsConfig(algorithm="fenchel-young", size=3, train_maps=2, test_maps=2, device="cpu")


def test_maps_are_drawn_once_by_whoever_comes_first(tmp_path, monkeypatch):
    drawn, found = [], []
    fill = terrain.atomic_folder

    def slowly(folder):
        drawn.append(folder)
        time.sleep(0.3)  # long enough for the others to come
        return fill(folder)

    monkeypatch.setattr(terrain, "atomic_folder", slowly)
    config = replace(CONFIG, data_root=str(tmp_path)).resolved()
    threads = [threading.Thread(target=lambda: found.append(load_maps(config))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == 1
    assert [len(splits.train) for splits in found] == [2, 2, 2]


def test_maps_that_are_there_need_no_folder_that_can_be_written(tmp_path, monkeypatch):
    terrain.make(tmp_path, 3, (2, 2, 2))
    config = replace(CONFIG, data_root=str(tmp_path))

    def refuse(path):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(terrain, "locked", refuse)
    assert len(load_maps(config.resolved()).train) == 2
    with pytest.raises(DataError, match="could not be written"):
        load_maps(replace(config, size=4).resolved())


def test_a_root_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file.*: could not be written .* --data-root"):
        load_maps(replace(CONFIG, data_root=str(tmp_path / "file")).resolved())
