"""What a run tells, to whom."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from newton_losses_bench.config import PathsConfig, SortingConfig
from newton_losses_bench.describe import describe, describe_setting, duration, number, outcome
from newton_losses_bench.progress import JsonLines, LiveBar, PlainLines, Together
from newton_losses_bench.train import Progress

CONFIG = SortingConfig(algorithm="softsort", device="cpu").resolved()
RECORD = {
    "step": 50,
    "loss": 0.25,
    "validation": {"exact_match": 41.0, "element_wise": 70.0},
    "test": {"exact_match": 40.0, "element_wise": 69.0},
}
RESULT = {"test": RECORD["test"], "reported": RECORD, "steps": 100, "seconds": 61.0, "milliseconds_per_step": 1.5}


def tell(listener):
    """A whole run's events."""
    listener.preparing(CONFIG)
    listener.started(CONFIG, 10, 100, [])
    listener.advanced(20, 0.5)
    listener.evaluating(50)
    listener.evaluated(RECORD)
    listener.note("careful")
    listener.finished(RESULT)
    listener.close()


def test_plain_lines():
    stream = io.StringIO()
    tell(PlainLines(stream))
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["sorting n=5, softsort (stable), baseline, seed 0: 100 steps on cpu", "resuming after step 10"]
    assert lines[2].startswith("step 50/100  loss 0.25  validation exact match 41.00 %  test exact match 40.00 %")
    assert lines[3] == "careful"
    assert lines[4] == (
        "finished: test exact match 40.00 %, element wise 69.00 % (evaluation after step 50 of 100), 1:01, "
        "1.50 ms per step, evaluations included"
    )


def test_json_lines():
    stream = io.StringIO()
    tell(JsonLines(stream))
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["started", "evaluated", "note", "finished"]
    assert events[1]["test"] == RECORD["test"]


@pytest.fixture
def clock(monkeypatch):
    """A time that passes only where a test says so."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr("newton_losses_bench.progress.time.monotonic", lambda: now.seconds)
    return now


def minutes_of(listener, clock):
    """Start-up of 30 seconds, then a step per second, with an evaluation of 100 seconds after step 150."""
    listener.started(CONFIG, 0, 250, [])
    clock.seconds += 30
    for step in range(1, 151):
        listener.advanced(step, 0.5)
        clock.seconds += 1
    for fraction in (0.0, 0.25, 0.5, 0.75):
        listener.evaluating(150, fraction)
        clock.seconds += 25
    listener.evaluated({**RECORD, "step": 150})


def test_a_pipe_hears_of_a_run_every_minute(clock):
    stream = io.StringIO()
    minutes_of(PlainLines(stream), clock)
    _, *lines, last = stream.getvalue().splitlines()
    assert lines == [
        "step 31/250  loss 0.5  1.0 steps/s  3:39 left",
        "step 91/250  loss 0.5  1.0 steps/s  2:39 left",
        "step 150/250  evaluating 0 %",
        "step 150/250  evaluating 75 %",
    ]
    # Neither start-up nor evaluation counts in the pace; the time left has room for as much evaluating again.
    assert last.endswith("1.0 steps/s  2:48 left")


def test_a_program_hears_of_a_run_every_minute(clock):
    stream = io.StringIO()
    minutes_of(JsonLines(stream, seed=1), clock)
    _, *events, _ = map(json.loads, stream.getvalue().splitlines())
    assert events == [
        {"event": "advanced", "seed": 1, "step": 31, "loss": 0.5},
        {"event": "advanced", "seed": 1, "step": 91, "loss": 0.5},
        {"event": "evaluating", "seed": 1, "step": 150, "fraction": 0.0},
        {"event": "evaluating", "seed": 1, "step": 150, "fraction": 0.75},
    ]


def test_the_live_bar_fits_a_terminal():
    rich = pytest.importorskip("rich.console")
    stream = io.StringIO()
    tell(LiveBar(rich.Console(file=stream, width=80, force_terminal=True, color_system=None)))
    text = stream.getvalue()
    assert "resuming after step 10" in text
    # While an evaluation is under way, and not after it.
    _, found, after = text.rpartition("50/100 evaluating 0 %")
    assert found
    assert "/s, " in after
    assert "val 41.0 test 40.0 %" in after
    assert "loss 0.5" in text
    assert "…" not in text


@pytest.mark.parametrize(("width", "has_loss"), [(80, True), (72, True), (60, False)])
def test_a_narrow_live_bar_keeps_the_steps(width, has_loss, clock):
    rich = pytest.importorskip("rich.console")
    stream = io.StringIO()
    bar = LiveBar(rich.Console(file=stream, width=width, force_terminal=True, color_system=None))
    bar.started(CONFIG, 0, 100_000, [])
    bar.advanced(1_000, 0.1234)
    clock.seconds += 60
    bar.evaluated({**RECORD, "step": 2_000})
    bar.close()
    shown = stream.getvalue()
    assert "  2000/100000 16.7/s, 1:38:00 left" in shown
    assert "val 41.0 test 40.0 %" in shown
    assert ("loss 0.1234" in shown) == has_loss
    assert "…" not in shown


def test_json_lines_carry_the_seed_that_they_are_given():
    stream = io.StringIO()
    tell(JsonLines(stream, seed=7))
    assert {json.loads(line)["seed"] for line in stream.getvalue().splitlines()} == {7}


def test_several_listeners_hear_of_an_evaluation():
    class Listener(Progress):
        def evaluating(self, step, fraction=0.0):
            heard.append(step)

    heard = []
    tell(Together(Listener(), Listener()))
    assert heard == [50, 50]


def test_several_listeners_hear_the_same():
    streams = [io.StringIO(), io.StringIO()]
    tell(Together(*(PlainLines(stream) for stream in streams), Progress()))
    first, second = (stream.getvalue().splitlines() for stream in streams)
    # The third line tells the pace, which is each listener's own.
    assert first[:2] + first[3:] == second[:2] + second[3:]
    assert len(first) == 5


def test_a_run_in_words():
    relative = SortingConfig(algorithm="logistic", curvature="hessian", relative_damping=2.0, n=10, device="cpu")
    assert describe(relative.resolved()) == "sorting n=10, logistic (stable), hessian λ=2·scale, seed 0"
    paths = PathsConfig(algorithm="smoothed-loss", curvature="fisher", device="cpu", seed=4)
    assert describe(paths.resolved()) == "paths, smoothed-loss, fisher λ=0.1, seed 4"


SORTING = SortingConfig(algorithm="logistic", curvature="hessian", damping=0.1, device="cpu")
PATHS = PathsConfig(algorithm="fenchel-young", curvature="fisher", device="cpu")


@pytest.mark.parametrize(
    ("config", "changes", "told"),
    [
        (SORTING, {"spectrum": "absolute"}, "spectrum absolute"),
        (SORTING, {"steepness": 20}, "steepness 20"),
        (SORTING, {"clip_norm": 1.0, "learning_rate": 1e-4}, "clip norm 1, learning rate 0.0001"),
        (SORTING, {"batch_size": 50, "precision": "bf16"}, "batch size 50, precision bf16"),
        (SORTING, {"data": "digits", "digits": 2, "augment": True}, "data digits, digits 2, augment"),
        (replace(SORTING, algorithm="softsort"), {"temperature": 0.2}, "temperature 0.2"),
        (PATHS, {"num_samples": 3, "scale": 0.5}, "scale 0.5, samples 3"),
        (PATHS, {"size": 6, "train_maps": 200}, "size 6, train maps 200"),
        (
            replace(PATHS, algorithm="bellman-ford"),
            {"loop": "while", "norm": "l2", "beta": 5, "iterations": 9, "damping": 1000.0},
            "loop while, norm l2, beta 5, iterations 9",
        ),
    ],
)
def test_runs_are_told_apart_by_what_is_not_as_usual(config, changes, told):
    usual = describe_setting(config.resolved())
    assert describe_setting(replace(config, **changes).resolved()) == f"{usual}, {told}"


def test_every_setting_of_the_loss_is_named():
    """Of what makes two runs different experiments, only their length and their evaluations are not in the words."""
    for config in (SORTING, replace(SORTING, damping="auto"), PATHS, replace(PATHS, algorithm="bellman-ford")):
        assert describe_setting(config.resolved()).count(",") == 2


def test_a_loss_that_is_not_finite_is_reported_with_what_to_try():
    result = {
        "test": {"exact_match": 1.0},
        "reported": {"step": 100},
        "steps": 1000,
        "seconds": 1.0,
        "milliseconds_per_step": 1.0,
        "configuration": replace(SORTING, numerics="reference").resolved().to_dict(),
    }
    assert outcome(result, False) == outcome({**result, "not_finite_steps": 0}, False)
    text = outcome({**result, "not_finite_steps": 900}, False).removeprefix(outcome(result, False))
    assert text == (
        ". Towards the end, 900 of 1000 steps had no finite loss or skipped all their samples. "
        "Try --numerics stable, --spectrum absolute, a larger --damping, --clip-norm 1 or a smaller --learning-rate"
    )
    baseline = {**result, "configuration": SortingConfig(algorithm="softsort", device="cpu", clip_norm=1).to_dict()}
    assert outcome({**baseline, "not_finite_steps": 9}, False).endswith("samples. Try a smaller --learning-rate")


def test_numbers_for_people():
    assert number(None) == "not finite"
    assert duration(59.6) == "1:00"
    assert duration(float("nan")) == "?"


def test_before_the_first_step_nobody_knows_the_time_left():
    stream = io.StringIO()
    lines = PlainLines(stream)
    lines.started(CONFIG, 50, 100, [])
    lines.evaluated(RECORD)
    assert stream.getvalue().endswith("0.0 steps/s  ? left\n")
