"""`newton-losses train` in a process of its own, for the tests of what may happen to it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from newton_losses_bench.config import SortingConfig

SETTINGS = {"data": "digits", "digits": 1, "batch_size": 4, "validation_sets": 5, "test_sets": 5, "device": "cpu"}


def config(steps: int, eval_every: int) -> SortingConfig:
    return SortingConfig(algorithm="softsort", n=3, steps=steps, eval_every=eval_every, **SETTINGS)


def command(steps: int, eval_every: int, out: Path) -> list[str]:
    """The command of the same configuration."""
    lengths = {**SETTINGS, "n": 3, "steps": steps, "eval_every": eval_every, "out": out}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in lengths.items()]
    return [sys.executable, "-m", "newton_losses", "train", "sorting", "-a", "softsort", *options]


def environment(*paths: Path, **variables: str) -> dict[str, str]:
    """That of this process, one thread, with folders to import from before all others."""
    path = os.pathsep.join([*map(str, paths), *sys.path])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}


def start(words: list[str], **options: Any) -> subprocess.Popen[str]:
    options = {"env": environment(), "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    return subprocess.Popen(words, **options)
