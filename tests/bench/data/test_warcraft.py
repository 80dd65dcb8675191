"""The loader of the real Warcraft files, on small files of the same names and dtypes."""

import shutil

import numpy as np
import pytest

from newton_losses.errors import ArgumentError
from newton_losses_bench.data import DataError, DataNotFoundError, Warcraft, path_maps
from newton_losses_bench.data.files import file_md5

PLACES = [
    "warcraft_shortest_path_oneskin/12x12",
    "Warcraft/12x12",
    "Warcraft/warcraft_shortest_path_oneskin/12x12",
]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A root with small files in the place of the archive; their sums are taken for the real ones."""
    folder = tmp_path / PLACES[0]
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2), ("test", 3)):
        maps = generator.integers(0, 256, (count, 96, 96, 3), dtype=np.uint8)
        np.save(folder / f"{split}_maps.npy", maps)
        np.save(folder / f"{split}_vertex_weights.npy", np.full((count, 12, 12), 0.8, dtype=np.float16))
        np.save(folder / f"{split}_shortest_paths.npy", np.eye(12, dtype=np.uint8)[None].repeat(count, 0))
    monkeypatch.setattr(path_maps, "WARCRAFT_SUMS", {path.name: file_md5(path) for path in folder.iterdir()})
    return tmp_path


def test_the_sums_are_those_of_all_nine_files():
    assert len(path_maps.WARCRAFT_SUMS) == len(set(path_maps.WARCRAFT_SUMS.values())) == 9
    assert all(len(md5) == 32 for md5 in path_maps.WARCRAFT_SUMS.values())


@pytest.mark.parametrize("place", PLACES)
def test_all_places(root, place):
    if place != PLACES[0]:
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(root / PLACES[0], root / place)
    data = Warcraft(root, "test")
    assert len(data) == 3
    assert data.folder == root / place
    assert (data.maps[2].shape, data.weights.dtype, data.paths[2].sum()) == ((96, 96, 3), np.float16, 12)


def test_splits_are_tensors_normalised_by_the_training_maps(root):
    train, val, test = Warcraft.splits(root)
    assert [len(part) for part in (train, val, test)] == [4, 2, 3]
    pixels = Warcraft(root).maps.reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(test.mean, pixels.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(val.std, pixels.std(axis=0), rtol=1e-6)


def test_missing_data_says_how_to_get_it(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"10\.17617/3\.YJCQ5S.*terrain"):
        Warcraft(tmp_path)


def test_a_missing_file_is_named(root):
    (root / PLACES[0] / "val_shortest_paths.npy").unlink()
    assert len(Warcraft(root, "train")) == 4
    with pytest.raises(DataNotFoundError, match=r"val_shortest_paths\.npy was not found"):
        Warcraft(root, "val")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train_maps.npy", np.zeros((4, 96, 96, 3), np.float32), "holds float32, not uint8"),
        ("train_maps.npy", np.zeros((4, 95, 96, 3), np.uint8), r"shape \(4, 95, 96, 3\)"),
        ("train_shortest_paths.npy", np.zeros((3, 12, 12), np.uint8), r"shape \(3, 12, 12\)"),
        ("train_vertex_weights.npy", np.zeros((4, 12, 12), np.float16), "md5 sum"),
    ],
)
def test_wrong_contents(root, name, array, message):
    np.save(root / PLACES[0] / name, array)
    with pytest.raises(DataError, match=message):
        Warcraft(root)


def test_a_pickle_is_never_opened(root):
    np.save(root / PLACES[0] / "train_maps.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"train_maps\.npy cannot be read"):
        Warcraft(root)


def test_a_changed_file_is_found(root):
    Warcraft(root)
    path = root / PLACES[0] / "train_vertex_weights.npy"
    np.save(path, np.full((4, 12, 12), 1.2, dtype=np.float16))
    with pytest.raises(DataError, match="md5 sum"):
        Warcraft(root)
    assert len(Warcraft(root, check=False)) == 4


def test_a_mistyped_split(root):
    with pytest.raises(ArgumentError, match="split='valid' is not known"):
        Warcraft(root, "valid")
