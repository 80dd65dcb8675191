"""The events that end a stream of JSON early say whose they are: which of the seeds was stopped, or failed."""

import contextlib
import json
import signal

import pytest
import torch
from typer.testing import CliRunner

from newton_losses_bench import loop, train_step
from newton_losses_bench.cli import _train
from newton_losses_bench.cli._app import app
from newton_losses_bench.signals import StopRequests
from newton_losses_bench.store import RunError

TINY = [
    *("train", "sorting", "--data", "digits", "--digits", "1", "-n", "3", "--steps", "4", "--eval-every", "2"),
    *("--batch-size", "4", "--validation-sets", "10", "--test-sets", "10", "--device", "cpu"),
]


def events(*words):
    """The exit code and the events."""
    done = CliRunner().invoke(app, [*TINY, *words, "--json"], prog_name="newton-losses")
    return done.exit_code, [json.loads(line) for line in done.output.splitlines()]


@pytest.fixture
def stop_at(monkeypatch):
    """Ask for a stop, or do something else, in a step (from 0) that is counted over all runs."""
    stop = StopRequests()
    steps = iter(range(1000))
    take = train_step.Trainer.train_step
    monkeypatch.setattr(loop, "stop_requests", lambda: contextlib.nullcontext(stop))

    def at(wanted, act=lambda: setattr(stop, "requested", signal.SIGINT)):
        def counted_step(self):
            if next(steps) == wanted:
                act()
            take(self)

        monkeypatch.setattr(train_step.Trainer, "train_step", counted_step)

    return at


@pytest.fixture
def two_at_once(monkeypatch):
    """Two runs take turns after every step."""
    monkeypatch.setattr(_train, "choose_at_once", lambda asked, config, seeds: (2, None))
    monkeypatch.setattr(loop, "STEPS_A_TURN", 1)


def fail():
    raise RunError("the dog ate it")


def interrupt():
    raise KeyboardInterrupt


def test_an_interrupted_run(stop_at, tmp_path):
    stop_at(6)
    code, told = events("--seeds", "3,5,7", "--out", str(tmp_path / "runs"))
    assert code == 130
    assert [event["event"] for event in told if event["seed"] == 3][-1] == "finished"
    assert [(event["seed"], event["step"]) for event in told if event["event"] == "interrupted"] == [(5, 3)]
    assert "stopped after step 3; everything is saved" in told[-1]["message"]


def test_all_that_were_interrupted_at_once(two_at_once, stop_at, tmp_path):
    stop_at(3)
    code, told = events("--seeds", "3,5,7", "--eval-every", "4", "--out", str(tmp_path / "runs"))
    assert code == 130
    stopped = {event["seed"]: event for event in told if event["event"] == "interrupted"}
    assert {seed: event["step"] for seed, event in stopped.items()} == {3: 3, 5: 2}
    assert all(f"stopped after step {event['step']};" in event["message"] for event in stopped.values())


@pytest.mark.parametrize(
    ("act", "wanted", "last"),
    [
        (fail, 2, {"event": "error", "message": "the dog ate it", "seed": 5}),
        (interrupt, 130, {"event": "interrupted", "message": "stopped; the last checkpoint is intact.", "seed": 5}),
    ],
    ids=["an error", "a second Ctrl-C"],
)
def test_a_run_that_ended_at_once(act, wanted, last, stop_at, tmp_path):
    stop_at(6, act)
    code, told = events("--seeds", "3,5,7", "--out", str(tmp_path / "runs"))
    assert (code, told[-1]) == (wanted, last)


@pytest.mark.parametrize(
    ("error", "words", "code"),
    [
        (RunError("the dog ate it"), (), 2),
        (torch.OutOfMemoryError(), ("--at-once", "2"), 2),
        (torch.OutOfMemoryError(), (), 2),
        (ZeroDivisionError(), (), 1),
    ],
    ids=["an error", "a full device", "a device that stays full", "a bug"],
)
def test_one_that_is_saved_because_another_failed(error, words, code, two_at_once, stop_at, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "give_back_memory", lambda device: False)

    def act():
        raise error

    stop_at(2, act)
    found, told = events("--seeds", "3,5,7", "--eval-every", "4", "--out", str(tmp_path / "runs"), *words)
    assert found == code
    # The run that failed is told last; a bug has its traceback instead.
    ends = [event for event in told if event["event"] in ("interrupted", "error")]
    assert [event["event"] for event in ends] == ["interrupted", "error"][:code]
    assert (ends[0]["seed"], ends[0]["step"]) == (5, 2)
    assert "stopped after step 2; everything is saved" in ends[0]["message"]
    assert told[-len(ends) :] == ends


def test_a_run_whose_folder_is_refused(tmp_path):
    (tmp_path / "runs" / "seed-5").mkdir(parents=True)
    (tmp_path / "runs" / "seed-5" / "letter.txt").write_text("hello")
    code, told = events("--seeds", "3,5", "--out", str(tmp_path / "runs"))
    assert code == 2
    assert (told[-1]["event"], told[-1]["seed"]) == ("error", 5)


def test_a_mistake_that_is_no_run_s(tmp_path):
    code, told = events("--damping", "-1", "--out", str(tmp_path / "run"))
    assert code == 2
    assert [event["event"] for event in told] == ["error"]
    assert "seed" not in told[0]


def test_a_second_failure_is_told_as_well(two_at_once, stop_at, tmp_path, monkeypatch):
    def save(*_):
        raise RunError("the cat ate the rest")

    monkeypatch.setattr(loop, "_save", save)
    stop_at(2, fail)
    code, told = events("--seeds", "3,5", "--out", str(tmp_path / "runs"))
    assert code == 2
    both = "the dog ate it\nThen another run failed as well: the cat ate the rest"
    assert told[-1] == {"event": "error", "message": both, "seed": 3}
