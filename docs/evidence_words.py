"""What the sections of docs/evidence.md are written with: tables, figures, commands."""

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from newton_losses_bench.groups import Group
from newton_losses_bench.statistics import Summary

T = TypeVar("T")
NOT_RUN, NOTHING = "not run", "–"
PATHS_ARMS = {"baseline": "plain", "fisher": "Fisher", "hessian": "Hessian"}
ARMS = {**PATHS_ARMS, "fisher-auto": 'Fisher, "auto"', "hessian-auto": 'Hessian, "auto"'}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in [heads, ["---"] * len(heads), *rows])


def written(figure: Summary | None) -> str:
    return NOT_RUN if figure is None else f"{figure} ({figure.count})"


def probability(p: float) -> str:
    return NOTHING if math.isnan(p) else f"{p:.2f}"


def there(several: Iterable[T | None]) -> list[T]:
    return [one for one in several if one is not None]


def commands(several: Iterable[str], groups: Sequence[Group], least: int = 1) -> str:
    """Commands with as many seeds and in the precision that the runs have."""
    seeds = max((1 + record.seed for group in groups for record in group.records), default=1)
    precisions = sorted({group.protocol["precision"] for group in groups}) or ["bf16"]
    return "".join(
        f"    newton-losses {one} --seeds {max(seeds, least)} --precision {precision} --device cuda\n"
        for precision in precisions
        for one in several
    )
