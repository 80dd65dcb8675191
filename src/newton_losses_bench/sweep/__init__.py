"""Many runs: several at once on this machine, or on a Ray cluster. Finished runs are skipped, others resume."""

from .display import Bars as Bars
from .display import Lines as Lines
from .jobs import Job as Job
from .jobs import execute as execute
from .jobs import out_option as out_option
from .jobs import train_command as train_command
from .processes import LocalPool as LocalPool
from .run import Counters as Counters
from .run import Failure as Failure
from .run import Pool as Pool
from .run import SweepResult as SweepResult
from .run import run_sweep as run_sweep
from .run import split as split
