"""Triton's interpreter runs kernels on a CPU: in a process of its own, because Triton decides when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from newton_losses._backends import obstacle

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
on_cuda_alone = pytest.mark.skipif(INTERPRETED, reason="needs a CUDA device")


def run_interpreted(file: str) -> None:
    """The tests of this file that are marked `gpu`, but for the slow ones."""
    if INTERPRETED or obstacle("triton"):
        pytest.skip("is in it already" if INTERPRETED else "needs triton")
    command = [sys.executable, "-m", "pytest", file, "-m", "gpu and not slow", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    root = Path(__file__).parents[1]
    finished = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert " passed" in finished.stdout
