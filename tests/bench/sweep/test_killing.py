"""A sweep killed with SIGKILL, processes and all, five times at random loses no finished run and repeats none."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sweep_worker

from newton_losses_bench.store import Store

pytestmark = pytest.mark.slow


def family(pid: int) -> list[int]:
    """A process and all that it has started, from Linux's own books."""
    found = [pid]
    for process in found:
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == process:
                found.append(int(entry.parent.name))
    return found


def work_done(store: Store) -> int:
    """All steps up to the last evaluations."""
    return sum(record.steps for record in store.records()) + sum(run.step for run in store.unfinished())


def written(store: Store) -> dict[Path, int]:
    return {record.path: (record.path / "result.json").stat().st_mtime_ns for record in store.records()}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds its processes in /proc")
def test_five_kills_lose_nothing_and_repeat_nothing(tmp_path):
    store = Store(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, sweep_worker.__file__, str(tmp_path)]
    chance = random.Random(0)
    known: dict[Path, int] = {}
    progress = []
    for kill in range(5):
        sweep = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
        goal = work_done(store) + chance.randint(1, 300)
        while work_done(store) < goal:
            assert sweep.poll() is None, "the sweep was over before it could be killed"
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 0.5))
        # Every other time the sweep alone: its runs notice, save and end, while the next sweep begins.
        victims = family(sweep.pid) if kill % 2 == 0 else [sweep.pid]
        for process in reversed(victims):
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself since it was found
                os.kill(process, signal.SIGKILL)
        sweep.wait()
        now = written(store)
        assert known.items() <= now.items()
        known = now
        progress.append((len(now), sum(run.step for run in store.unfinished())))
    last = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    now = written(store)
    wanted = sweep_worker.jobs(tmp_path)
    assert known.items() <= now.items()
    assert {path.name for path in now} == {job.name for job in wanted}
    assert f"{len(wanted)} runs, {len(known)} already finished" in last.stdout or not known
    for record in store.records():
        assert [line["step"] for line in record.curve] == list(range(25, 301, 25))
        assert sorted(file.name for file in record.path.iterdir() if not file.name.startswith(".")) == [
            "config.json", "evaluations.jsonl", "result.json",
        ]  # fmt: skip
    # The kills did come between: some runs were done, some at work.
    assert any(done for done, _ in progress), progress
    assert any(step for _, step in progress), progress
