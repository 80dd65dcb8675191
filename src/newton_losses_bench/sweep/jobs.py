"""One run of a sweep: what it is, where it goes, and doing it, in whichever process or machine."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from ..config import ConvexConfig, PathsConfig, RunConfig, SortingConfig, configuration_class, run_name
from ..convex_experiment import run_convex
from ..data import DataError, DataNotFoundError, Terrain, data_root, terrain
from ..device import device_kind
from ..loop import run
from ..progress import Progress
from ..results import compact
from ..store import AVERAGE, CHECKPOINT, CONFIG, RESULT, WEIGHTS, Record, RunError, read_json
from ..tasks import Task, make_task

# How the process of a job can end, as exit codes.
FINISHED, FAILED, IN_USE = 0, 1, 75


@dataclass(frozen=True)
class Job:
    """A run of a sweep. `label` is for people, `folder` the run folder, `configuration` as JSON has it.

    The device in the configuration is the one asked for, not yet the one found: that is the business of the
    machine that does it.
    """

    label: str
    folder: str
    configuration: dict[str, Any]
    keep_weights: bool = False

    @classmethod
    def of(cls, label: str, config: RunConfig, store: Path, device: str, keep_weights: bool = False) -> Self:
        configuration = config.to_dict()
        if not isinstance(config, ConvexConfig):
            configuration.update(device=device, graph=True)
        if isinstance(config, SortingConfig):
            configuration.update(kernels=True)
        return cls(label, str(store / run_name(configuration)), configuration, keep_weights)

    @property
    def name(self) -> str:
        return Path(self.folder).name

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def is_finished(self) -> bool:
        return (Path(self.folder) / RESULT).exists()


def execute(job: Job, progress: Progress, make: Callable[[Any], Task] = make_task) -> Record:
    """Do a job, or go on with it, and return the result. A finished one is not done again.

    `make(config)` makes the task of a run that is not `convex`.
    """
    folder = Path(job.folder)
    if not job.is_finished():
        config = configuration_class(job.configuration["task"]).from_dict(job.configuration).resolved()
        prepare_data(config)
        if isinstance(config, ConvexConfig):
            run_convex(config, job.folder, progress=progress)
        else:
            config, anew = _as_begun(config, folder)
            run(config, job.folder, progress=progress, make=make, overwrite=anew)
    if not job.keep_weights:
        tidy(job)
    return read_json(folder / RESULT)


def tidy(job: Job) -> None:
    """Remove checkpoints and weights of a finished job, also where a kill had come between.

    A folder that is damaged keeps them, to be mended with; one in use is tidied by who uses it.
    """
    folder = Path(job.folder)
    if job.is_finished() and any((folder / name).exists() for name in (CHECKPOINT, WEIGHTS, AVERAGE)):
        with contextlib.suppress(RunError):
            compact(folder)


def _as_begun(config: RunConfig, folder: Path) -> tuple[RunConfig, bool]:
    """The configuration with which the folder's run was begun, or this one and that it has to start anew.

    Compiling and capturing change at most the last digits and averaging nothing, so that a run goes on as it was. The
    random numbers of another kind of device are others: then what was done so far is of no use.
    """
    if not (folder / CONFIG).exists():
        return config, False
    begun = read_json(folder / CONFIG).get("configuration", {})
    if device_kind(str(begun.get("device"))) != device_kind(config.device):
        return config, True
    kept = {name: begun[name] for name in ("compile", "graph", "kernels") if name in begun}
    # Before there were averages there was none.
    return replace(config, **kept, average=begun.get("average", False)), False


def prepare_data(config: RunConfig) -> None:
    """Draw maps that are not there yet, while others that need them wait. Those that are there are left alone."""
    if not isinstance(config, PathsConfig) or config.data != "terrain" or _has_maps(config):
        return
    with _one_at_a_time(data_root(config.data_root) / ".terrain.lock"):
        if not _has_maps(config):  # else another has drawn them meanwhile
            counts = (config.train_maps, config.test_maps, config.test_maps)
            terrain.make(config.data_root, config.size, counts, config.data_seed)


def _has_maps(config: PathsConfig) -> bool:
    try:
        Terrain(config.data_root, "test", config.size, check=False)
    except DataNotFoundError:
        return False
    return True


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise DataError(
            f"{path.parent}: could not be written ({error.strerror or error}), and the maps are not there yet. "
            "Choose a folder that can be, with --data-root or the variable NEWTON_LOSSES_DATA, or have them drawn "
            "there with `newton-losses data make terrain`."
        ) from error
    with file:
        # Without locks, as on Windows and on some network file systems, the last writer wins, and all write the same.
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
