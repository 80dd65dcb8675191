"""`newton-losses train`: what it prints, where it writes, how it stops, and what it says when a run fails."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.running import TINY, command
from newton_losses_bench import train, train_step
from newton_losses_bench.config import run_name
from newton_losses_bench.store import RunError, Store


def test_training_prints_lines_and_a_result(tmp_path):
    code, text = command(*TINY, "--out", str(tmp_path / "run"))
    assert code == 0
    lines = text.splitlines()
    assert (
        lines[0]
        == "sorting n=3, softsort (stable), baseline, batch size 4, data digits, digits 1, seed 0: 4 steps on cpu"
    )
    assert lines[1].startswith("step 2/4  loss ")
    assert "steps/s" in lines[1]
    assert "left" in lines[1]
    assert lines[3].startswith("finished: test exact match")
    again = command(*TINY, "--out", str(tmp_path / "run"))[1].splitlines()
    assert again[0] == lines[3].replace("finished", "this run is finished")


def test_training_as_json(tmp_path):
    code, text = command(*TINY, "--curvature", "fisher", "--json", "--out", str(tmp_path / "run"))
    assert code == 0
    events = [json.loads(line) for line in text.splitlines()]
    assert [event["event"] for event in events] == ["started", "evaluated", "evaluated", "finished"]
    assert events[0]["configuration"]["damping"] == 10.0
    assert set(events[-1]["test"]) == {"exact_match", "element_wise"}


@pytest.mark.parametrize("curvature", ["fisher", "hessian"])
def test_training_with_an_automatic_damping(tmp_path, curvature):
    settings = [*TINY, "--curvature", curvature, "--damping", "auto", "--out", str(tmp_path / "run")]
    code, text = command(*settings)
    assert code == 0
    assert f"{curvature} λ=running" in text
    assert json.loads((tmp_path / "run" / "config.json").read_text())["configuration"]["damping"] == "running"
    assert "this run is finished" in command(*settings)[1]


def test_several_seeds_have_a_folder_each_and_a_summary(tmp_path):
    code, text = command(*TINY, "--seeds", "3,5-6", "--out", str(tmp_path / "runs"))
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["seed-3", "seed-5", "seed-6"]
    assert "test exact match over 3 seeds" in text
    assert "averaged" not in text
    events = command(*TINY, "--seeds", "3,5-6", "--json", "--out", str(tmp_path / "runs"))[1].splitlines()
    assert json.loads(events[-1])["event"] == "summary"
    assert "averaged" not in json.loads(events[-1])


def test_averaged_weights_are_shown_wherever_figures_are(tmp_path):
    words = [*TINY, "--average", "--seeds", "0,1", "--out", str(tmp_path / "runs")]
    _, text = command(*words)
    evaluated, ended, summary = (
        [line for line in text.splitlines() if start in line] for start in ("step 2/", "finished:", "over 2 seeds")
    )
    assert all("averaged test exact match" in line for line in evaluated)
    assert all("with averaged weights exact match" in line for line in ended)
    assert [line.split(" over")[0] for line in summary] == [
        "test exact match", "test element wise", "averaged test exact match", "averaged test element wise",
    ]  # fmt: skip
    told = json.loads(command(*words, "--json")[1].splitlines()[-1])
    results = [json.loads((tmp_path / "runs" / f"seed-{seed}" / "result.json").read_text()) for seed in (0, 1)]
    means = [result["averaged"]["test"]["exact_match"] for result in results]
    assert told["averaged"]["exact_match"]["mean"] == pytest.approx(sum(means) / 2)


def test_the_default_folder_has_the_name_that_a_sweep_would_give_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command(*TINY)
    command(*TINY, "--learning-rate", "0.01")
    records = Store("runs").records()
    assert len(records) == 2
    assert all(record.path.name == run_name(record.configuration) for record in records)


@pytest.mark.parametrize(
    ("words", "seeds"), [(["--seeds", "2"], [0, 1]), (["--seeds", "4,"], [4]), (["--seed", "4"], [4])]
)
def test_seeds_mean_the_same_as_in_a_sweep(words, seeds, tmp_path):
    assert command(*TINY, *words, "--out", str(tmp_path))[0] == 0
    assert sorted(record.seed for record in Store(tmp_path).records()) == seeds


def test_tensorboard_curves(tmp_path):
    pytest.importorskip("tensorboard")
    code, _ = command(*TINY, "--tensorboard", "--out", str(tmp_path / "run"))
    assert code == 0
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    # A finished run with curves in its folder still is a run folder.
    assert command(*TINY, "--out", str(tmp_path / "run"))[0] == 0


def test_missing_data_says_how_to_get_it(tmp_path):
    code, text = command("train", "sorting", "--data-root", str(tmp_path), "--out", str(tmp_path / "run"))
    assert code == 2
    assert "MNIST is not in" in text
    code, text = command("train", "sorting", "--data-root", str(tmp_path), "--out", str(tmp_path / "run"), "--json")
    assert code == 2
    assert json.loads(text)["event"] == "error"


def test_another_configuration_in_the_folder_is_refused(tmp_path):
    command(*TINY, "--out", str(tmp_path / "run"))
    code, text = command(*TINY, "-c", "fisher", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "--curvature: none there, fisher here" in text
    assert command(*TINY, "-c", "fisher", "--out", str(tmp_path / "run"), "--overwrite")[0] == 0


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def test_control_c_saves_and_says_how_to_go_on(tmp_path):
    words = [*TINY, "--steps", "100000", "--eval-every", "100000", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "newton_losses", *words],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline().startswith("sorting n=3")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("stopped after step ")
    assert "newton-losses train sorting --data digits" in process.stderr.readline()
    # Once more, while Python shuts down.
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in complaint
    assert (tmp_path / "run" / "checkpoint.pt").exists()


def events(*words):
    """The exit code and the JSON events."""
    code, text = command(*TINY, "--json", *words)
    return code, [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def at_step(monkeypatch):
    """Do something at a training step, counted from 0 over all runs of a test."""
    steps, take = iter(range(1000)), train_step.Trainer.train_step

    def at(wanted, act):
        def patched(self):
            if next(steps) == wanted:
                act()
            take(self)

        monkeypatch.setattr(train_step.Trainer, "train_step", patched)

    return at


def fail():
    raise RunError("the dog ate it")


def divide():
    return 1 / 0


def interrupt_twice():
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_seed_is_named(at_step, tmp_path):
    at_step(6, lambda: os.kill(os.getpid(), signal.SIGINT))
    code, told = events("--seeds", "3,5,7", "--out", str(tmp_path / "runs"))
    assert code == 130
    assert [event["event"] for event in told if event["seed"] == 3][-1] == "finished"
    assert (told[-1]["event"], told[-1]["seed"], told[-1]["step"]) == ("interrupted", 5, 3)
    assert "stopped after step 3; everything is saved" in told[-1]["message"]


def test_the_command_to_resume_does_not_delete_the_run(at_step, monkeypatch, tmp_path):
    words = ["--steps", "5", "--overwrite", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["newton-losses", "train", *words])
    at_step(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    told = events(*words)[1][-1]["message"]
    assert "The same command without --overwrite resumes:" in told
    assert " --overwrite" not in told.splitlines()[-1]


@pytest.mark.parametrize(
    ("act", "code", "event", "message"),
    [
        (fail, 2, "error", "the dog ate it"),
        (divide, 2, "error", "seed-5: the run failed with ZeroDivisionError: division by zero"),
        (interrupt_twice, 130, "interrupted", "stopped at once. The last checkpoint is intact"),
    ],
    ids=["an error of ours", "an error of anybody", "a second Ctrl-C"],
)
def test_a_run_that_ends_badly_is_reported_in_a_sentence(act, code, event, message, at_step, tmp_path):
    at_step(6, act)
    found, told = events("--seeds", "3,5,7", "--out", str(tmp_path / "runs"))
    assert (found, told[-1]["event"], told[-1]["seed"]) == (code, event, 5)
    assert message in told[-1]["message"]
    assert "Traceback" not in told[-1]["message"]


def test_the_traceback_of_an_unexpected_error_is_kept_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("newton_losses_bench.cli._train.run", lambda *arguments, **options: divide())
    code, text = command(*TINY, "--out", str(tmp_path / "run"))
    assert code == 1
    assert "Traceback" not in text
    path = text.split("traceback in ")[1].strip()
    assert "in divide" in Path(path).read_text()


def test_a_stop_after_the_last_step_of_a_seed_begins_no_other(tmp_path, monkeypatch):
    finish = train.RunFolder.finish

    def interrupted(self, result):
        signal.raise_signal(signal.SIGINT)
        return finish(self, result)

    monkeypatch.setattr(train.RunFolder, "finish", interrupted)
    code, told = events("--seeds", "3,5", "--out", str(tmp_path / "runs"))
    assert code == 130
    assert [(event["event"], event["seed"]) for event in told][-2:] == [("finished", 3), ("interrupted", 5)]


def test_a_folder_that_is_refused_names_its_seed(tmp_path):
    (tmp_path / "runs" / "seed-5").mkdir(parents=True)
    (tmp_path / "runs" / "seed-5" / "letter.txt").write_text("hello")
    code, told = events("--seeds", "3,5", "--out", str(tmp_path / "runs"))
    assert (code, told[-1]["event"], told[-1]["seed"]) == (2, "error", 5)


def test_a_mistake_that_is_no_run_s_has_no_seed(tmp_path):
    code, told = events("--damping", "-1", "--out", str(tmp_path / "run"))
    assert code == 2
    assert [(event["event"], "seed" in event) for event in told] == [("error", False)]


def test_torchrun_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, text = command(*TINY)
    assert code == 2
    assert "leave it out, and use `sweep --jobs`" in text
