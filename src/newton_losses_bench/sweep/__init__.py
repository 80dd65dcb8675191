"""Many runs: one after another, several at once, or on a cluster, and always on from where they were."""

from ._command import train_command as train_command
from ._display import Bars as Bars
from ._display import Lines as Lines
from ._job import Job as Job
from ._sweep import Pool as Pool
from ._sweep import SweepResult as SweepResult
from ._sweep import run_sweep as run_sweep
from ._sweep import split as split
from ._tally import Failure as Failure
from ._tally import Listener as Listener
