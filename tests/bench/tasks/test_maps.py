"""Maps that do not exist yet are drawn once, whoever comes first, and a folder that cannot be written is named."""

import threading
import time
from dataclasses import replace

import pytest

from newton_losses_bench.config import PathsConfig
from newton_losses_bench.data import DataError, terrain
from newton_losses_bench.tasks.paths import draw_missing_maps


def test_maps_are_drawn_once_by_whoever_comes_first(tmp_path, monkeypatch):
    drawn = []
    make = terrain.make

    def slowly(*arguments):
        drawn.append(arguments)
        time.sleep(0.3)  # long enough for the other to come
        return make(*arguments)

    monkeypatch.setattr(terrain, "make", slowly)
    config = PathsConfig(algorithm="fenchel-young", size=3, train_maps=2, test_maps=2, data_root=str(tmp_path))
    threads = [threading.Thread(target=draw_missing_maps, args=(config.resolved(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == 1


def test_maps_that_are_there_need_no_folder_that_can_be_written(tmp_path):
    config = PathsConfig(algorithm="fenchel-young", size=3, train_maps=2, test_maps=2, data_root=str(tmp_path))
    terrain.make(tmp_path, 3, (2, 2, 2))
    (tmp_path / ".terrain.lock").symlink_to(tmp_path / "nowhere" / "lock")  # which nobody can open, not even root
    draw_missing_maps(config.resolved())
    with pytest.raises(DataError, match="could not be written"):
        draw_missing_maps(replace(config, size=4).resolved())


def test_a_root_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    config = PathsConfig(algorithm="fenchel-young", size=3, data_root=str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"file: could not be written .* --data-root"):
        draw_missing_maps(config.resolved())
