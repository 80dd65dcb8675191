"""Run folders written by hand, in the form that a finished run leaves, with figures that are made up."""

import json
import random
from pathlib import Path
from typing import Any

from newton_losses_bench.cells import Cell as PaperCell
from newton_losses_bench.cells import cells
from newton_losses_bench.config import RunConfig
from newton_losses_bench.report import compose, gather, write_report
from newton_losses_bench.report.tables import Cell, Table

ENVIRONMENT = {"torch": "2.11.0", "gpu": "Made-up GPU", "commit": "0123456789abcdef", "command": "train"}


def write_run(
    folder: Path,
    config: RunConfig,
    test: dict[str, float],
    *,
    milliseconds: float = 2.0,
    finished: bool = True,
    changes: dict[str, Any] | None = None,
    validation: dict[str, float] | None = None,
    averaged: dict[str, float] | None = None,
) -> Path:
    """One run; `changes` are put over its configuration, whatever they are. `validation` is by default as `test`.

    With `averaged` the run had its averaged weights evaluated too, and these are their test figures.
    """
    configuration = {**config.to_dict(), **({"average": True} if averaged else {}), **(changes or {})}
    steps = int(configuration.get("steps") or configuration["epochs"] * 143)
    curve = [
        {"step": steps * k // 5, "loss": 1 / k, "test": {name: value * (1 - 0.5**k) for name, value in test.items()}}
        for k in range(1, 6)
    ]
    curve[-1].update(test=test, validation=validation or test)
    if averaged:
        for k, record in enumerate(curve, 1):
            record["averaged"] = {"test": {name: value * (1 - 0.5 ** (k + 1)) for name, value in averaged.items()}}
        curve[-1]["averaged"] = {"test": averaged}
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
        if averaged:
            result["averaged"] = {"step": steps, "validation": averaged, "test": averaged}
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def write_cell(
    results: Path,
    cell: PaperCell,
    figures: dict[str, float],
    seeds: int = 3,
    averaged: dict[str, float] | None = None,
    **settings: Any,
) -> None:
    """Runs of a cell, a little different from seed to seed, and averaged weights half as much."""
    for seed in range(seeds):
        shift = random.Random(f"{cell.key}{seed}{settings}").uniform(-0.4, 0.4)
        config = cell.make(seed=seed, device="cpu", **settings)
        length = "-".join(str(value) for value in settings.values())
        test = {name: value + shift for name, value in figures.items()}
        means = {name: value + shift / 2 for name, value in averaged.items()} if averaged else None
        write_run(results / f"{cell.key}-{length}-{seed}", config, test, averaged=means)


def write_many(results: Path) -> None:
    """Made-up runs for most cells: all of table 1 shortened, its n = 5 at full length, tables 2 and 3 on terrain.

    The figures are the paper's, ten points lower for the shortened protocol and for terrain; of the ablation
    there is SoftSort. In log space there are two losses at full length, with averaged weights a point higher.
    """
    for cell in cells("table1"):
        base = next(one for one in cells("table1") if one.key == f"{cell.column}-{cell.variant}")
        papers = base.paper or {"exact_match": (30.0, 0.0), "element_wise": (80.0, 0.0)}
        bonus = 5.0 if cell.numerics == "stable" or cell.control else 0.0
        figures = {name: figure[0] + bonus for name, figure in papers.items()}
        write_cell(results / "short", cell, {name: value - 10 for name, value in figures.items()}, steps=10_000)
        if cell.config["n"] == 5 and cell.numerics == "reference":
            write_cell(results / "full", cell, figures, steps=100_000)
        if cell.column in ("softsort-n5", "cauchy-n5") and cell.numerics == "stable":
            averaged = {name: value + 1 for name, value in figures.items()}
            write_cell(results / "full", cell, figures, averaged=averaged, steps=100_000)
    for cell in (*cells("table2"), *cells("table3")):
        assert cell.paper is not None
        figures = {"perfect_match": cell.paper["perfect_match"][0] - 10}
        write_cell(results / "terrain", cell, figures, data="terrain", epochs=50)
    for cell in cells("ablation", only="softsort"):
        # The paper's own λ is a cell of table 1 already, and one run has one record.
        if cell.variant != "baseline" and cell.config["damping"] != 10.0:
            figures = {"exact_match": 75.0, "element_wise": 84.0 - abs(cell.config["damping"] - 1) ** 0.2}
            write_cell(results / "ablation", cell, figures, steps=10_000)


_made: list[tuple[Path, Path]] = []


def results_and_page(tmp_path_factory) -> tuple[Path, Path]:
    """The folder of `write_many`, and the folder of the report about it: made once for all tests of a process."""
    if not _made:
        results, page = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("report")
        write_many(results)
        write_report(results, page)
        _made.append((results, page))
    return _made[0]


def tables_of(results: Path) -> dict[str, Table]:
    """The tables of the report about a folder, by name."""
    return {table.name: table for section in compose(gather(results)).sections for table in section.tables}


def row_of(table: Table, *labels: str) -> tuple[Cell, ...]:
    """The row that begins with these labels, without them."""
    (found,) = (row for row in table.rows if tuple(cell.text for cell in row[: len(labels)]) == labels)
    return found[len(labels) :]
