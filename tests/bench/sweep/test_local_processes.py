"""The engine on one machine: retries, failures, runs of others, stopping; with stand-ins for the runs' processes."""

import fcntl
import io
import math
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from newton_losses_bench.config import SortingConfig
from newton_losses_bench.machine import STOPPING
from newton_losses_bench.store import Store
from newton_losses_bench.sweep import Bars, Counters, Job, Lines, LocalPool, SweepResult, processes, run_sweep

STUB = (sys.executable, str(Path(__file__).with_name("stub_worker.py")))
CONFIG = SortingConfig(
    algorithm="softsort", data="digits", digits=1, n=3, steps=3, eval_every=1, batch_size=4, validation_sets=5,
    test_sets=5, device="cpu",
)  # fmt: skip


class Sweep:
    """A store in a folder, and sweeps of stand-ins over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "store")
        self.said = io.StringIO()

    def jobs(self, *labels: str) -> list[Job]:
        configs = [replace(CONFIG, seed=seed).resolved() for seed, _ in enumerate(labels)]
        return [Job.of(label, c, self.store.path, "cpu", True) for label, c in zip(labels, configs, strict=True)]

    def run(self, *labels: str, slots: int = 2):
        pool = LocalPool(slots, self.store.path / ".logs", STUB)
        return run_sweep(self.jobs(*labels), self.store, Lines(self.said), pool)

    def starts(self) -> list[str]:
        return (self.folder / "starts").read_text().split("\n")[:-1]


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_IN_USE_SECONDS", 0.1)
    monkeypatch.setattr(processes, "_RETRY_SECONDS", 0.0)
    return Sweep(tmp_path)


def test_a_pipe_hears_every_minute_how_far_the_runs_are(sweep, monkeypatch):
    seconds = [0.0]
    monkeypatch.setattr("newton_losses_bench.progress.time.monotonic", lambda: seconds[0])
    jobs = sweep.jobs(*(f"run {k}" for k in range(10)))
    counters = Counters(10, 2, Lines(sweep.said))
    for number, job in enumerate(jobs):
        counters.start(job)
        counters.advance(job, 0.0)
        counters.advance(job, number / 10)
    counters.pass_time()  # within the minute: nothing
    seconds[0] = 60.0
    counters.pass_time()
    counters.pass_time()
    named = "; ".join(f"run {k} {10 * k} %" for k in range(8))
    assert sweep.said.getvalue().splitlines()[11:] == [f"[2/12] running: {named}; 2 more; all runs: 1:13 left"]
    seconds[0] = 130.0
    for job in jobs:
        counters.put_back(job)
    counters.pass_time()
    assert sweep.said.getvalue().splitlines()[-1] == "[2/12] all runs: ? left"


def test_jobs_that_only_report_their_end_have_a_pace_too(sweep, monkeypatch):
    """As on a cluster."""
    seconds = [5.0]
    monkeypatch.setattr("newton_losses_bench.progress.time.monotonic", lambda: seconds[0])
    counters = Counters(4, 0, Lines(sweep.said))
    seconds[0] = 65.0
    counters.finish(sweep.jobs("one")[0], {"test": {"exact_match": 50.0}, "seconds": 60.0})
    assert sweep.said.getvalue().splitlines()[-1].endswith("all runs: 3:00 left")


def test_a_sweep_lets_time_pass(sweep):
    class Counting(Lines):
        heard = 0

        def time_passed(self, counters):
            self.heard += 1

    lines = Counting(sweep.said)
    run_sweep(sweep.jobs("fine"), sweep.store, lines, LocalPool(1, sweep.store.path / ".logs", STUB))
    assert lines.heard > 0


def test_every_run_is_done_once_and_never_again(sweep):
    labels = [f"fine {k}" for k in range(5)]
    assert sweep.run(*labels).finished == 5
    again = sweep.run(*labels)
    assert (again.finished, again.finished_before, again.exit_code) == (0, 5, 0)
    assert sorted(sweep.starts()) == labels
    assert len(sweep.store.records()) == 5
    assert "5 runs, 5 already finished" in sweep.said.getvalue()


def test_a_record_under_another_name_counts(sweep):
    sweep.run("fine")
    (record,) = sweep.store.records()
    record.path.rename(sweep.store.path / "copied from elsewhere")
    assert sweep.run("fine").finished_before == 1


@pytest.mark.parametrize("keep_weights", [True, False])
def test_a_damaged_result_fails_alone(sweep, keep_weights):
    sweep.run("fine 1", "fine 2")
    folder = Path(sweep.jobs("fine 1", "fine 2")[0].folder)
    (folder / "result.json").write_text('{"torn')
    (folder / "weights.pt").write_text("what could mend it")
    jobs = [replace(job, keep_weights=keep_weights) for job in sweep.jobs("fine 1", "fine 2", "fine 3")]
    pool = LocalPool(1, sweep.store.path / ".logs", STUB)
    result = run_sweep(jobs, sweep.store, Lines(sweep.said), pool)
    assert (result.finished_before, result.finished, result.exit_code) == (1, 1, 1)
    assert [failure.job.label for failure in result.failures] == ["fine 1"]
    assert "delete its folder" in result.failures[0].message
    assert (folder / "weights.pt").exists()


def test_a_failed_run_is_tried_again_and_does_not_stop_the_others(sweep):
    result = sweep.run("fails-once", "fine 1", "fails", "fine 2", "dies", slots=1)
    assert result.finished == 3
    assert {failure.job.label: failure.message for failure in result.failures} == {
        "fails": "it ended with code 1\nsomething broke",
        "dies": "it was ended by signal 9",
    }
    assert result.exit_code == 1
    # A second attempt comes when the others have had their turn.
    assert sweep.starts() == ["fails-once", "fine 1", "fails", "fine 2", "dies", "fails-once", "fails", "dies"]
    assert Path(result.failures[0].log).read_text() == "something broke\n"
    said = sweep.said.getvalue()
    assert "failed, will be retried: fails: it ended with code 1: something broke" in said
    assert "failed: fails: it ended with code 1: something broke" in said


def test_runs_that_fail_at_the_same_moment_are_each_said(sweep):
    """Two seeds of one mistake do: neither sentence is lost, and neither becomes a traceback."""
    result = sweep.run("fails 1", "fails 2", slots=2)
    assert (result.finished, result.exit_code) == (0, 1)
    assert {failure.job.label for failure in result.failures} == {"fails 1", "fails 2"}
    assert all(failure.message == "it ended with code 1\nsomething broke" for failure in result.failures)
    said = sweep.said.getvalue()
    assert all(f"failed: fails {number}: it ended with code 1: something broke" in said for number in (1, 2))
    assert "Traceback" not in said


def test_what_fails_for_a_moment_is_not_tried_again_within_it(sweep, monkeypatch):
    """As where a device is reset: every run that begins meanwhile fails."""
    monkeypatch.setattr(processes, "_RETRY_SECONDS", 1.0)
    begin = time.monotonic()
    assert sweep.run("fails-once", "fine 1", slots=2).finished == 2
    assert sweep.starts().count("fails-once") == 2
    assert time.monotonic() - begin > 1.0
    # Ctrl-C is not kept waiting by it.
    monkeypatch.setattr(processes, "_RETRY_SECONDS", 60.0)
    pool = LocalPool(1, sweep.store.path / ".logs", STUB)
    pool.start(sweep.jobs("", "", "fails")[2:], Counters(1, 0, Lines(sweep.said)))
    while "will be retried: fails:" not in sweep.said.getvalue():
        time.sleep(0.01)
    pool.stop()
    begin = time.monotonic()
    while pool.is_busy():
        time.sleep(0.01)
    assert time.monotonic() - begin < 5


def test_a_stop_after_the_result_takes_nothing_from_it(sweep):
    result = sweep.run("stopped 1", "fine 2", slots=1)
    assert (result.finished, result.failures, result.exit_code) == (2, (), 0)
    assert sweep.starts() == ["stopped 1", "fine 2"]
    assert "failed" not in sweep.said.getvalue()


def test_no_process_is_left_behind(sweep):
    sweep.run("fine 1", "fails 2", "fine 3", "dies 4")
    for pid in set((sweep.folder / "processes").read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_log_that_cannot_be_written_fails_its_run_alone(sweep):
    blocked = sweep.store.path / ".logs" / f"{sweep.jobs('fine 1', 'fine 2')[0].name}.txt"
    blocked.mkdir(parents=True)
    result = sweep.run("fine 1", "fine 2", "fine 3", slots=1)
    assert (result.finished, result.exit_code) == (2, 1)
    (failure,) = result.failures
    assert failure.job.label == "fine 1"
    assert failure.message.startswith(f"{blocked}: could not be written (Is a directory).")
    assert failure.log is None


def test_a_folder_of_logs_that_cannot_be_made_fails_every_run(sweep):
    sweep.store.path.mkdir()
    (sweep.store.path / ".logs").write_text("a file in its place")
    result = sweep.run("fine 1", "fine 2", "fine 3")
    assert (result.finished, len(result.failures), result.exit_code) == (0, 3, 1)
    assert all(".logs: could not be written (File exists)" in failure.message for failure in result.failures)


def test_a_process_that_cannot_be_started_fails_its_run(sweep, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "STUB", (str(sweep.folder / "no-such-python"),))
    result = sweep.run("fine 1", "fine 2")
    assert (result.finished, result.exit_code) == (0, 1)
    assert "its process could not be started ([Errno 2] No such file" in result.failures[0].message


@pytest.mark.parametrize(
    ("error", "finished"), [(BrokenPipeError("nobody reads any more"), 2), (ValueError("oops"), 0)]
)
def test_an_error_of_who_listens_ends_no_thread(sweep, error, finished):
    class Deaf(Lines):
        def job_started(self, job, counters):
            raise error

    pool = LocalPool(1, sweep.store.path / ".logs", STUB)
    result = run_sweep(sweep.jobs("fine 1", "fine 2"), sweep.store, Deaf(sweep.said), pool)
    assert (result.finished, len(result.failures)) == (finished, 2 - finished)
    assert all("ValueError: oops" in failure.message for failure in result.failures)


def test_a_sweep_that_did_not_do_all_runs_has_not_succeeded():
    assert SweepResult(3, 1, 1, (), None).exit_code == 1
    assert SweepResult(3, 1, 2, (), None).exit_code == 0


def test_a_run_that_another_sweep_is_at_work_on_is_waited_for(sweep):
    (job,) = sweep.jobs("fine")
    folder = Path(job.folder)
    folder.mkdir(parents=True)
    held = open(folder / ".lock", "w")  # noqa: SIM115  the open file is the lock
    fcntl.flock(held, fcntl.LOCK_EX)
    threading.Timer(1.0, held.close).start()
    began = time.monotonic()
    assert sweep.run("fine").finished == 1
    assert time.monotonic() - began >= 0.9
    # One start that finds it in use, one that does it: in between only the lock is looked at.
    assert sweep.starts() == ["fine", "fine"]


def test_it_does_not_wait_for_one_that_has_to_wait_longer(sweep, monkeypatch):
    monkeypatch.setattr(processes, "_RETRY_SECONDS", 2.0)
    folder = Path(sweep.jobs("fails-once", "fine")[1].folder)
    folder.mkdir(parents=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(0.5, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
        assert sweep.run("fails-once", "fine", slots=1).finished == 2
    assert sweep.starts() == ["fails-once", "fine", "fine", "fails-once"]


def test_what_another_sweep_does_in_the_meantime_is_not_done_again(sweep):
    labels = [f"fine {k}" for k in range(12)]
    both = [Sweep(sweep.folder), Sweep(sweep.folder)]
    done = []
    threads = [threading.Thread(target=lambda one=one: done.append(one.run(*labels))) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(result.failures, result.total) for result in done] == [((), 12)] * 2
    # Starts that find the work done or in use are harmless; each result was written once.
    assert len(sweep.store.records()) == 12
    assert sweep.store.notes == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_all_runs_save_and_starts_no_other(sweep, number):
    def when_both_wait() -> None:
        while len(sweep.starts() if (sweep.folder / "starts").exists() else []) < 2:
            time.sleep(0.02)
        time.sleep(0.3)  # until both have said what to do about the signal
        os.kill(os.getpid(), number)

    threading.Thread(target=when_both_wait, daemon=True).start()
    began = time.monotonic()
    result = sweep.run("waits 1", "waits 2", "fine")
    assert time.monotonic() - began < 20
    assert (result.stopped_by, result.exit_code) == (number, 128 + number)
    assert (result.finished, result.failures) == (0, ())
    assert sorted(sweep.starts()) == ["waits 1", "waits 2"]
    assert sweep.said.getvalue().count(STOPPING) == 1


def test_time_left_counts_parts_of_runs_and_not_what_was_done_before(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    counters = Counters(4, 1, Lines(io.StringIO()))
    first, second = (Job(name, name, {}) for name in ("first", "second"))
    assert math.isnan(counters.seconds_left())
    counters.start(first)
    counters.advance(first, 0.5)  # goes on where an earlier sweep had left it
    counters.start(second)
    now = 110.0
    counters.advance(first, 0.75)
    counters.advance(second, 0.0)
    counters.advance(second, 0.25)
    # Half a run in ten seconds, and four less one are left to do.
    assert counters.seconds_left() == pytest.approx(3 * 20)
    counters.finish(first, {"test": {}, "seconds": 1})
    assert (counters.done, counters.total) == (2, 5)


def test_bars_for_a_person(capsys):
    bars = Bars()
    counters = Counters(2, 1, bars)
    first, second = (Job(name, name, {}) for name in ("first", "second"))
    counters.start(first)
    counters.advance(first, 0.5)
    counters.start(second)
    counters.fail(second, "broke\nfor this reason", final=True)
    counters.stop()
    counters.finish(first, {"test": {"exact_match": 81.5}, "seconds": 61})
    bars.close()
    said = capsys.readouterr().out
    assert "3 runs, 1 already finished" in said
    assert "first: exact match 81.5, 1:01" in said
    assert "failed: second: broke: for this reason" in said
    assert STOPPING in " ".join(said.split())


def test_bars_keep_what_tells_runs_apart(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    bars = Bars()
    counters = Counters(2, 0, bars)
    for seed in (0, 1):
        job = Job(f"sorting n=5, softsort (stable), baseline, data digits, digits 2, seed {seed}", f"{seed}", {})
        counters.start(job)
        counters.advance(job, 0.25, 12.3)
    bars.close()
    said = capsys.readouterr().out
    assert "…, seed 0" in said
    assert "…, seed 1" in said
    assert "25 %, test 12.3" in said
    assert " left" in said
