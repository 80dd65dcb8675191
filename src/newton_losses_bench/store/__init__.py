"""What runs leave on the disk: files that survive a crash, checkpoints, and the folder of one run."""

from .atomic_io import BadCheckpoint as BadCheckpoint
from .atomic_io import Record as Record
from .atomic_io import RunError as RunError
from .atomic_io import check_writable as check_writable
from .atomic_io import checksummed_json as checksummed_json
from .atomic_io import read_checkpoint as read_checkpoint
from .atomic_io import read_json as read_json
from .atomic_io import write_atomically as write_atomically
from .atomic_io import write_checkpoint as write_checkpoint
from .atomic_io import write_error as write_error
from .records import Packed as Packed
from .records import RunRecord as RunRecord
from .records import Store as Store
from .records import UnfinishedRun as UnfinishedRun
from .records import pack as pack
from .records import read_record as read_record
from .run_folder import AVERAGE as AVERAGE
from .run_folder import CHECKPOINT as CHECKPOINT
from .run_folder import CONFIG as CONFIG
from .run_folder import EVALUATIONS as EVALUATIONS
from .run_folder import RESULT as RESULT
from .run_folder import WEIGHTS as WEIGHTS
from .run_folder import RunFolder as RunFolder
from .run_folder import RunInUse as RunInUse
from .run_folder import compact as compact
from .run_folder import is_in_use as is_in_use
