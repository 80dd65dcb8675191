"""What a result depends on beside its configuration: versions and the machine's kind."""

import platform
import sys
from importlib import metadata
from typing import Any

import torch

_PACKAGES = ("numpy", "numba", "triton", "scikit-learn", "typer", "rich", "matplotlib")


def environment() -> dict[str, Any]:
    """Versions, device and number of threads.

    >>> environment()["python"].startswith("3.")
    True
    """
    from .. import __version__

    cuda = torch.cuda.is_available()
    return {
        "newton-losses": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if cuda else None,
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "packages": {name: _version(name) for name in _PACKAGES},
        "command": " ".join(sys.argv[1:]),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
