"""Is a damping that needs no tuning as good as the best λ of the paper's grid? Training runs, and a table.

    python benchmarks/damping.py                                    # CPU: the demonstration's task
    python benchmarks/damping.py --data mnist --n 5 --steps 10000 --device cuda --precision bf16
    python benchmarks/damping.py --data terrain --epochs 50 --device cuda

A cell is an algorithm, its numerics and a curvature. In each cell the paper's grid of λ, `--damping normalized` with
several factors and the plain loss are trained from several seeds. Every run is an ordinary run folder, and what is
finished is kept in one JSON file: killed, the command goes on where it was. `normalized:1000` is a control: with so
much damping nothing is left of the curvature, and the step is the gradient normalised over the batch.
"""

import argparse
import json
import math
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from newton_losses_bench.config import PATHS_ALGORITHMS, SORTING_ALGORITHMS, PathsConfig, RunConfig, SortingConfig
from newton_losses_bench.demo import DEMO
from newton_losses_bench.train import run

GRID = tuple(10.0**power for power in range(-3, 4))
FACTORS = ("normalized:0.1", "normalized", "normalized:10")
CONTROL = "normalized:1000"
# Exact match of a set, or of a path.
FIGURES = {"glyphs": "exact_match", "mnist": "exact_match", "terrain": "perfect_match"}


@dataclass(frozen=True)
class Cell:
    """What is held fixed while dampings are compared."""

    algorithm: str
    numerics: str | None
    curvature: str

    def __str__(self) -> str:
        return " ".join(filter(None, (self.algorithm, self.numerics, self.curvature)))

    def baseline(self) -> "Cell":
        return Cell(self.algorithm, self.numerics, "none")


def cells(options: argparse.Namespace) -> list[Cell]:
    """All cells of a task, those named by `--only` where it is given."""
    if options.data == "terrain":
        found = [Cell(a, None, c) for a in PATHS_ALGORITHMS for c in ("fisher", "hessian")]
        found = [cell for cell in found if (cell.algorithm, cell.curvature) != ("smoothed-algorithm", "hessian")]
    else:
        found = [
            Cell(algorithm, numerics, curvature)
            for curvature in ("fisher", "hessian")
            for numerics in ("stable", "reference")
            for algorithm in SORTING_ALGORITHMS
        ]
    return [cell for cell in found if all(word in str(cell).split() for word in (options.only or "").split())]


def planned(options: argparse.Namespace) -> Iterator[tuple[Cell, str, int]]:
    """Cell, arm and seed of every run; seed by seed, so that a table can be made early."""
    arms = (*(f"{damping:g}" for damping in GRID), *FACTORS, CONTROL)
    for seed in range(options.seeds):
        for cell in cells(options):
            yield cell.baseline(), "none", seed
            for arm in options.arms or arms:
                yield cell, arm, seed


def configuration(cell: Cell, arm: str, seed: int, options: argparse.Namespace) -> RunConfig:
    """The run of an arm."""
    settings: dict[str, Any] = {"algorithm": cell.algorithm, "curvature": cell.curvature, "seed": seed}
    name, _, factor = arm.partition(":")
    if name == "relative":
        settings["relative_damping"] = float(factor or 1)
    elif name != "none":
        settings["damping"] = arm
    settings |= {"device": options.device, "precision": options.precision, "data_root": options.data_root}
    if options.data == "terrain":
        maps = {"size": options.size, "train_maps": options.maps, "test_maps": max(options.maps // 10, 100)}
        return PathsConfig(**settings, **maps, epochs=options.epochs, eval_every=options.epochs).resolved()
    settings |= {"numerics": cell.numerics, "steps": options.steps, "n": options.n}
    if options.data == "glyphs":
        return replace(DEMO, **settings, eval_every=options.steps // 2).resolved()
    return SortingConfig(**settings, eval_every=min(1000, options.steps)).resolved()


def train(options: argparse.Namespace, store: Path) -> None:
    """Make every planned run that the store does not have yet."""
    share, of = options.share
    for number, (cell, arm, seed) in enumerate(dict.fromkeys(planned(options))):
        if number % of != share or (str(cell), arm, seed) in read(store):
            continue
        config = configuration(cell, arm, seed, options)
        folder = options.runs / store.stem / f"{cell}-{arm}-{seed}".replace(" ", "-").replace(":", "x")
        result = run(config, str(folder))
        figures = {"test": result["test"], "skipped": result["final"]["skipped_samples"], "seconds": result["seconds"]}
        with store.open("a") as file:
            file.write(json.dumps({"cell": str(cell), "arm": arm, "seed": seed, **figures}) + "\n")
        print(f"{cell}  {arm}  seed {seed}: {result['test'][FIGURES[options.data]]:.1f} %", flush=True)
        shutil.rmtree(folder)


def read(store: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The finished runs by cell, arm and seed."""
    lines = store.read_text().splitlines() if store.exists() else []
    records = [json.loads(line) for line in lines]
    return {(r["cell"], r["arm"], r["seed"]): r for r in records}


def table(options: argparse.Namespace, store: Path) -> str:
    """The comparison as Markdown, a row a cell."""
    records = read(store)
    usual = ("none", *(f"{damping:g}" for damping in GRID), *FACTORS, CONTROL)
    others = [arm for arm in dict.fromkeys(arm for _, arm, _ in records) if arm not in usual]
    columns = ["plain", "best of λ", "which λ", *FACTORS, CONTROL, *others, "noise", "normalized − best"]
    rows = ["| cell | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for cell in cells(options):
        seeds = {seed for name, arm, seed in records if (name, arm) == (str(cell), "normalized")}
        values = {
            arm: [
                record["test"][FIGURES[options.data]]
                for (name, known, seed), record in records.items()
                if known == arm and seed in seeds and name == str(cell.baseline() if arm == "none" else cell)
            ]
            for arm in (*usual, *others)
        }
        # An arm with fewer seeds than the others would be compared with noise.
        values = {arm: found for arm, found in values.items() if len(found) == len(seeds)}
        if values.get("normalized"):
            rows.append(f"| {cell} | " + " | ".join(_row(values, others)) + " |")
    return "\n".join(rows)


def _row(values: dict[str, list[float]], others: list[str]) -> list[str]:
    means = {arm: statistics.fmean(found) for arm, found in values.items() if found}
    best = max((f"{damping:g}" for damping in GRID), key=lambda arm: means.get(arm, -math.inf))
    noise = _noise(values)
    shown = [f"{means[arm]:.1f}" if arm in means else "–" for arm in (*FACTORS, CONTROL, *others)]
    difference = means["normalized"] - means.get(best, math.nan)
    verdict = f"{difference:+.1f}" + (" ✗" if difference < -noise else "")
    plain = f"{means['none']:.1f}" if "none" in means else "–"
    return [plain, f"{means.get(best, math.nan):.1f}", best, *shown, f"{noise:.1f}", verdict]


def _noise(values: dict[str, list[float]]) -> float:
    """Two standard errors of a difference of two means, from the variances of all arms with several seeds."""
    several = [found for found in values.values() if len(found) > 1]
    if not several:
        return math.nan
    variance = statistics.fmean(statistics.variance(found) for found in several)
    return 2 * math.sqrt(2 * variance / min(len(found) for found in several))


def _share(text: str) -> tuple[int, int]:
    share, _, of = text.partition("/")
    return int(share), int(of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", choices=FIGURES, default="glyphs")
    parser.add_argument("--data-root")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--size", type=int, default=12, help="of the maps of terrain")
    parser.add_argument("--maps", type=int, default=10_000, help="of terrain, to train on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="cells whose name has all of these words, as in 'softsort fisher'")
    parser.add_argument("--arms", nargs="*", help="these only: numbers, normalized:FACTOR, relative:FACTOR")
    parser.add_argument("--share", type=_share, default=(0, 1), help="0/2 and 1/2 divide the runs among two processes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--out", type=Path, default=Path("results/damping"))
    parser.add_argument("--runs", type=Path, default=Path("runs/damping"))
    parser.add_argument("--report", action="store_true", help="only print the table of what is there")
    options = parser.parse_args()
    length = f"{options.epochs}epochs-{options.size}" if options.data == "terrain" else f"n{options.n}-{options.steps}"
    store = options.out / f"{options.data}-{length}.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    if options.device == "cpu":
        # Systems this small lose more to the exchange between threads than they gain.
        torch.set_num_threads(1)
    if not options.report:
        train(options, store)
    report = table(options, store)
    store.with_suffix(".md").write_text(report + "\n")
    print(report)


if __name__ == "__main__":
    main()
