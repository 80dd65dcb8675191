"""The cells of the paper's tables, made from `paper.toml`, and the columns that the paper does not have.

For every sorting cell there are, beside the paper's three variants, the same three with stable numerics, and two
controls on the paper's numerics: a clipped gradient norm, and a division by the energy of the batch's gradients.
"""

import fnmatch
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from newton_losses.errors import ArgumentError

from .config import NOT_THE_EXPERIMENT, PROTOCOL, RunConfig, configuration_class
from .settings import check_choice, check_name, read_paper

TABLES = ("table1", "table2", "table3", "ablation", "runtimes", "cvxpy")
OURS = "ours"  # columns of `paper.toml` that are in no table of the paper, and that nothing reproduces
VARIANTS = ("baseline", "hessian", "fisher")
CLIP_NORM = 1.0
MINUTES = "minutes"

Figure = tuple[float, float]
_OF_A_RUN = ("seed", *NOT_THE_EXPERIMENT)
# Runtimes need steps, not results: enough of them to time, and no evaluation that would count.
TIMED: dict[str, dict[str, Any]] = {
    "sorting": {"steps": 2000, "eval_every": 2000, "validation_sets": 100, "test_sets": 100},
    "paths": {"epochs": 10, "eval_every": 10},
}


@dataclass(frozen=True)
class Cell:
    """One cell: what to run, and what the paper reports for it.

    - `column` names the comparison (`softsort-n5`), `key` the cell itself (`softsort-n5-fisher`).
    - `variant` is "baseline", "hessian" or "fisher"; `control` "clip" or "energy" where it is one, else `None`.
    - `config` holds settings of the task's configuration, without seed and length.
    - `protocol` holds settings of the table itself, such as the few steps of a timed run.
    - `paper` is mean and standard deviation by metric, `None` where the paper has none; `paper_bold` is "black",
      "grey" or "" for each of them, `None` where the paper has no marks.
    - `paper_seeds` holds the paper's figures per seed, where it has no others.
    """

    table: str
    column: str
    key: str
    variant: str
    control: str | None
    config: dict[str, Any]
    protocol: dict[str, Any]
    paper: dict[str, Figure] | None = None
    paper_bold: dict[str, str] | None = None
    paper_seeds: dict[int, float] | None = None

    @property
    def task(self) -> str:
        return str(self.config["task"])

    @property
    def algorithm(self) -> str:
        return str(self.config["algorithm"])

    @property
    def numerics(self) -> str | None:
        """ "stable" or "reference"; only sorting has the choice."""
        return self.config.get("numerics")

    def changed(self, settings: dict[str, Any]) -> Self:
        """This cell with other settings than the paper's. Seeds and protocol are no part of a cell."""
        own = {name: value for name, value in settings.items() if name not in (*PROTOCOL, *_OF_A_RUN)}
        return replace(self, config={**self.config, **own})

    def make(self, **settings: Any) -> RunConfig:
        """The resolved configuration of this cell; `settings`, such as a seed, override its own.

        >>> cell = cells("table1", only="softsort-n5-fisher")[0]
        >>> config = cell.make(seed=3, steps=10_000, device="cpu")
        >>> config.damping, config.seed, config.numerics
        (10.0, 3, 'reference')
        """
        wanted = {**self.config, **self.protocol, **settings}
        kind = configuration_class(wanted.pop("task"))
        for name in wanted:
            check_name(kind, name)
        return kind(**wanted).resolved()


def cells(
    table: str, *, only: str | None = None, numerics: str | None = None, controls: bool = True
) -> tuple[Cell, ...]:
    """The cells of a table.

    `only` keeps cells whose key contains a name (softsort, n5, softsort-n5) or matches a pattern with * and ?; separate
    several with commas. `numerics` keeps the sorting cells with these numerics; `controls=False` drops the controls.

    >>> [cell.key for cell in cells("table2", only="*-for-l1-*")]
    ['bellman-ford-for-l1-baseline', 'bellman-ford-for-l1-fisher']
    """
    check_choice("table", table, (*TABLES, OURS), "table")
    found = tuple(
        cell
        for cell in _all_cells()
        if cell.table == table
        and (only is None or matches(cell.key, only))
        and (numerics is None or cell.numerics in (None, numerics))
        and (controls or cell.control is None)
    )
    if not found:
        chosen = f"--only {only}: " if only is not None else ""
        raise ArgumentError(
            f"{chosen}no cell of {table} is chosen. `newton-losses reproduce list {table}` lists them by name."
        )
    return found


def matches(key: str, patterns: str) -> bool:
    """Whether a key contains one of the comma-separated names, or as a whole matches one with * or ?.

    >>> matches("softsort-n5-fisher", "softsort-n5"), matches("softsort-n5-fisher", "*-n10-*,*-hessian")
    (True, False)
    >>> matches("softsort-n5-fisher", "soft"), matches("fenchel-young-30-fisher", "fenchel-young-3")
    (False, False)
    """
    parts = [part.strip() for part in patterns.split(",")]
    return any(
        fnmatch.fnmatchcase(key, part) if set(part) & set("*?[") else f"-{part}-" in f"-{key}-" for part in parts
    )


@functools.cache
def _all_cells() -> tuple[Cell, ...]:
    paper = read_paper()
    columns = {column["key"]: column for column in paper["column"]}
    found = [cell for column in columns.values() for cell in _column(column)]
    for name in paper["ablation"]["columns"]:
        found.extend(_ablation(columns[name], paper["ablation"]["dampings"]))
    for name, times in paper["runtimes"].items():
        found.extend(_runtimes(columns[name], times))
    found.extend(_convex(paper["convex"]))
    return tuple(found)


def _column(column: dict[str, Any]) -> Iterator[Cell]:
    """The paper's variants of a column, then the stable ones, then the controls."""
    papers = [_paper_cell(column, variant) for variant in VARIANTS if variant in column]
    yield from papers
    if column["settings"]["task"] != "sorting":
        return
    for cell in papers:
        stable = {**cell.config, "numerics": "stable"}
        yield _extra(cell, f"{cell.key}-stable", config=stable)
    baseline, name = papers[0], column["key"]
    clipped = {**baseline.config, "clip_norm": CLIP_NORM}
    yield _extra(baseline, f"{name}-clip", config=clipped, control="clip")
    normalised = {**baseline.config, "curvature": "energy", "damping": column["fisher"]["damping"]}
    yield _extra(baseline, f"{name}-energy", config=normalised, control="energy")


def _extra(cell: Cell, key: str, **changes: Any) -> Cell:
    return replace(cell, key=key, paper=None, paper_bold=None, **changes)


def _paper_cell(column: dict[str, Any], variant: str) -> Cell:
    settings = column["settings"]
    entries = dict(column[variant])
    config = {**settings, "curvature": "none" if variant == "baseline" else variant}
    if "damping" in entries:
        config["damping"] = entries.pop("damping")
    if settings["task"] == "sorting":
        config["numerics"] = "reference"
    marked = entries and not column.get("unmarked")
    return Cell(
        table=column["table"],
        column=column["key"],
        key=f"{column['key']}-{variant}",
        variant=variant,
        control=None,
        config=config,
        protocol={},
        paper={metric: (value[0], value[1]) for metric, value in entries.items()} or None,
        paper_bold={metric: value[2] if len(value) > 2 else "" for metric, value in entries.items()}
        if marked
        else None,
    )


def _ablation(column: dict[str, Any], dampings: list[float]) -> Iterator[Cell]:
    for cell in (_paper_cell(column, variant) for variant in VARIANTS):
        cell = replace(cell, table="ablation", paper=None, paper_bold=None)
        if cell.variant == "baseline":
            yield cell
            continue
        for damping in dampings:
            yield replace(cell, key=f"{cell.key}-{damping:g}", config={**cell.config, "damping": damping})


def _runtimes(column: dict[str, Any], times: dict[str, str]) -> Iterator[Cell]:
    for variant, time in times.items():
        cell = _paper_cell(column, variant)
        hours, _, minutes = time.partition(":")
        figure = (60.0 * int(hours) + int(minutes), math.nan)
        timed = TIMED[cell.task]
        yield replace(cell, table="runtimes", protocol=timed, paper={MINUTES: figure}, paper_bold=None)


def _convex(convex: dict[str, Any]) -> Iterator[Cell]:
    for variant in ("baseline", "fisher"):
        config = {**convex["settings"], "curvature": "none"}
        if variant == "fisher":
            config |= {"curvature": "fisher", "damping": convex["damping"]}
        seeds = {int(seed): value for seed, value in convex[variant].items()}
        yield Cell("cvxpy", "relu", f"relu-{variant}", variant, None, config, {}, paper_seeds=seeds)
