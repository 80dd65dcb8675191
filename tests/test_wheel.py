"""The wheel, installed into an empty environment: with nothing, and with each extra.

Nothing is downloaded. An environment gets the wheel from pip, and the packages that the wheel asks for, and only those,
as links to the ones installed here; so what the code imports but the metadata forgets is missing there.
"""

import importlib.metadata
import os
import re
import runpy
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("build")
requirements = pytest.importorskip("packaging.requirements")

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
# For each extra, a program that uses what it brings.
USES = {
    "": "import newton_losses as nl, torch; nl.NewtonLoss(lambda y: y.square().sum(1))(torch.ones(2, 3))",
    "bench": "from newton_losses_bench.data import Digits; from newton_losses_bench import report; Digits.splits()",
    "numba": "import torch; from newton_losses.paths import solve; solve(torch.ones(1, 3, 3), backend='numba')",
    "cvxpy": "import cvxpylayers.torch",
    "ray": "import ray",
    "docs": "import latex2mathml, material, mkdocs, mkdocstrings",
}


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """A program without this process's paths, its output in the error if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment, cwd=ROOT.anchor
    )
    if options.get("check", True):
        assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def wheel_of(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def test_distributions_are_small_and_their_metadata_is_in_order(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    assert source.stat().st_size < 1_000_000
    assert wheel_of(built).stat().st_size < 515_000
    run(sys.executable, "-m", "twine", "check", "--strict", source, wheel_of(built))


def test_description_links_to_nothing_that_the_index_lacks(built: Path) -> None:
    with zipfile.ZipFile(wheel_of(built)) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        description = archive.read(metadata).decode().partition("\n\n")[2]
    assert "nl.NewtonLoss(my_loss)" in description
    links = re.findall(r"\]\((\S+?)\)", description)
    assert all(link.startswith("https://") for link in links), links


def test_description_leads_to_the_repository_where_that_is_known() -> None:
    pytest.importorskip("hatchling")
    made = runpy.run_path(str(ROOT / "hatch_build.py"))["description"]
    text = "![map](docs/map.svg)\n\n[guide](docs/guide.md#part) [paper](https://arxiv.org/abs/1) [here](#here)"
    assert made(text, "https://example.org/a/b/", "1.2") == (
        "![map](https://example.org/a/b/raw/v1.2/docs/map.svg)\n\n"
        "[guide](https://example.org/a/b/blob/v1.2/docs/guide.md#part) [paper](https://arxiv.org/abs/1) [here](#here)"
    )
    assert made(text, None, "1.2") == "guide [paper](https://arxiv.org/abs/1) [here](#here)"
    assert made("[guide](docs/guide.md) · [map](docs/map.md)", None, "1.2").startswith("The guides")


def test_wheel_has_what_users_need_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(wheel_of(built)) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"newton_losses", "newton_losses_bench"}
    kept = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    if kept:
        packed = {name for name in names if ".dist-info" not in name}
        of_the_benchmark = re.compile(r"src/newton_losses_bench/kernels/.*\.(cu|md)")  # made for one kind of GPU
        assert packed == {name.removeprefix("src/") for name in kept if not of_the_benchmark.fullmatch(name)}
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        assert not [name for name in archive.getnames() if "/results/" in name]


def needed(asked: Iterable[str]) -> dict[str, importlib.metadata.Distribution]:
    """The installed distributions that requirements lead to; raises where one is not installed."""
    found: dict[str, importlib.metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    left = [(text, "") for text in asked]
    while left:
        text, extra = left.pop()
        requirement = requirements.Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = requirement.name.lower().replace("_", "-")
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                found[name] = importlib.metadata.distribution(name)
                left += [(inner, wanted) for inner in found[name].requires or ()]
    return found


def lend(distributions: Iterable[importlib.metadata.Distribution], folder: Path) -> None:
    """Links to what these distributions have installed here."""
    folder.mkdir()
    for distribution in distributions:
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution.locate_file(top))))


@pytest.mark.parametrize("extra", USES)
def test_wheel_in_an_empty_environment(built: Path, tmp_path: Path, extra: str) -> None:
    wheel = wheel_of(built)
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        lines = archive.read(metadata).decode().split("\n\n")[0].splitlines()
    asked = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    asked = [text for text in asked if "extra ==" not in text or f"extra == '{extra}'" in text]
    try:
        distributions = needed(text.split(";")[0] for text in asked)
    except importlib.metadata.PackageNotFoundError as missing:
        pytest.skip(f"needs what the extra {extra!r} asks for, here {missing}")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    lend(distributions.values(), tmp_path / "lent")
    (packages / "lent.pth").write_text(f"{tmp_path / 'lent'}\n")

    # pip finds every requirement in place, so without an index it has nothing to fetch.
    name = f"newton-losses[{extra}]" if extra else "newton-losses"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-index", f"{name} @ {wheel.as_uri()}")
    run(python, "-c", USES[extra])
    where = run(python, "-c", "import newton_losses; print(newton_losses.__file__, newton_losses.__version__)").stdout
    assert str(packages) in where

    command = run(tmp_path / "venv" / "bin" / "newton-losses", "--help", check=False)
    if {"typer", "rich"} <= set(distributions):
        assert command.returncode == 0
        assert "reproduce" in command.stdout
        assert "extra bench" in " ".join(run(tmp_path / "venv" / "bin" / "newton-losses", "info").stdout.split())
    else:
        assert command.returncode == 2
        assert "pip install 'newton-losses[bench]'" in command.stderr
        assert "Traceback" not in command.stderr
