"""The two tasks, each with everything that belongs to it: data, network, loss, evaluation."""

from ._make import load_data as load_data
from ._make import make_task as make_task
from ._task import Figures as Figures
from ._task import Task as Task
from ._task import damping_rule as damping_rule
from .kept import KeptData as KeptData
from .paths import PathsTask as PathsTask
from .sorting import SortingTask as SortingTask
