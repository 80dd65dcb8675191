"""`newton-losses diagnose`."""

import json

import pytest

pytest.importorskip("typer")

import torch
from typer.testing import CliRunner

from newton_losses_bench.cli.app import app

FILE = """
import torch

class Squares(torch.nn.Module):
    def forward(self, y, target):
        return (y - target).square().sum(1)

def batch():
    return torch.randn(20, 3), torch.zeros(20, 3)

def bad_batch():
    outputs, target = batch()
    target[3, 1] = float("nan")
    return outputs, target

nothing = 3

def slow_once(y, target, calls=[]):
    if not calls:
        import time
        time.sleep(0.6)
    calls.append(1)
    return (y - target).square().sum(1)

def refuses(y, target):
    if bool((y.abs() > 50).any()):
        raise ValueError("costs out of range")
    return (y - target).square().sum(1)

def fails_in_backward(y, target):
    y.register_hook(lambda gradient: 1 / 0) if y.requires_grad else None
    return (y - target).square().sum(1)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_losses.py").write_text(FILE)
    return lambda *arguments: CliRunner().invoke(app, ["diagnose", *arguments])


def test_a_file_and_a_module(run, tmp_path) -> None:
    text = run("my_losses.py:Squares", "--batch", "my_losses.py:batch")
    assert text.exit_code == 0, text.output
    assert "One gradient step on the outputs solves it" in text.output
    torch.save((torch.randn(8, 2), torch.zeros(8, 2)), tmp_path / "batch.pt")
    found = run("my_losses:Squares", "--batch", "batch.pt", "--json", "--plot", "picture.png")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["verdict"] == "open"
    assert (tmp_path / "picture.png").is_file()


def test_files_of_one_name_in_two_folders(run, tmp_path) -> None:
    for folder, samples in (("a", 20), ("b", 7)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(FILE.replace("20", str(samples)))
    found = run("a/same.py:Squares", "--batch", "b/same.py:batch", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["samples"] == 7


def test_a_file_that_fails_is_run_again(run, tmp_path) -> None:
    (tmp_path / "failing.py").write_text("nothing = 3\nraise ValueError('no')")
    for _ in range(2):
        found = run("failing.py:nothing", "--batch", "my_losses.py:batch")
        assert "ValueError: no (failing.py, line 2)" in " ".join(found.output.split())
    (tmp_path / "failing.py").write_text(FILE)
    assert run("failing.py:Squares", "--batch", "failing.py:batch").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("my_losses.py:Square", "-b", "my_losses.py:batch"), "has no Square"),
        (("Squares", "-b", "my_losses.py:batch"), "file.py:name"),
        (("nowhere.py:Squares", "-b", "my_losses.py:batch"), "no file nowhere.py"),
        (("nowhere:Squares", "-b", "my_losses.py:batch"), "No module named"),
        (("my_losses.py:Squares", "-b", "batch.pt"), "no such file"),
        (("my_losses.py:Squares", "-b", "my_losses.py:nothing"), "has to be a tuple"),
        (("my_losses.py:Squares", "-b", "my_losses.py:batch", "--reduction", "men"), "one of mean, sum, none"),
    ],
)
def test_mistakes_get_a_sentence(run, arguments: tuple[str, ...], words: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2
    assert words in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("picture", "words"),
    [("bad.xyz", "is not supported"), ("nowhere/bad.png", "No such file"), ("folder.png", "Is a directory")],
)
def test_a_picture_that_cannot_be_written_leaves_the_report(run, tmp_path, picture: str, words: str) -> None:
    (tmp_path / "folder.png").mkdir()
    found = run("my_losses.py:Squares", "-b", "my_losses.py:batch", "--plot", picture)
    assert found.exit_code == 2
    assert "One gradient step on the outputs solves it" in found.output
    assert words in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("refuses", "other outputs than yours (measuring: descent): ValueError: costs out of range (my_losses.py"),
        ("fails_in_backward", "ZeroDivisionError: division by zero (my_losses.py"),
    ],
)
def test_an_error_inside_the_loss_is_a_sentence(run, name: str, words: str) -> None:
    """Also one that the given outputs do not show."""
    found = run(f"my_losses.py:{name}", "-b", "my_losses.py:batch")
    assert found.exit_code == 2, found.output
    assert words in " ".join(found.output.split())
    assert "Traceback" not in found.output


def test_what_takes_long_shows_its_progress(run, monkeypatch) -> None:
    monkeypatch.setattr("newton_losses_bench.cli._diagnose.Progress.PATIENCE", 0.0)
    found = run("my_losses.py:Squares", "-b", "my_losses.py:batch")
    stages = [line for line in found.stderr.splitlines() if line.startswith("measuring: ")]
    assert any("first derivative" in line for line in stages)
    assert "calls of the loss" in stages[-1]
    assert "measuring" not in found.stdout
    assert "measuring" not in run("my_losses.py:Squares", "-b", "my_losses.py:batch", "--json").stderr


def test_a_single_call_that_takes_long_shows_its_progress(run, monkeypatch) -> None:
    """Before it is over: nothing may follow it for as long again."""
    monkeypatch.setattr("newton_losses_bench.cli._diagnose.Progress.PATIENCE", 0.1)
    found = run("my_losses.py:slow_once", "-b", "my_losses.py:batch")
    assert found.exit_code == 0, found.output
    assert "measuring: the loss itself, 0 calls of the loss" in found.stderr


def test_json_has_no_word_for_what_is_no_number(run) -> None:
    found = run("my_losses.py:Squares", "-b", "my_losses.py:bad_batch", "--json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(found.stdout, parse_constant=refuse)["gradients"]["nonfinite"] == 0.05
