"""The commands that run cells which no table of `newton-losses reproduce` has, as sweeps over grids."""

from collections.abc import Sequence
from typing import Any

from ..cells import Cell

# What tells the cells of a sweep apart, and where it is not the setting's name, its option.
AXES = ("algorithm", "n", "loop", "norm", "num_samples", "curvature")
OPTIONS = {"num_samples": "samples"}


def sweeps(several: Sequence[Cell], length: str, damping: str = "auto") -> list[str]:
    """The sweeps that together run these cells with another damping than the paper's, and no other cell."""
    kinds: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
    for cell in several:
        own = [axis for axis in AXES if axis in cell.config]
        kinds.setdefault((cell.task, *own), []).append(tuple(cell.config[axis] for axis in own))
    found = []
    for (task, *axes), points in kinds.items():
        for grid in grids(points):
            named = zip(axes, grid, strict=True)
            options = [f"--{OPTIONS.get(axis, axis)} {','.join(map(str, values))}" for axis, values in named]
            found.append(" ".join(filter(None, [f"sweep {task}", *options, f"--damping {damping}", length])))
    return found


def grids(points: Sequence[tuple[Any, ...]]) -> list[list[list[Any]]]:
    """Points as few grids, each a list of values by axis, that have all of them and nothing else.

    >>> grids([("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1)])
    [[['a', 'b'], [1, 2]], [['c'], [1]]]
    """
    if not points[0]:
        return [[]]
    rests: dict[Any, list[tuple[Any, ...]]] = {}
    for first, *rest in points:
        rests.setdefault(first, []).append(tuple(rest))
    alike: dict[frozenset[tuple[Any, ...]], list[Any]] = {}
    for first, rest in rests.items():
        alike.setdefault(frozenset(rest), []).append(first)
    return [[values, *grid] for values in alike.values() for grid in grids(rests[values[0]])]
