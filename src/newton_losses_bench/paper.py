"""What the paper says, read from `paper.toml`: settings, λ, figures. No number of the paper is kept anywhere else."""

import functools
import tomllib
from importlib import resources
from typing import Any

# A column of one of the paper's tables: its settings, and λ and figures for each variant.
Column = dict[str, Any]


@functools.cache
def read_paper() -> dict[str, Any]:
    """All of `paper.toml`. It is shared: do not change it."""
    with (resources.files(__package__) / "paper.toml").open("rb") as file:
        return tomllib.load(file)


def paper_protocol(task: str) -> dict[str, Any]:
    """How long the paper trains, on how large batches, with how many seeds.

    >>> paper_protocol("paths")
    {'data': 'warcraft', 'epochs': 50, 'batch_size': 70, 'seeds': 10}
    """
    return dict(read_paper()["protocol"][task])


def paper_grid() -> tuple[float, ...]:
    """The λ that the paper has chosen from."""
    return tuple(read_paper()["grid"]["dampings"])


def nearest_column(task: str, algorithm: str, n: int | None = None, norm: str | None = None) -> Column:
    """The column whose settings an experiment takes: its algorithm's, with its norm, at the nearest length of sets.

    Without a norm, and for other algorithms than Bellman-Ford, it is the first, that of a for loop and the L₁ norm.

    >>> nearest_column("sorting", "softsort", n=7)["fisher"]["damping"]  # the paper's for n = 5
    10.0
    """
    if task == "convex":
        convex = read_paper()["convex"]
        return {"settings": convex["settings"], "fisher": {"damping": convex["damping"]}}
    columns = (
        column
        for column in read_paper()["column"]
        if (column["settings"]["task"], column["settings"]["algorithm"]) == (task, algorithm)
        and norm in (None, column["settings"].get("norm", norm))
    )
    return min(columns, key=lambda column: abs(column["settings"].get("n", 0) - (n or 0)))


def usual_damping(column: Column, curvature: str) -> float:
    """λ of a column for a curvature: the paper's, or that of the empirical Fisher where it has none.

    It has no Hessian for Bellman-Ford, which was too expensive there, and no control by the energy of the gradients,
    which is the mean eigenvalue of the empirical Fisher and so on its scale.
    """
    return float(column[curvature if curvature in column else "fisher"]["damping"])
