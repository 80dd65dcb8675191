"""The look-alike maps: the same bytes everywhere, unique shortest paths, files that are whole or absent."""

import hashlib
import heapq
import json
import shlex

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from newton_losses.errors import ArgumentError
from newton_losses_bench.cli.app import app
from newton_losses_bench.data import DataError, DataNotFoundError, Terrain, terrain, terrain_layout, terrain_pictures
from newton_losses_bench.data.terrain_layout import Streams, optimal_vertices, skipped_by_some


def all_shortest_paths(costs):
    """Every shortest path of one grid of integers, by Dijkstra's algorithm and walking back."""
    height, width = costs.shape
    distance = {(0, 0): int(costs[0, 0])}
    queue = [(int(costs[0, 0]), (0, 0))]
    before = {(0, 0): []}
    done = set()

    def neighbours(vertex):
        for row in range(max(0, vertex[0] - 1), min(height, vertex[0] + 2)):
            for column in range(max(0, vertex[1] - 1), min(width, vertex[1] + 2)):
                if (row, column) != vertex:
                    yield row, column

    while queue:
        far, vertex = heapq.heappop(queue)
        if vertex in done:
            continue
        done.add(vertex)
        for other in neighbours(vertex):
            new = far + int(costs[other])
            if new < distance.get(other, 1 << 30):
                distance[other], before[other] = new, [vertex]
                heapq.heappush(queue, (new, other))
            elif new == distance[other] and vertex not in before[other]:
                before[other].append(vertex)

    def walk(vertex):
        if vertex == (0, 0):
            return [[vertex]]
        return [[*path, vertex] for earlier in before[vertex] for path in walk(earlier)]

    return walk((height - 1, width - 1))


@pytest.fixture(scope="module")
def drawn():
    return terrain.draw(40, size=12, seed=3)


def test_a_seed_gives_the_same_bytes_on_every_machine():
    digest = hashlib.sha256()
    for split in ("train", "val", "test"):
        for part in terrain.draw(7, size=9, seed=5, split=split):
            digest.update(part.tobytes())
    assert digest.hexdigest() == "f449ec2c395d3b0cb893739f4c88f2754ce5a81bc736b3999e52031d0d8320e3"


def test_textures_are_pinned_apart_from_the_maps():
    content = terrain_pictures.texture_sheets().astype("<i2").tobytes()
    wanted = "a609cb23d75cf6e9fdd13eade18ef8bdb9a9cd3993a424f53dc69677b303c6a4"
    assert hashlib.sha256(content).hexdigest() == wanted


def test_shapes_dtypes_and_costs(drawn):
    assert drawn.maps.shape == (40, 96, 96, 3)
    assert drawn.weights.shape == drawn.paths.shape == (40, 12, 12)
    assert (drawn.maps.dtype, drawn.weights.dtype, drawn.paths.dtype) == (np.uint8, np.float16, np.uint8)
    wanted = np.array([0.8, 1.2, 5.3, 7.7, 9.2], dtype=np.float16)
    assert np.array_equal(np.unique(drawn.weights), wanted)
    assert set(np.unique(drawn.paths)) == {0, 1}


def test_each_map_has_exactly_one_shortest_path_and_it_is_the_label(drawn):
    for weights, label in zip(drawn.weights, drawn.paths, strict=True):
        paths = all_shortest_paths(np.rint(weights.astype(np.float64) * 10).astype(int))
        assert len(paths) == 1
        mask = np.zeros_like(label)
        mask[tuple(zip(*paths[0], strict=True))] = 1
        assert np.array_equal(mask, label)


def test_labels_equal_the_librarys_own_solver(drawn):
    paths = pytest.importorskip("newton_losses.paths", reason="the solver of the library is not there yet")
    solved = paths.shortest_path(torch.from_numpy(drawn.weights.astype(np.float64)), neighbors=8)
    assert np.array_equal(solved.numpy().astype(np.uint8), drawn.paths)


def test_the_shares_that_the_documentation_names(monkeypatch):
    """Ties before vertices are drawn again (90 %), vertices changed (5 of 144), diagonal paths (5 %)."""
    make_unique = terrain_layout._make_paths_unique
    ties, changed = [], []

    def watch(streams, terrains):
        before = terrains.copy()
        ties.append(~optimal_vertices(terrain_layout.TENTHS[terrains[:, 1:-1, 1:-1]])[2])
        paths = make_unique(streams, terrains)
        changed.append((terrains != before).sum(axis=(1, 2)))
        return paths

    monkeypatch.setattr(terrain_layout, "_make_paths_unique", watch)
    _, paths = terrain_layout.draw_corners(Streams(0, 0, 0, 1000), 1000, 12)
    # A thousand maps: the standard errors are 0.01, 0.2 and 0.007.
    assert abs(np.mean(ties) - 0.90) < 0.02
    assert abs(np.mean(changed) - 5) < 0.6
    assert abs((paths.sum(axis=(1, 2)) == 12).mean() - 0.05) < 0.02


def test_optimal_vertices_and_those_that_a_path_avoids_against_enumeration():
    generator = np.random.default_rng(0)
    costs = generator.choice(np.array([8, 12, 53], dtype=np.int32), size=(60, 5, 6))
    optimal, distances, unique = optimal_vertices(costs)
    avoided = skipped_by_some(optimal, distances, costs)
    assert 0 < unique.sum() < 60
    for index, grid in enumerate(costs):
        paths = [set(path) for path in all_shortest_paths(grid)]
        every, common = set.union(*paths), set.intersection(*paths)
        assert unique[index] == (len(paths) == 1)
        assert every == set(zip(*np.nonzero(optimal[index]), strict=True))
        assert every - common == set(zip(*np.nonzero(avoided[index]), strict=True))


def test_maps_do_not_depend_on_how_many_are_drawn_at_once(drawn):
    few = terrain.draw(3, size=12, seed=3, first=33)
    for part, whole in zip(few, drawn, strict=True):
        assert np.array_equal(part, whole[33:36])


def test_seeds_and_splits_differ(drawn):
    for other in (terrain.draw(1, seed=4), terrain.draw(1, seed=3, split="val")):
        assert (other.maps[0] != drawn.maps[0]).mean() > 0.5


def test_terrains_can_be_told_apart_at_their_vertices_but_vary(drawn):
    # The 2×2 pixels around a vertex, at (8i + 4, 8j + 4), show its own terrain.
    centres = drawn.maps.reshape(40, 12, 8, 12, 8, 3)[:, :, 3:5, :, 3:5].mean(axis=(2, 4))
    colours = [centres[drawn.weights == cost] for cost in terrain.COSTS]
    means = np.stack([colour.mean(axis=0) for colour in colours])
    gaps = np.linalg.norm(means[:, None] - means[None], axis=-1) + 1e3 * np.eye(5)
    assert gaps.min() > 20
    assert min(colour.std(axis=0).min() for colour in colours) > 4
    nearest = np.linalg.norm(centres[..., None, :] - means, axis=-1).argmin(axis=-1)
    right = (terrain.COSTS[nearest] == drawn.weights).mean()
    assert 0.6 < right < 0.99, "colour alone has to help, and not to do"


def test_regions_are_connected(drawn):
    same = drawn.weights[:, 1:] == drawn.weights[:, :-1]
    assert same.mean() > 0.45  # drawn corner by corner, 22 % would agree


@pytest.mark.parametrize("size", [2, 5, 24])
def test_other_sizes(size):
    maps, weights, paths = terrain.draw(2, size=size)
    assert maps.shape == (2, 8 * size, 8 * size, 3)
    assert weights.shape == paths.shape == (2, size, size)
    assert (paths[:, 0, 0] == 1).all()
    assert (paths[:, -1, -1] == 1).all()


def test_make_writes_the_drawn_maps_and_counts_them(tmp_path):
    calls = []
    folder = terrain.make(tmp_path, size=4, counts=(40, 2, 3), seed=8, advance=calls.append)
    assert folder == tmp_path / "terrain" / "4x4"
    assert calls == [32, 8, 2, 3]
    for split, count in (("train", 40), ("val", 2), ("test", 3)):
        files = Terrain(tmp_path, split, size=4)
        wanted = terrain.draw(count, size=4, seed=8, split=split)
        assert len(files) == count
        for found, part in zip((files.maps, files.weights, files.paths), wanted, strict=True):
            assert np.array_equal(found, part)
    assert files.settings == {"version": terrain.VERSION, "size": 4, "counts": [40, 2, 3], "seed": 8}
    assert not list(folder.glob("*.part"))


def test_make_again_leaves_the_set_and_other_settings_are_refused(tmp_path):
    folder = terrain.make(tmp_path, size=3, counts=(2, 1, 1))
    before = (folder / "train_maps.npy").stat().st_mtime_ns
    terrain.make(tmp_path, size=3, counts=(2, 1, 1))
    assert (folder / "train_maps.npy").stat().st_mtime_ns == before
    with pytest.raises(ArgumentError, match=r"other settings.*overwrite=True"):
        terrain.make(tmp_path, size=3, counts=(2, 1, 1), seed=1)
    terrain.make(tmp_path, size=3, counts=(2, 1, 1), seed=1, overwrite=True)
    assert Terrain(tmp_path, size=3).settings["seed"] == 1
    assert list((tmp_path / "terrain").iterdir()) == [folder]


def test_an_interrupted_replacement_loses_nothing(tmp_path):
    terrain.make(tmp_path, size=3, counts=(2, 1, 1))

    def fail(more):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        terrain.make(tmp_path, size=3, counts=(2, 1, 1), seed=1, overwrite=True, advance=fail)
    assert Terrain(tmp_path, size=3).settings["seed"] == 0
    assert len(list((tmp_path / "terrain").iterdir())) == 1


def test_an_interrupted_make_leaves_no_set_and_no_half_files(tmp_path):
    def interrupt(more):
        if more < 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        terrain.make(tmp_path, size=3, counts=(40, 1, 1), advance=interrupt)
    assert list((tmp_path / "terrain").iterdir()) == []
    with pytest.raises(DataNotFoundError, match=r"data make terrain --size 3 .*terrain\.make"):
        Terrain(tmp_path, size=3)


def test_damage_is_found(tmp_path):
    folder = terrain.make(tmp_path, size=3, counts=(2, 1, 1))
    Terrain(tmp_path, "val", size=3)
    path = folder / "val_maps.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="md5 sum"):
        Terrain(tmp_path, "val", size=3)
    assert len(Terrain(tmp_path, "val", size=3, check=False)) == 1
    path.write_bytes(content[:-5])
    with pytest.raises(DataError, match=r"val_maps\.npy"):
        Terrain(tmp_path, "val", size=3)
    path.unlink()
    with pytest.raises(DataNotFoundError, match=r"val_maps\.npy was not found"):
        Terrain(tmp_path, "val", size=3)
    for content in ("{", "[]", "{}"):
        (folder / "terrain.json").write_text(content)
        with pytest.raises(DataError, match=r"terrain\.json is damaged"):
            Terrain(tmp_path, size=3)


def test_splits_are_normalised_by_the_training_maps(tmp_path):
    terrain.make(tmp_path, size=3, counts=(6, 2, 2))
    splits = Terrain.splits(tmp_path, size=3)
    pixels = Terrain(tmp_path, size=3).maps.reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(splits.train.mean, pixels.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(splits.test.std, pixels.std(axis=0), rtol=1e-6)
    image = splits.val.batch(torch.tensor([1])).images
    wanted = (Terrain(tmp_path, "val", size=3).maps[1] - pixels.mean(axis=0)) / pixels.std(axis=0)
    np.testing.assert_allclose(image[0].permute(1, 2, 0), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "at least one"),
        ({"count": 1, "size": 1}, "2 to 128"),
        ({"count": 1, "seed": -1}, "seed=-1"),
        ({"count": 1, "first": -1}, "first=-1"),
        ({"count": 1, "split": "trian"}, "'train', 'val', 'test'"),
    ],
)
def test_arguments_that_cannot_be(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        terrain.draw(**arguments)


def test_the_facts_name_every_file(tmp_path):
    folder = terrain.make(tmp_path, size=2, counts=(1, 1, 1))
    facts = json.loads((folder / "terrain.json").read_text())
    assert set(facts["md5"]) == {path.name for path in folder.glob("*.npy")}
    assert len(facts["md5"]) == 9


@pytest.mark.parametrize("name", ["val_maps.npy", "terrain.json"])
def test_a_damaged_set_is_drawn_anew_as_its_error_says(tmp_path, name):
    root = tmp_path / "my data"
    folder = terrain.make(root, size=3, counts=(2, 1, 1), seed=7)
    whole = (folder / "val_maps.npy").read_bytes()
    (folder / name).write_bytes(b"{")
    with pytest.raises(DataError, match="damaged") as error:
        Terrain.splits(root, size=3)
    command = shlex.split(str(error.value).partition("`newton-losses ")[2].partition("`")[0])
    if name == "terrain.json":  # which knew the numbers
        command += ["--train", "2", "--test", "1", "--seed", "7"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (folder / "val_maps.npy").read_bytes() == whole
    assert [len(part) for part in Terrain.splits(root, size=3)] == [2, 1, 1]


def test_a_file_in_the_place_of_the_data_is_reported(tmp_path):
    (tmp_path / "letter").write_text("hello")
    with pytest.raises(DataNotFoundError, match="no finished set"):
        Terrain(tmp_path / "letter")
    with pytest.raises(DataError, match=r"letter.*could not be written \(Not a directory\)"):
        terrain.make(tmp_path / "letter", size=3, counts=(2, 1, 1))
