"""The command as a newcomer uses it: what it prints, what it refuses, how it stops."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from newton_losses_bench.cli._app import app
from newton_losses_bench.cli._train import parse_seeds

TINY = [
    *("train", "sorting", "--data", "digits", "--digits", "1", "-n", "3", "--steps", "4", "--eval-every", "2"),
    *("--batch-size", "4", "--validation-sets", "10", "--test-sets", "10", "--device", "cpu"),
]


def command(*words):
    """The exit code and what was printed."""
    done = CliRunner().invoke(app, list(words), prog_name="newton-losses", terminal_width=200)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize("words", [(), ("train",), ("data",), ("train", "sorting"), ("train", "paths"), ("demo",)])
def test_help_is_there(words):
    code, text = command(*words, "--help")
    assert code == 0
    assert "Usage" in text


def test_the_version():
    import newton_losses

    assert command("--version") == (0, f"newton-losses {newton_losses.__version__}\n")


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
    assert f"{curvature} λ=auto" in text
    assert json.loads((tmp_path / "run" / "config.json").read_text())["configuration"]["damping"] == "auto"
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


def test_averaged_weights_are_told_wherever_figures_are(tmp_path):
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


def test_the_default_folder_tells_settings_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command(*TINY)
    command(*TINY, "--learning-rate", "0.01")
    command(*TINY, "--average")
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(names) == 3
    assert all(name.startswith("sorting-n3-softsort-baseline-") and name.endswith("-seed0") for name in names)


def test_tensorboard_curves(tmp_path):
    pytest.importorskip("tensorboard")
    code, _ = command(*TINY, "--tensorboard", "--out", str(tmp_path / "run"))
    assert code == 0
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    # A finished run with curves in its folder still is a run folder.
    assert command(*TINY, "--out", str(tmp_path / "run"))[0] == 0


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["trian"], "Did you mean 'train'"),
        (["train", "srting"], "Did you mean 'sorting'"),
        (["train", "sorting", "--algoritm", "x"], "--algorithm"),
        (["train", "sorting", "-a", "softsrot"], "did you mean softsort?"),
        (["train", "paths", "-a", "smoothed-algorithm", "-c", "hessian"], "no Hessian for smoothing of an algorithm"),
        (["train", "sorting", "-c", "fisher", "--damping", "0"], "--damping 0.0: it has to be a positive number"),
        (["train", "sorting", "--seeds", "0,x"], "as in 0,1,2 or 0-9"),
        (["train", "sorting", "--seeds", "1,1"], "each only once"),
        (["data", "check", "mnits"], "did you mean mnist?"),
        (["data", "fetch", "terrain"], "data make terrain"),
        (["data", "make", "mnist"], "data fetch mnist"),
    ],
)
def test_mistakes_are_answered(words, answer):
    code, text = command(*words)
    assert code == 2
    assert answer in text


def test_missing_data_says_how_to_get_it(tmp_path):
    code, text = command("train", "sorting", "--data-root", str(tmp_path), "--out", str(tmp_path / "run"))
    assert code == 2
    assert "MNIST is not there" in text
    code, text = command("train", "sorting", "--data-root", str(tmp_path), "--out", str(tmp_path / "run"), "--json")
    assert code == 2
    assert json.loads(text)["event"] == "error"


def test_another_configuration_in_the_folder_is_refused(tmp_path):
    command(*TINY, "--out", str(tmp_path / "run"))
    code, text = command(*TINY, "-c", "fisher", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "--curvature: none there, fisher here" in text
    assert command(*TINY, "-c", "fisher", "--out", str(tmp_path / "run"), "--overwrite")[0] == 0


def test_data_is_listed_made_and_checked(tmp_path):
    root = ["--root", str(tmp_path)]
    assert json.loads(command("data", "list", "--json", *root)[1])["terrain"]["state"] == "not there"
    code, text = command("data", "make", "terrain", "--train", "6", "--test", "3", *root)
    assert code == 0
    assert "12 maps of 12×12" in text
    assert command("data", "check", "terrain", *root)[1].startswith("terrain: in order, 6 for training")
    assert "there (6 training maps" in command("data", "list", *root)[1]
    assert "digits: in order" in command("data", "check", "digits", *root)[1]
    code, text = command("data", "check", "warcraft", *root)
    assert code == 2
    assert "10.17617/3.YJCQ5S" in text


def test_info_tells_versions():
    import torch

    assert f"torch          {torch.__version__}" in command("info")[1]
    assert json.loads(command("info", "--json")[1])["torch"] == torch.__version__


def test_seeds_are_numbers_and_ranges():
    assert parse_seeds("4") == [4]
    assert parse_seeds("0-2,7") == [0, 1, 2, 7]


@pytest.mark.parametrize(("words", "package"), [(["data", "check", "digits"], "sklearn"), (["demo"], "matplotlib")])
def test_a_missing_package_is_named(words, package, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    code, text = command(*words)
    assert code == 2
    assert f"needs the package {package}" in text


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
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaint.startswith("stopped after step ")
    assert "newton-losses train sorting --data digits" in complaint
    assert (tmp_path / "run" / "checkpoint.pt").exists()


def test_without_its_packages_the_command_says_what_to_install():
    script = "import sys; sys.modules['typer'] = None; from newton_losses_bench.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'newton-losses[bench]'" in done.stderr
