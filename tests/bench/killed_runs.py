"""Run by `test_resume.py` in a process of its own: forks runs, kills them with SIGKILL, resumes them.

    python killed_runs.py FOLDER RANDOM_KILLS

It imports torch once and forks from there, so that a killed run costs milliseconds instead of seconds. Each
scenario ends in a folder with a finished run; the test compares them. Standard output is one JSON object.
"""

import json
import math
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

torch.set_num_threads(1)
if __name__ == "__main__":  # the test runner imports this file as well, to look for examples in it
    # Without its compiled back end: compiling would be most of the time, and its threads do not survive a fork.
    sys.modules["numba"] = None  # type: ignore[assignment]

from small_runs import small_runs  # noqa: E402  after the above

from newton_losses_bench.train import run  # noqa: E402

CONFIGS = small_runs(steps=24, eval_every=7, epochs=5)
# With everything that a checkpoint can hold: the unit of the default damping, and averaged weights.
CONFIGS["sorting"] = replace(CONFIGS["sorting"], damping="running", average=True)


def child(task: str, folder: Path, data_root: str, kill_at: int | None) -> int:
    """Fork a run; where `kill_at` is given it kills itself at that call that touches the disk. Returns the pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if kill_at is not None:
            _kill_at_call(kill_at)
        whole_run(task, folder, data_root, math.inf if kill_at else 0.05)
        code = 0
    finally:
        os._exit(code)


def whole_run(task: str, folder: Path, data_root: str, checkpoint_seconds: float = 0.05) -> None:
    """Run to the end, with checkpoints at evaluations and also between them, as often as told."""
    run(replace(CONFIGS[task], data_root=data_root), str(folder), checkpoint_seconds=checkpoint_seconds)


def _kill_at_call(number: int) -> None:
    """Die before the `number`-th of the calls that make a file durable, in whichever file."""
    calls = 0

    def counted(function):
        def wrapper(*arguments):
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return wrapper

    os.replace, os.fsync = counted(os.replace), counted(os.fsync)


def until_done(task: str, folder: Path, data_root: str, plan) -> int:
    """Start the run again and again, killed as the plan says, until it ends by itself. Returns the kills."""
    kills = 0
    while True:
        pid = plan(task, folder, data_root, kills)
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            kills += 1
            continue
        assert os.WEXITSTATUS(status) == 0, f"{folder} failed"
        return kills


def at_call(number: int):
    """Killed at this call in the first process only."""
    return lambda task, folder, root, kills: child(task, folder, root, None if kills else number)


def at_random(seed: int, longest: float):
    """Killed after a random time, up to ten times."""
    chance = random.Random(seed)

    def plan(task, folder, root, kills):
        pid = child(task, folder, root, None)
        if kills < 10:
            time.sleep(chance.uniform(0, longest))
            os.kill(pid, signal.SIGKILL)
        return pid

    return plan


def main(base: Path, random_kills: int) -> None:
    report: dict[str, dict[str, int]] = {}
    for task in CONFIGS:
        root = str(base / "data")
        # In this process, so that all its children have imported and drawn already what they need.
        whole_run(task, base / task / "whole", root)
        start = time.monotonic()
        whole_run(task, base / task / "again", root)
        took = time.monotonic() - start
        report[task] = {"again": 0}
        # The configuration and the first two evaluations make more such calls than these.
        for number in range(1, 23):
            name = f"call-{number}"
            report[task][name] = until_done(task, base / task / name, root, at_call(number))
        seed = kills = 0
        while kills < random_kills:
            name = f"random-{seed}"
            report[task][name] = until_done(task, base / task / name, root, at_random(seed, took / 2))
            kills += report[task][name]
            seed += 1
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
