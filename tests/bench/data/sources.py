"""Where the tests find the real MNIST: `NEWTON_LOSSES_DATA`, else a folder beside the repository."""

import os
from pathlib import Path

import pytest


def mnist_root():
    """The data root with MNIST in it; the test is skipped where there is none."""
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    for root in (os.environ.get("NEWTON_LOSSES_DATA"), beside):
        if root and any((Path(root) / place).exists() for place in ("mnist.npz", "MNIST")):
            return Path(root)
    pytest.skip("MNIST is not there: set NEWTON_LOSSES_DATA to a folder with mnist.npz or MNIST/raw in it")
