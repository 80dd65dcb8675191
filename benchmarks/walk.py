"""The walk of a reader: how many of our files one call leads through, and how the files depend on each other.

    python benchmarks/walk.py          # --list names the files

Follows real calls on tiny problems. A file counts when one of its functions runs; a cross-file call is a call from a
function of ours into another of our files, also where torch or the standard library stands between the two. Code that
runs on import is left out. The rest is read from the source: private imports across packages, files and lines.
"""

import argparse
import ast
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

import newton_losses as nl
from newton_losses_bench.config import SortingConfig
from newton_losses_bench.report import write_report
from newton_losses_bench.train import run

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGES = ("newton_losses", "newton_losses_bench")
SHORT, LONG = 45, 400
# The aims of issue 22; a row without one is there to be looked at.
TARGETS = {
    "a training step": 15,
    "its set-up": 20,
    "a later NewtonLoss call": 6,
    "the report": 20,
    "private imports across packages": 0,
}


@dataclass
class Walk:
    """The files whose functions ran, and how often a call went from one of our files into another."""

    files: set[str] = field(default_factory=set)
    calls: int = 0


class Follower:
    """Follows all calls of this thread inside its `with` block, into the walk of the phase that was named last."""

    def __init__(self, phase: str) -> None:
        self.walks: dict[str, Walk] = {}
        self.enter(phase)

    def enter(self, phase: str) -> None:
        """What is called from here on belongs to this phase."""
        self._walk = self.walks.setdefault(phase, Walk())

    def __enter__(self) -> Self:
        self._earlier = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._earlier)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _is_ours(frame) or frame.f_code.co_name == "<module>":
            return
        self._walk.files.add(frame.f_code.co_filename)
        caller = frame.f_back
        while caller is not None and not _is_ours(caller):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != frame.f_code.co_filename:
            self._walk.calls += 1


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(str(SOURCE))


def training_walks(folder: Path) -> dict[str, Walk]:
    """The set-up of a run, up to the network's first forward pass, and its third step, from optimizer to optimizer."""
    config = SortingConfig(
        algorithm="softsort", curvature="fisher", data="digits", digits=1, n=3, batch_size=4, steps=4, eval_every=4,
        validation_sets=5, test_sets=5, device="cpu",
    )  # fmt: skip
    steps = 0

    def forward(*_: Any) -> None:
        if not steps:
            follower.enter("the first step")

    def stepped(*_: Any) -> None:
        nonlocal steps
        steps += 1
        follower.enter("a training step" if steps == 2 else "other steps")

    hooks = register_module_forward_pre_hook(forward), register_optimizer_step_post_hook(stepped)
    try:
        with Follower("its set-up") as follower:
            run(config, str(folder))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: follower.walks[name] for name in ("a training step", "its set-up")}


def newton_walks() -> dict[str, Walk]:
    """A user's `NewtonLoss(...)(y, t).backward()`: the first call with the constructor, and a later one."""
    y, t = torch.randn(8, 5, requires_grad=True), torch.randn(8, 5)
    with Follower("a first NewtonLoss call") as follower:
        newton = nl.NewtonLoss(lambda y, t: (y - t).sin().square().sum(1), curvature="hessian")
        newton(y, t).backward()
        newton(y, t).backward()
        follower.enter("a later NewtonLoss call")
        newton(y, t).backward()
    return follower.walks


def report_walks(runs: Path, out: Path) -> dict[str, Walk]:
    """The report on a store with one tiny run."""
    with Follower("the report") as follower:
        write_report(runs, out)
    return follower.walks


def private_imports(files: Iterable[Path]) -> list[str]:
    """Imports of a private module, or of a private name, of one of our packages from outside that package."""
    return [f"{_short(file)}: {name}" for file in files for name in _imported(file) if is_private_to_others(name, file)]


def is_private_to_others(name: str, file: Path) -> bool:
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            owner = SOURCE.joinpath(*parts[:index])
            # A module's private name is that module's own; a package's private module is that of all in the package.
            return file != owner.with_suffix(".py") and not file.is_relative_to(owner)
    return False


def _imported(file: Path) -> Iterator[str]:
    """The names in full that a file imports from our packages, at its top or where they are used."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                package = file.relative_to(SOURCE).parts[: -node.level]
                origin = ".".join([*package, *([origin] if origin else [])])
            names = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in PACKAGES)


def _short(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def followed() -> dict[str, Walk]:
    """All walks by name."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder, "runs")
        training = training_walks(runs / "tiny")
        return training | newton_walks() | report_walks(runs, Path(folder, "report"))


def table(walks: dict[str, Walk], verbose: bool = False) -> str:
    """Everything that is counted, beside what it should be."""
    source, tests = (sorted((ROOT / name).rglob("*.py")) for name in ("src", "tests"))
    lines = [f"{'':40} {'files':>7} {'cross-file calls':>17} {'at most':>9}"]
    for name, walk in walks.items():
        lines.append(f"{name:40} {len(walk.files):7} {walk.calls:17} {TARGETS.get(name, ''):>9} files")
        if verbose:
            lines += [f"    {_short(Path(file))}" for file in sorted(walk.files)]
    lines += ["", f"{'':40} {'files':>7} {'lines':>17}"]
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in source}
    for package in PACKAGES:
        rooms = Counter[str]()
        sizes = Counter[str]()
        for file, length in lengths.items():
            if file.is_relative_to(SOURCE / package):
                room = "/".join(file.relative_to(SOURCE).parts[:-1])
                for name in {package, room}:
                    rooms[name] += 1
                    sizes[name] += length
        lines += [f"{name:40} {rooms[name]:7} {sizes[name]:17}" for name in sorted(rooms)]
    lines.append(f"{'all of src':40} {len(lengths):7} {sum(lengths.values()):17}")
    modules = {file: length for file, length in lengths.items() if not file.name.startswith("__")}
    counts = {
        f"modules under {SHORT} lines": [f"{_short(f)}: {n}" for f, n in modules.items() if n < SHORT],
        f"modules over {LONG} lines": [f"{_short(f)}: {n}" for f, n in modules.items() if n > LONG],
        "private imports across packages": private_imports(source),
        "private imports in tests": private_imports(tests),
    }
    lines += ["", f"{'':40} {'count':>7} {'at most':>27}"]
    for name, found in counts.items():
        lines.append(f"{name:40} {len(found):7} {TARGETS.get(name, ''):>27}")
        if verbose:
            lines += [f"    {one}" for one in found]
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name every file and import that is counted")
    print(table(followed(), parser.parse_args().list))
