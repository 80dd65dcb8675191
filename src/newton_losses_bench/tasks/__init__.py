"""The two tasks, each with everything that belongs to it: data, network, loss, evaluation."""

from .from_config import DataCache as DataCache
from .from_config import load_data as load_data
from .from_config import make_task as make_task
from .paths import PathsTask as PathsTask
from .sorting import SortingTask as SortingTask
from .task import Figures as Figures
from .task import Task as Task
from .task import damping_rule as damping_rule
from .task import random_stream as random_stream
from .task import training_loss as training_loss
