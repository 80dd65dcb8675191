"""The tasks, each with everything that belongs to it: data, network, loss, evaluation."""

from collections.abc import Callable
from typing import Any

from .convex import ConvexTask as ConvexTask
from .paths import PathsTask as PathsTask
from .paths import load_maps as load_maps
from .sorting import SortingTask as SortingTask
from .task import EnergyCurvature as EnergyCurvature
from .task import Figures as Figures
from .task import Task as Task
from .task import Tell as Tell
from .task import random_stream as random_stream
from .task import training_loss as training_loss

# What a configuration's `task` stands for.
TASKS: dict[str, Callable[[Any], Task]] = {"sorting": SortingTask, "paths": PathsTask, "convex": ConvexTask}
