"""Many runs: one after another, several at once, or on a cluster, and always on from where they were."""

from ._command import train_command as train_command
from ._sweep import Pool as Pool
from ._sweep import SweepResult as SweepResult
from ._sweep import run_sweep as run_sweep
from ._sweep import split as split
from .counters import Failure as Failure
from .counters import Listener as Listener
from .display import Bars as Bars
from .display import Lines as Lines
from .jobs import Job as Job
