"""The two tasks, each with everything that belongs to it: data, network, loss, evaluation."""

from ...errors import ArgumentError
from ..config import PathsConfig, RunConfig, SortingConfig
from ._task import Figures as Figures
from ._task import Task as Task
from ._task import damping_rule as damping_rule
from .paths import PathsTask as PathsTask
from .sorting import SortingTask as SortingTask


def make_task(config: RunConfig) -> Task:
    """The task that a resolved configuration describes."""
    if isinstance(config, SortingConfig):
        return SortingTask(config)
    if isinstance(config, PathsConfig):
        return PathsTask(config)
    raise ArgumentError(f"There is no task for a {type(config).__name__}.")
