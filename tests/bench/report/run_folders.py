"""Run folders written by hand, in the form that a finished run leaves, with figures that are made up."""

import json
import random
from pathlib import Path
from typing import Any

from newton_losses.bench.config import RunConfig
from newton_losses.bench.presets import Cell, cells

ENVIRONMENT = {"torch": "2.11.0", "gpu": "Made-up GPU", "commit": "0123456789abcdef", "command": "train"}


def write_run(
    folder: Path,
    config: RunConfig,
    test: dict[str, float],
    *,
    milliseconds: float = 2.0,
    finished: bool = True,
    changes: dict[str, Any] | None = None,
) -> Path:
    """One run; `changes` are put over its configuration, whatever they are."""
    configuration = {**config.to_dict(), **(changes or {})}
    steps = int(configuration.get("steps") or configuration["epochs"] * 143)
    curve = [
        {"step": steps * k // 5, "loss": 1 / k, "test": {name: value * (1 - 0.5**k) for name, value in test.items()}}
        for k in range(1, 6)
    ]
    curve[-1]["test"] = test
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"configuration": configuration, "environment": ENVIRONMENT}))
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(record) + "\n" for record in curve))
    if finished:
        result = {
            "configuration": configuration,
            "test": test,
            "reported": curve[-1],
            "final": curve[-1],
            "steps": steps,
            "seconds": steps * milliseconds / 1000,
            "milliseconds_per_step": milliseconds,
        }
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def write_cell(results: Path, cell: Cell, figures: dict[str, float], seeds: int = 3, **settings: Any) -> None:
    """Runs of a cell, a little different from seed to seed."""
    for seed in range(seeds):
        shift = random.Random(f"{cell.key}{seed}{settings}").uniform(-0.4, 0.4)
        config = cell.make(seed=seed, device="cpu", **settings)
        length = "-".join(str(value) for value in settings.values())
        test = {name: value + shift for name, value in figures.items()}
        write_run(results / f"{cell.key}-{length}-{seed}", config, test)


def write_everything(results: Path) -> None:
    """Made-up runs for every cell: the paper's figures, ten points less for the shortened protocol and terrain."""
    for cell in cells("table1"):
        base = next(one for one in cells("table1") if one.key == f"{cell.column}-{cell.variant}")
        papers = cell.paper or base.paper or {"exact_match": (40.0, 0.0), "element_wise": (80.0, 0.0)}
        bonus = 12.0 if cell.numerics == "stable" and cell.variant == "baseline" else 8.0 if cell.control else 0.0
        full = {name: figure[0] + bonus for name, figure in papers.items()}
        write_cell(results, cell, full, seeds=3, steps=100_000)
        write_cell(results, cell, {name: value - 10 for name, value in full.items()}, steps=10_000)
    for cell in (*cells("table2"), *cells("table3")):
        assert cell.paper is not None
        write_cell(results, cell, {"perfect_match": cell.paper["perfect_match"][0] - 10}, data="terrain", epochs=50)
    for cell in cells("ablation"):
        if cell.variant != "baseline":
            damping = cell.config["damping"]
            value = 92.0 - (2.0 if cell.algorithm == "neuralsort" else 0.5) * abs(damping - 1) ** 0.2
            # The paper's own λ is a cell of table 1 already, and one run has one record.
            if damping not in (0.01, 0.1, 10.0):
                write_cell(results, cell, {"exact_match": 80.0, "element_wise": value}, steps=10_000)
