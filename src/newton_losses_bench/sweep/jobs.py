"""One run of a sweep: what it is, where it goes, and executing it in whichever process or machine it lands.

A job knows nothing of the others. How many run at once, and where, is decided in `processes.py` and `ray.py`.
"""

import contextlib
import traceback
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from newton_losses.errors import NewtonLossesError

from ..config import ConvexConfig, RunConfig, SortingConfig, configuration_class, run_name
from ..machine import device_kind
from ..settings import option
from ..store import AVERAGE, CHECKPOINT, CONFIG, PREVIOUS, RESULT, WEIGHTS, Record, RunError, compact, read_json
from ..train import Progress, run

# Exit codes of a job's process.
FINISHED, FAILED, IN_USE = 0, 1, 75
# Not options: drops follow from the epochs. Convex layers are trained by `reproduce cvxpy` alone, where the rest is
# the cell's or fixed.
_NO_OPTION = {"convex": ("curvature", "spectrum", "graph")}


@dataclass(frozen=True)
class Job:
    """A run of a sweep. `label` is for people, `folder` the run folder, `configuration` as JSON has it.

    The configuration's device is the one requested; the machine that executes the job resolves it.
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


def execute(job: Job, progress: Progress) -> Record:
    """Run a job, or resume it, and return its result. A finished job is not run again."""
    if not job.is_finished():
        config = configuration_class(job.configuration["task"]).from_dict(job.configuration).resolved()
        config, start_over = as_begun(config, Path(job.folder))
        run(config, job.folder, progress=progress, overwrite=start_over)
    if not job.keep_weights:
        tidy(job)
    return read_json(Path(job.folder) / RESULT)


def in_words(error: Exception) -> str:
    """What to say about the error of a run. Ours explain themselves; others have their kind and, in a log, their trace.

    >>> in_words(KeyError("weights"))
    "KeyError: 'weights'"
    """
    text = str(error) if isinstance(error, NewtonLossesError) else traceback.format_exception_only(error)[-1].strip()
    return "\n".join([text, *getattr(error, "__notes__", [])])


def tidy(job: Job) -> None:
    """Remove checkpoints and weights of a finished job, even if a kill came before it could do so itself.

    A damaged folder keeps them, as they may help to repair it; a folder in use is tidied by its user.
    """
    folder = Path(job.folder)
    if job.is_finished() and any((folder / name).exists() for name in (CHECKPOINT, WEIGHTS, AVERAGE)):
        with contextlib.suppress(RunError):
            compact(folder)


def as_begun(config: RunConfig, folder: Path) -> tuple[RunConfig, bool]:
    """The configuration that the folder's run was begun with, and whether the run has to start over.

    Compiling and capturing change at most the last digits and averaging nothing, so a run keeps what it began with.
    Another kind of device draws other random numbers: a run cannot resume there, and starts over only if it has no
    checkpoint to lose.
    """
    if not (folder / CONFIG).exists():
        return config, False
    begun = read_json(folder / CONFIG).get("configuration", {})
    if (device := device_kind(str(begun.get("device")))) != device_kind(config.device):
        if any((folder / name).exists() for name in (CHECKPOINT, PREVIOUS)):
            raise RunError(
                f"{folder} was begun on {device} and cannot resume on {config.device}, with other random numbers. "
                f"Nothing has been changed: rerun the command where there is {device}, or delete the folder to start "
                "over."
            )
        return config, True
    kept = {name: begun[name] for name in ("compile", "graph", "kernels") if name in begun}
    # Old configurations have no `average`, and averaged nothing.
    return replace(config, **kept, average=begun.get("average", False)), False


def out_option(job: Job) -> list[str]:
    """What makes `train_command` write where the sweep looks for the run."""
    folder = Path(job.folder)
    return ["--results", str(folder.parent)] if job.configuration["task"] == "convex" else ["--out", str(folder)]


def train_command(configuration: dict[str, Any]) -> list[str]:
    """The arguments of `newton-losses` that train this configuration: every setting that is not its default.

    Where it goes is not among them: for that, add `out_option`.

    >>> " ".join(train_command({"task": "sorting", "algorithm": "softsort", "curvature": "fisher", "seed": 2}))
    'train sorting --algorithm softsort --curvature fisher --seed 2'
    """
    task = configuration["task"]
    words = ["train", task]
    if task == "convex":
        arm = "baseline" if configuration["curvature"] == "none" else configuration["curvature"]
        words = ["reproduce", "cvxpy", "--only", f"relu-{arm}"]
    no_options = ("drops", *_NO_OPTION.get(task, ()))
    for field in fields(configuration_class(task)):
        value = configuration.get(field.name)
        if value is None or field.name in no_options or (field.default is not MISSING and value == field.default):
            continue
        if isinstance(value, bool):
            words.append(option(field.name) if value else option(field.name).replace("--", "--no-", 1))
        else:
            # All digits, so that the command is exactly this run.
            words += [option(field.name), str(value).removesuffix(".0") if isinstance(value, float) else str(value)]
    return words
