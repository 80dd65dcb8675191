"""What a result depends on beside its configuration: versions, the state of the code, the machine's kind."""

import functools
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("numpy", "numba", "triton", "scikit-learn", "typer", "rich", "matplotlib")


def environment() -> dict[str, Any]:
    """Versions, the commit that the code is of, device and number of threads.

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
        "command": " ".join(sys.argv[1:]),
    }


@functools.cache
def commit() -> str | None:
    """The git commit of this code, with "-dirty" where files differ from it; `None` for an installed package.

    A copy of the code without its history can be told by the variable NEWTON_LOSSES_COMMIT.
    """
    if told := os.environ.get("NEWTON_LOSSES_COMMIT"):
        return told
    here = Path(__file__).resolve()
    # A package inside of somebody's virtual environment lies in a repository too, but not in its own.
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
