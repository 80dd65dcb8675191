"""`benchmarks/walk.py` counts what it says: files, calls between them, and imports of what is private."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def walk(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("walk")


def test_every_walk_is_followed_and_printed(walk: ModuleType) -> None:
    walks = walk.followed()
    assert list(walks) == [
        "a training step", "its set-up", "a first NewtonLoss call", "a later NewtonLoss call", "the report",
    ]  # fmt: skip
    for one in walks.values():
        assert len(one.files) > 1
        assert one.calls >= len(one.files) - 2
    later = {Path(file).name for file in walks["a later NewtonLoss call"].files}
    assert "newton.py" in later
    printed = walk.table(walks)
    for name, target in walk.TARGETS.items():
        (line,) = [line for line in printed.splitlines() if line.startswith(name)]
        assert str(target) in line
        assert int(line.removeprefix(name).split()[0]) <= target, f"take something away: {line}"


def test_a_file_is_one_idea(walk: ModuleType) -> None:
    long = [f"{file.name}: {n}" for file in walk.SOURCE.rglob("*.py") if (n := _lines(file)) > walk.LONG]
    assert not long, f"split what does two things: {long}"


def _lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def test_calls_between_files_are_counted_once_each(
    walk: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "SOURCE", tmp_path)
    (tmp_path / "walked_below.py").write_text("def below(): return inner()\ndef inner(): return 1\n")
    (tmp_path / "walked_above.py").write_text(
        "from walked_below import below\ndef above(): return list(map(lambda _: below(), range(3)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import walked_above  # type: ignore[import-not-found]

    with walk.Follower("here") as follower:
        walked_above.above()
    assert {Path(file).name for file in follower.walks["here"].files} == {"walked_above.py", "walked_below.py"}
    assert follower.walks["here"].calls == 3


def test_private_imports_are_those_from_outside_of_the_package(walk: ModuleType, tmp_path: Path) -> None:
    outside = walk.SOURCE / "newton_losses" / "newton.py"
    assert walk.is_private_to_others("newton_losses.curvature._solve.solve", outside)
    assert walk.is_private_to_others("newton_losses.errors._hidden", outside)
    assert not walk.is_private_to_others("newton_losses._random.seeded", outside)
    assert not walk.is_private_to_others("newton_losses.curvature.expand", outside)
    assert not walk.is_private_to_others("newton_losses.__version__", tmp_path / "test.py")
