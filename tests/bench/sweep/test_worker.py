"""The process that does runs one after another: each as if it was alone, whatever came before and however it ends."""

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
from newton_losses_bench.sweep import Job, Lines, LocalPool, execute, processes, run_sweep, worker
from newton_losses_bench.sweep.jobs import FAILED, FINISHED
from newton_losses_bench.tasks import DataCache
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
    weights = [torch.load(folder / "weights.pt", weights_only=True) for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def compare_with_fresh_processes(tmp_path: Path, configs: list[RunConfig], alone: list[int]) -> None:
    together = sweep(tmp_path / "together", *configs)
    assert len({process_of(folder) for folder in together}) == 1
    for k in alone:
        (fresh,) = sweep(tmp_path / f"alone-{k}", configs[k])
        assert process_of(fresh) != process_of(together[k])
        assert_same(together[k], fresh)


def test_a_run_after_others_is_what_it_is_in_a_fresh_process(tmp_path):
    bf16 = replace(SORTING, precision="bf16", numerics="reference", augment=False, seed=1)
    compare_with_fresh_processes(tmp_path, [PATHS, bf16, SORTING], alone=[2])


@pytest.mark.slow
def test_so_is_every_kind_of_run(tmp_path):
    configs: list[RunConfig] = [
        replace(SORTING, precision="tf32", curvature="hessian"),
        replace(PATHS, algorithm="smoothed-loss", curvature="fisher"),
        replace(SORTING, algorithm="cauchy", curvature="hessian", numerics="reference"),
        replace(PATHS, algorithm="bellman-ford", curvature="none", scale=None, num_samples=None),
        ConvexConfig(algorithm="relu-exact", curvature="fisher", steps=5),
        replace(SORTING, algorithm="neuralsort", curvature="none", augment=False, seed=3),
        replace(PATHS, algorithm="smoothed-algorithm", curvature="fisher", seed=2),
        replace(SORTING, damping="auto", precision="bf16"),
    ]
    compare_with_fresh_processes(tmp_path, configs, alone=[k for k in range(len(configs)) if k != 4])


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
    assert process_of(first) != process_of(third) == process_of(second)
    (undisturbed,) = sweep(tmp_path / "undisturbed", configs[1])
    assert_same(second, undisturbed)


class Worker:
    """The real process, and what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            processes.WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            text=True, start_new_session=True,
        )  # fmt: skip

    def begin(self, job: Job) -> Path:
        log = self.folder / f"{job.name}.txt"
        self.process.stdin.write(json.dumps({**job.to_dict(), "log": str(log)}) + "\n")
        self.process.stdin.flush()
        return log

    def until(self, kind: str) -> dict:
        for line in self.process.stdout:
            if (event := json.loads(line))["event"] == kind:
                return event
        raise AssertionError(f"it ended before it said {kind}: {self.process.stderr.read()}")

    def rest(self) -> tuple[int, str, str]:
        """Exit code, the rest of its events, and what it said outside of the logs."""
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output, errors


@pytest.fixture
def real(tmp_path, request):
    """A worker; the parameter, if any, is what it is born to do on Ctrl-C."""
    before = signal.signal(signal.SIGINT, getattr(request, "param", signal.default_int_handler))
    try:
        started = Worker(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    yield started
    started.process.kill()
    started.process.communicate()


def test_each_run_has_a_log_of_its_own_and_an_error_is_the_end(real, tmp_path):
    good, bad = jobs(tmp_path / "store", SORTING, replace(SORTING, seed=1))
    bad.configuration["algorithm"] = "softsrot"
    good_log = real.begin(good)
    assert real.until("ended") == {"event": "ended", "code": 0, "stays": True}
    bad_log = real.begin(bad)
    ended = real.until("ended")
    assert ended.pop("message").startswith("--algorithm softsrot: did you mean softsort?")
    assert ended == {"event": "ended", "code": 1, "stays": False}
    assert real.rest() == (1, "", "")
    assert good_log.read_text() == ""
    assert bad_log.read_text().startswith("--algorithm softsrot: did you mean softsort?")


# A shell's background jobs are born ignoring it.
@pytest.mark.parametrize("real", [signal.default_int_handler, signal.SIG_IGN], indirect=True, ids=["front", "back"])
def test_a_stop_between_runs_ends_it_quietly(real, tmp_path):
    (job,) = jobs(tmp_path / "store", SORTING)
    log = real.begin(job)
    real.until("ended")
    time.sleep(0.2)
    real.process.send_signal(signal.SIGINT)
    assert real.rest() == (130, "", "")
    assert log.read_text() == ""


def test_it_ends_with_its_input(real, tmp_path):
    (job,) = jobs(tmp_path / "store", SORTING)
    real.begin(job)
    real.until("ended")
    real.process.stdin.close()
    real.process.stdin = None
    assert real.rest() == (0, "", "")


@pytest.mark.parametrize("how", ["signal", "end of the input"])
def test_a_stop_lets_the_second_run_save(real, tmp_path, how):
    first, second = jobs(tmp_path / "store", SORTING, replace(SORTING, steps=10**6, eval_every=20, seed=1))
    real.begin(first)
    real.until("ended")
    real.begin(second)
    step = real.until("evaluated")["step"]
    if how == "signal":
        real.process.send_signal(signal.SIGINT)
    else:
        real.process.stdin.close()
        real.process.stdin = None
    code, output, errors = real.rest()
    assert code == (130 if how == "signal" else 143)
    assert json.loads(output.splitlines()[-1]) == {"event": "ended", "code": code, "stays": False}
    assert errors == ""
    (unfinished,) = Store(tmp_path / "store").unfinished()
    assert unfinished.step >= step
    assert (Path(second.folder) / "checkpoint.pt").exists()


def test_a_sweep_that_is_gone_lets_its_run_save(real, tmp_path):
    """Killed, it closes both ends, in whichever order; here nobody listens for a while before the input ends."""
    (job,) = jobs(tmp_path / "store", replace(SORTING, steps=10**6, eval_every=20))
    log = real.begin(job)
    real.until("evaluated")
    real.process.stdout.close()
    time.sleep(1)
    real.process.stdin.close()
    assert real.process.wait(timeout=60) == 143
    assert log.read_text() == real.process.stderr.read() == ""
    assert (Path(job.folder) / "checkpoint.pt").exists()
    real.process.stdin = real.process.stdout = None


@pytest.mark.parametrize(
    ("error", "config", "wanted"),
    [
        (None, SORTING, (FINISHED, True, None)),
        (None, replace(SORTING, compile=True), (FINISHED, False, None)),
        (None, replace(PATHS, compile=True), (FINISHED, True, None)),
        (ValueError("no"), SORTING, (FAILED, False, "ValueError: no")),
    ],
)
def test_who_stays(error, config, wanted, tmp_path, monkeypatch, capsys):
    def pretend(job, events, make):
        if error is not None:
            raise error

    monkeypatch.setattr(worker, "execute", pretend)
    monkeypatch.setattr(worker, "_log_to", lambda path: None)
    monkeypatch.setattr(sys, "argv", ["worker"])
    (job,) = jobs(tmp_path, config)
    assert worker._do(job, "log", worker.Events(sys.stdout), DataCache()) == wanted
    assert sys.argv[1:3] == ["train", config.task]


def test_compiled_code_is_kept_for_networks_of_the_same_shape(monkeypatch):
    resets = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(1))
    fresh, compiled = worker.ProcessReset(), replace(PATHS, compile=True)
    same = (compiled, replace(compiled, seed=1, num_samples=5), PATHS, replace(PATHS, batch_size=3), compiled)
    for config in same:
        fresh.make_room(config.resolved().to_dict())
    assert resets == []
    fresh.make_room(replace(compiled, batch_size=3).resolved().to_dict())
    fresh.make_room(compiled.resolved().to_dict())
    assert len(resets) == 2


def test_what_a_run_leaves_behind_is_put_back():
    fresh = worker.ProcessReset()
    before = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    drawn = torch.rand(3)
    threads = torch.get_num_threads()
    fresh.restore()
    torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32 = not before[0], not before[1]
    torch.backends.cudnn.allow_tf32 = not before[2]
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(threads + 1)
    torch.rand(5)
    fresh.restore()
    after = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    assert after == before
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.gpu
def test_captured_runs_give_their_device_memory_back(tmp_path):
    """Graphs, moments and pictures of one run are gone before the next: what stays does not grow."""
    fresh, left = worker.ProcessReset(), []
    for seed in range(3):
        (job,) = jobs(tmp_path, replace(SORTING, seed=seed))
        execute(replace(job, configuration={**job.configuration, "device": "cuda", "graph": True}), Progress())
        fresh.restore()
        left.append(torch.cuda.memory_reserved())
    assert left[0] < 2**28
    assert left[2] <= left[1]
