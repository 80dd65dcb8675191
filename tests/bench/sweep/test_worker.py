"""The process of a run: what it says, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.small_runs import small_runs
from newton_losses_bench.config import ConvexConfig, RunConfig
from newton_losses_bench.store import Store, read_json
from newton_losses_bench.sweep import Job, Lines, LocalPool, execute, processes, run_sweep
from newton_losses_bench.train import Progress

SORTING, PATHS = small_runs(steps=6, eval_every=2, epochs=2).values()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """More of them only fight with the other tests; processes inherit it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def jobs(folder: Path, *configs: RunConfig) -> list[Job]:
    """Runs that keep their weights, over one set of maps."""
    configs = tuple(replace(config, data_root=str(folder.parent / "data")) for config in configs)
    return [Job.of(str(k), config.resolved(), folder, "cpu", True) for k, config in enumerate(configs)]


def sweep(folder: Path, *configs: RunConfig) -> list[Path]:
    """Do them in one slot; their folders."""
    wanted = jobs(folder, *configs)
    result = run_sweep(wanted, Store(folder), Lines(), LocalPool(1, folder / ".logs"))
    assert result.failures == ()
    return [Path(job.folder) for job in wanted]


def process_of(folder: Path) -> str:
    return (folder / ".lock").read_text()


def assert_same(one: Path, other: Path) -> None:
    """To the last bit: every evaluation, the result but for its times, the weights."""
    assert (one / "evaluations.jsonl").read_bytes() == (other / "evaluations.jsonl").read_bytes()
    for name in ("test", "reported", "final", "configuration"):
        assert read_json(one / "result.json")[name] == read_json(other / "result.json")[name]
    assert read_json(one / "config.json")["environment"]["command"].startswith("train ")
    if not (one / "weights.pt").exists():
        return
    weights = [torch.load(folder / "weights.pt", weights_only=True) for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        SORTING,
        replace(SORTING, algorithm="cauchy", curvature="hessian", numerics="reference"),
        replace(PATHS, algorithm="smoothed-loss", curvature="fisher"),
        ConvexConfig(algorithm="relu-exact", curvature="fisher", steps=5),
    ],
)
def test_a_run_of_a_sweep_is_the_run_of_train(config, tmp_path):
    (folder,) = sweep(tmp_path / "store", config)
    (job,) = jobs(tmp_path / "alone", config)
    execute(job, Progress())
    assert_same(folder, Path(job.folder))


@pytest.mark.slow
def test_a_killed_process_costs_no_other_run_anything(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(processes, "_RETRY_SECONDS", 0.0)
    configs = [replace(SORTING, steps=200, eval_every=20, seed=seed) for seed in range(3)]
    first, second, third = (Path(job.folder) for job in jobs(tmp_path / "store", *configs))

    def kill_in_the_second() -> None:
        while not any(run.path == second and run.step for run in Store(tmp_path / "store").unfinished()):
            time.sleep(0.05)
        os.kill(int(process_of(second)), signal.SIGKILL)

    threading.Thread(target=kill_in_the_second, daemon=True).start()
    sweep(tmp_path / "store", *configs)
    said = capsys.readouterr().out
    assert said.count("started: ") == 4
    assert said.count("failed, will be retried: 1: it was ended by signal 9") == 1
    assert len({process_of(folder) for folder in (first, second, third)}) == 3
    (undisturbed,) = sweep(tmp_path / "undisturbed", configs[1])
    assert_same(second, undisturbed)


class Worker:
    """The real process, and what it says."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            processes.WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            text=True, start_new_session=True,
        )  # fmt: skip

    def begin(self, job: Job) -> None:
        self.process.stdin.write(json.dumps(job.to_dict()) + "\n")
        self.process.stdin.flush()

    def until(self, kind: str) -> dict:
        for line in self.process.stdout:
            if (event := json.loads(line))["event"] == kind:
                return event
        raise AssertionError(f"it ended before it said {kind}: {self.process.stderr.read()}")

    def rest(self) -> tuple[int, str, str]:
        """Exit code, the rest of its events, and its log."""
        self.process.wait(timeout=60)  # the end of its input, which `communicate` begins with, would stop it
        output, errors = self.process.communicate()
        return self.process.returncode, output, errors


@pytest.fixture
def real(request):
    """A worker; the parameter, if any, is what it is born to do on Ctrl-C."""
    before = signal.signal(signal.SIGINT, getattr(request, "param", signal.default_int_handler))
    try:
        started = Worker()
    finally:
        signal.signal(signal.SIGINT, before)
    yield started
    started.process.kill()
    started.process.communicate()


def test_a_run_ends_with_its_result_and_an_empty_log(real, tmp_path):
    (job,) = jobs(tmp_path / "store", SORTING)
    real.begin(job)
    assert real.until("finished")["steps"] == SORTING.steps
    assert real.rest() == (0, "", "")


def test_an_error_is_in_the_log_and_in_the_last_event(real, tmp_path):
    (job,) = jobs(tmp_path / "store", SORTING)
    job.configuration["algorithm"] = "softsrot"
    real.begin(job)
    assert real.until("failed")["message"].startswith("--algorithm softsrot: did you mean softsort?")
    code, output, log = real.rest()
    assert (code, output) == (1, "")
    assert log.startswith("--algorithm softsrot: did you mean softsort?")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full, on Linux")
def test_an_error_is_in_the_last_event_where_the_log_has_no_room(tmp_path):
    (job,) = jobs(tmp_path / "store", SORTING)
    job.configuration["algorithm"] = "softsrot"
    pipe = subprocess.PIPE
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(processes.WORKER, stdin=pipe, stdout=pipe, stderr=full, text=True) as process,
    ):
        process.stdin.write(json.dumps(job.to_dict()) + "\n")
        process.stdin.flush()
        said = json.loads(process.stdout.readline())
    assert said["message"].startswith("--algorithm softsrot: did you mean softsort?")


# A shell's background jobs are born ignoring Ctrl-C.
@pytest.mark.parametrize("real", [signal.default_int_handler, signal.SIG_IGN], indirect=True, ids=["front", "back"])
def test_a_signal_lets_the_run_save(real, tmp_path):
    (job,) = jobs(tmp_path / "store", replace(SORTING, steps=10**6, eval_every=20))
    real.begin(job)
    step = real.until("evaluated")["step"]
    real.process.send_signal(signal.SIGINT)
    code, _, log = real.rest()
    assert (code, log) == (130, "")
    (unfinished,) = Store(tmp_path / "store").unfinished()
    assert unfinished.step >= step
    assert (Path(job.folder) / "checkpoint.pt").exists()


def test_a_sweep_that_is_gone_lets_its_run_save(real, tmp_path):
    """Killed, it closes both ends, in whichever order; here nobody listens for a while before the input ends."""
    (job,) = jobs(tmp_path / "store", replace(SORTING, steps=10**6, eval_every=20))
    real.begin(job)
    real.until("evaluated")
    real.process.stdout.close()
    time.sleep(1)
    real.process.stdin.close()
    assert real.process.wait(timeout=60) == 143
    assert real.process.stderr.read() == ""
    assert (Path(job.folder) / "checkpoint.pt").exists()
    real.process.stdin = real.process.stdout = None
