"""The tasks, each with everything that belongs to it: data, network, loss, evaluation."""

from ..config import ConvexConfig, PathsConfig, RunConfig, SortingConfig
from .convex import ConvexTask
from .paths import PathsTask as PathsTask
from .paths import load_maps as load_maps
from .sorting import SortingTask as SortingTask
from .task import EnergyCurvature as EnergyCurvature
from .task import Figures as Figures
from .task import Task as Task
from .task import damping_rule as damping_rule
from .task import random_stream as random_stream
from .task import training_loss as training_loss


def make_task(config: RunConfig) -> Task:
    """The task that a resolved configuration describes."""
    if isinstance(config, SortingConfig):
        return SortingTask(config)
    if isinstance(config, PathsConfig):
        return PathsTask(config)
    assert isinstance(config, ConvexConfig)
    return ConvexTask(config)
