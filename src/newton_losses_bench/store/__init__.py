"""What runs leave on the disk: files that survive a crash, checkpoints, and the folder of one run."""

from .atomic_io import RunError as RunError
from .atomic_io import append_line as append_line
from .atomic_io import check_writable as check_writable
from .atomic_io import checksummed_json as checksummed_json
from .atomic_io import file_checksum as file_checksum
from .atomic_io import read_json as read_json
from .atomic_io import write_atomically as write_atomically
from .atomic_io import write_error as write_error
from .checkpoint import BadCheckpoint as BadCheckpoint
from .checkpoint import read_checkpoint as read_checkpoint
from .checkpoint import write_checkpoint as write_checkpoint
from .run_folder import AVERAGE as AVERAGE
from .run_folder import CHECKPOINT as CHECKPOINT
from .run_folder import CONFIG as CONFIG
from .run_folder import EVALUATIONS as EVALUATIONS
from .run_folder import PREVIOUS as PREVIOUS
from .run_folder import RESULT as RESULT
from .run_folder import WEIGHTS as WEIGHTS
from .run_folder import Record as Record
from .run_folder import RunFolder as RunFolder
from .run_folder import RunInUse as RunInUse
from .run_folder import is_in_use as is_in_use
