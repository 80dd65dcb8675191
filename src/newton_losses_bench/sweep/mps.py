"""NVIDIA's Multi-Process Service (MPS), which lets processes share a GPU without taking turns.

A sweep that runs several CUDA jobs at once starts the service for itself, in private folders, and stops it at the
end. Whatever goes wrong here costs speed, never the sweep: without MPS the same processes take turns on the GPU.
After `kill -9` of the sweep the service stays behind, idle.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
# Containers may let the service start but no process connect to it; only a process that connects can tell.
PROBE = (sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')")
_CONTROL_SECONDS = 30.0
_PROBE_SECONDS = 120.0
_BY_HAND = f"To share it, start the service before the sweep: {CONTROL} -d"


class MultiProcessService:
    """The service of one sweep. `start` returns what to tell the user; `environment` is for the processes."""

    def __init__(self, probe: Sequence[str] = PROBE) -> None:
        self.environment: dict[str, str] = {}
        self._probe = list(probe)
        self._folder: Path | None = None

    def start(self) -> str | None:
        """Start the service unless it runs already. Never raises; the note says whether the GPU is shared."""
        if shutil.which(CONTROL) is None:
            return f"The runs take turns on the GPU: {CONTROL}, which would let them share it, is not installed."
        if self._send("get_server_list"):
            return None
        try:
            problem = self._start_in_private_folders()
        except (OSError, subprocess.SubprocessError) as error:
            problem = str(error)
        if problem is None:
            return "The runs share the GPU through MPS, which stops with the sweep."
        self.stop()
        return f"The runs take turns on the GPU: MPS could not be started ({problem}). {_BY_HAND}"

    def stop(self) -> None:
        """Stop the service if this sweep has started it."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        self._send("quit")
        self.environment = {}
        shutil.rmtree(folder, ignore_errors=True)

    def _start_in_private_folders(self) -> str | None:
        """What went wrong, if anything. Sockets have short paths, hence the system's temporary folder."""
        self._folder = Path(tempfile.mkdtemp(prefix="newton-losses-mps-"))
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }
        for folder in self.environment.values():
            Path(folder).mkdir()
        # No pipes, which the service would hold open, and a session of its own, which Ctrl-C does not reach.
        self._run([CONTROL, "-d"], _CONTROL_SECONDS).check_returncode()
        if not self._send("get_server_list"):
            return "it does not answer"
        return "no process can connect to it" if self._run(self._probe, _PROBE_SECONDS).returncode else None

    def _run(self, command: list[str], seconds: float) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command, env={**os.environ, **self.environment}, timeout=seconds, check=False, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _send(self, command: str) -> bool:
        """Give the service a command; whether it was there to take it."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                [CONTROL], input=f"{command}\n".encode(), env={**os.environ, **self.environment}, check=False,
                timeout=_CONTROL_SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            return done.returncode == 0
        return False
