"""The machine of a run: its device, how exactly that computes, when it is full; signals; locks; what to record of it.

Ctrl-C and a polite `kill` let the step finish and be saved. A second signal stops at once.
"""

import contextlib
import functools
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from newton_losses.errors import ArgumentError, NewtonLossesError

from .settings import check_choice

# Memory that torch does not hand out itself: of graphs, kernels and handles, and the libraries' own. Each library has a
# status of its own, as in CUBLAS_STATUS_ALLOC_FAILED and CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED.
_FULL = re.compile(
    r"CUDA\b.*\bout of memory|CUDA_ERROR_OUT_OF_MEMORY|\bCU[A-Z]+_(?:\w+_)?ALLOC(?:ATION)?_FAILED"
    # torch on a CPU, on Linux and elsewhere
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
)
# The packages whose versions are recorded.
_PACKAGES = ("numpy", "numba", "triton", "scikit-learn", "typer", "rich", "matplotlib")
# Parts of an environment on which no figure depends; packages are compared one by one.
_NOT_COMPUTING = ("command", "packages", "typer", "rich", "matplotlib")
# For each extra: the modules it brings, and what they are for.
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "bench": (
        ("typer", "rich", "matplotlib", "scipy", "sklearn", "tensorboard", "jinja2"),
        "the command, data sets, figures, reports",
    ),
    "numba": (("numba",), "faster sorting losses and shortest paths on the CPU"),
    "cvxpy": (("cvxpylayers",), "the convex layers of `reproduce cvxpy`"),
    "ray": (("ray",), "sweeps on a cluster (--ray)"),
}
STOPPING = "stopping after the current step or evaluation is saved; press Ctrl-C again to stop at once"


def on_device(name: str) -> contextlib.AbstractContextManager[object]:
    """A context in which `name` is torch's current device; on a CPU it does nothing.

    Graphs, streams, events and the handles of libraries belong to the current CUDA device, wherever the tensors are.
    The loop enters this once around a run: nothing below it has to name a device for these.

    >>> with on_device("cpu"):
    ...     torch.zeros(()).device
    device(type='cpu')
    """
    return torch.cuda.device(name) if device_kind(name) == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def precision_flags(precision: str) -> Iterator[None]:
    """float32 means float32: by default, torch uses TF32 in convolutions. The flags are put back afterwards."""
    allow = precision != "float32"
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    # The head of a bf16 network stays in full float32; only "tf32" changes matrix products.
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = allow, precision == "tf32"
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before[:2]
        torch.backends.cudnn.benchmark = before[2]


def device_kind(name: str) -> str:
    """A device without its number.

    >>> device_kind("cuda:1"), device_kind("cpu")
    ('cuda', 'cpu')
    """
    return name.partition(":")[0]


def resolve_device(name: str) -> str:
    """The device that a name stands for; "auto" is CUDA where there is one.

    >>> resolve_device("cpu")
    'cpu'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_choice("device", device_kind(name), ("auto", "cpu", "cuda"))
    number = name.partition(":")[2]
    if ":" in name and not (name.startswith("cuda") and number.isdecimal()):
        raise ArgumentError(f"--device {name}: a device is cpu, cuda, or cuda with a number, as in cuda:1.")
    if name != "cpu" and not torch.cuda.is_available():
        raise ArgumentError(f"--device {name}: torch finds no CUDA device here. Use --device cpu, or auto.")
    if number and int(number) >= (there := torch.cuda.device_count()):
        found = "one CUDA device here, cuda:0" if there == 1 else f"{there} CUDA devices here, up to cuda:{there - 1}"
        raise ArgumentError(f"--device {name}: torch finds {found}.")
    return f"cuda:{int(number)}" if number else name


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device ran out of memory, whoever asked for it: torch, CUDA, or one of its libraries.

    An error that followed from that counts as well: the end of a capture that was broken off raises another one.

    >>> is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    True
    """
    # Our own errors already say what to do.
    if not isinstance(error, RuntimeError) or isinstance(error, NewtonLossesError):
        return False
    if isinstance(error, torch.OutOfMemoryError) or _FULL.search(str(error)):
        return True
    earlier = error.__cause__ or error.__context__
    return earlier is not None and is_out_of_memory(earlier)


# Signals


class Interrupted(Exception):
    """A run was asked to stop; its checkpoint of this step is on the disk."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step
        self.exit_code = 128 + signal_number


class StopRequests:
    """`requested` is the number of the signal that arrived, else `None`.

    With `answers`, somebody at a terminal reads that the first signal was received.
    """

    requested: int | None = None

    def __init__(self, *, answers: bool = True) -> None:
        self._answers = answers

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise KeyboardInterrupt
        self.requested = number
        if self._answers:
            _answer()


def _answer() -> None:
    """Confirm the signal: an evaluation can take minutes to end."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    # Not print: a signal can arrive in the middle of another print. The terminal may be gone by now.
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"\n{STOPPING}\n".encode())


@contextlib.contextmanager
def stop_requests(*, answers: bool = True) -> Iterator[StopRequests]:
    """Note signals instead of being stopped by them. Python cannot do this off the main thread; there, nothing happens.

    Within another `stop_requests`, a signal reaches both: the inner one saves its run, the outer one begins no other.
    """
    stop = StopRequests(answers=answers)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, StopRequests) and stop.requested == number:
                outer.requested = number


# Locks


def take_lock(path: Path, *, wait: bool) -> int:
    """Lock a folder, or a file that is created if missing, and return its descriptor: closing it releases the lock.

    Without `wait`, a lock that another process holds is a `BlockingIOError`. Windows has nothing to lock with, and some
    network file systems have no locks either: then a `wait` ends at once.
    """
    try:
        import fcntl
    except ImportError:
        return os.open(os.devnull, os.O_RDWR)
    descriptor = os.open(path, os.O_RDONLY) if path.is_dir() else os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if not wait:
            os.close(descriptor)
            raise
    return descriptor


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a file or folder, and hold it for a while."""
    descriptor = take_lock(path, wait=True)
    try:
        yield
    finally:
        os.close(descriptor)


# What a result depends on besides its configuration


def environment() -> dict[str, Any]:
    """Versions, the commit of the code, device and number of threads.

    >>> environment()["python"].startswith("3.")
    True
    """
    from newton_losses import __version__

    cuda = torch.cuda.is_available()
    return {
        "newton-losses": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if cuda else None,
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "packages": {name: _version(name) for name in _PACKAGES},
        "command": shlex.join(sys.argv[1:]),
    }


def changed_versions(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What of two environments differs and can change the digits of a run, in words.

    >>> changed_versions({"torch": "2.13.0", "threads": 4}, {"torch": "2.13.0", "threads": 1, "gpu": None})
    ['threads 1 instead of 4']
    """
    old, new = ({**one, **(one.get("packages") or {})} for one in (before, now))
    return [
        f"{name} {value} instead of {old[name]}"
        for name, value in new.items()
        if name in old and name not in _NOT_COMPUTING and old[name] != value
    ]


@functools.cache
def commit() -> str | None:
    """The git commit of this code, with "-dirty" where files differ from it; `None` for an installed package.

    For a copy of the code without its history, the variable NEWTON_LOSSES_COMMIT names it.
    """
    if named := os.environ.get("NEWTON_LOSSES_COMMIT"):
        return named
    here = Path(__file__).resolve()
    # A package in somebody's virtual environment may lie in a repository too, but not in its own.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
