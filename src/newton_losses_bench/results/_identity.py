"""What makes two runs the same run, and the name of a run's folder that follows from it."""

import hashlib
import json
from typing import Any

from newton_losses.errors import ArgumentError

from ..checks import read_damping
from ..config import PathsConfig, RunConfig, SortingConfig
from ..convex import ConvexConfig

CONFIGURATIONS: dict[str, type[RunConfig]] = {kind.task: kind for kind in (SortingConfig, PathsConfig, ConvexConfig)}
# Where the data lies, on what it is computed, and what is only looked at beside the training. The precision is not
# among them: it is a choice of the experiment.
NOT_THE_EXPERIMENT = ("data_root", "device", "graph", "compile", "kernels", "average")


def configuration_class(task: object) -> type[RunConfig]:
    """The dataclass of a task's configurations."""
    if task not in CONFIGURATIONS:
        raise ArgumentError(f"There is no task {task!r}; there are {', '.join(CONFIGURATIONS)}.")
    return CONFIGURATIONS[str(task)]


def experiment(configuration: dict[str, Any]) -> dict[str, Any]:
    """The part of a stored configuration that makes the run what it is.

    A configuration written before a setting existed gets that setting's default, with which it ran.
    """
    complete = configuration_class(configuration.get("task")).from_dict(configuration).to_dict()
    if isinstance(complete["damping"], str):
        complete["damping"] = read_damping(complete["damping"])
    return {name: _plain(value) for name, value in complete.items() if name not in NOT_THE_EXPERIMENT}


def identity(configuration: dict[str, Any]) -> str:
    """A digest of `experiment`: equal for two records of one run, wherever they were made.

    >>> config = SortingConfig(algorithm="softsort", device="cpu").resolved().to_dict()
    >>> identity(config) == identity({**config, "device": "cuda", "compile": True})
    True
    >>> identity(config) == identity({**config, "steps": 10_000})
    False
    """
    return hashlib.sha256(json.dumps(experiment(configuration), sort_keys=True).encode()).hexdigest()


def run_name(configuration: dict[str, Any]) -> str:
    """The name of a run's folder: readable, the same for the same run, another for any other.

    >>> run_name(SortingConfig(algorithm="softsort", curvature="fisher", device="cpu").resolved().to_dict())
    'softsort-n5-stable-fisher-100000-s0-597a912c'
    """
    settings = experiment(configuration)
    arm = "baseline" if settings["curvature"] == "none" else settings["curvature"]
    parts = [settings["algorithm"], *_details(settings), arm]
    if settings.get("clip_norm") is not None:
        parts.append(f"clip{settings['clip_norm']:g}")
    length = f"{settings['epochs']:g}e" if "epochs" in settings else f"{settings['steps']:g}"
    return "-".join([*parts, length, f"s{settings['seed']:g}", identity(configuration)[:8]])


def _details(settings: dict[str, Any]) -> list[str]:
    if settings["task"] == "sorting":
        return [f"n{settings['n']:g}", settings["numerics"]]
    details = (settings.get("loop"), settings.get("norm"), settings.get("num_samples"))
    return [f"{value:g}" if isinstance(value, float) else value for value in details if value is not None]


def _plain(value: Any) -> Any:
    """10 and 10.0 are the same setting, and so are a tuple and the list that JSON makes of it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
