"""From a configuration to its data and its task."""

from typing import Any

from newton_losses.errors import ArgumentError

from ..config import PathsConfig, RunConfig, SortingConfig
from ..data import Splits
from ._task import Task
from .paths import PathsTask, load_maps
from .sorting import SortingTask, load_digits


def make_task(config: RunConfig, splits: Splits[Any] | None = None) -> Task:
    """The task that a resolved configuration describes; `splits` is its data where that has been read already."""
    if isinstance(config, SortingConfig):
        return SortingTask(config, splits)
    if isinstance(config, PathsConfig):
        return PathsTask(config, splits)
    raise _no_task(config)


def load_data(config: RunConfig) -> Splits[Any]:
    """The data of a resolved configuration, in memory."""
    if isinstance(config, SortingConfig):
        return load_digits(config)
    if isinstance(config, PathsConfig):
        return load_maps(config)
    raise _no_task(config)


def _no_task(config: RunConfig) -> ArgumentError:
    return ArgumentError(f"There is no task for a {type(config).__name__}.")
