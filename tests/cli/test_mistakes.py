"""Mistakes at the command line: one sentence that says what to do instead, and nothing is left behind."""

import pytest
import torch

from cli.running import command as run_command
from cli.running import in_one_line

TINY = ("--data", "digits", "--digits", "1", "--steps", "2", "--eval-every", "2", "--batch-size", "4", "--device=cpu")
SWEEP = ("sweep", "sorting", "--algorithm", "softsort", "--n", "3", "--validation-sets", "5", "--test-sets", "5", *TINY)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def command(*words):
    """The exit code and what was printed, in one line."""
    code, text = run_command(*words)
    return code, in_one_line(text)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("train", "sorting", *TINY, "--seed", "-1"), "--seed -1: expected at least 0."),
        (("train", "sorting", *TINY, "--digits", "30"), "--digits 30: expected at most 18."),
        (("train", "sorting", *TINY, "--seed", "3", "--seeds", "0,1"), "--seed 3 and --seeds 0,1: give one of them."),
        (("train", "sorting", *TINY, "--seeds", "3-1"), "--seeds 3-1: a range goes from the smaller to the larger"),
        (("train", "sorting", *TINY, "--seeds", "2,2"), "--seeds 2,2: name each seed only once."),
        (("train", "sorting", *TINY, "--seeds", "0,x"), "--seeds 0,x: give how many, as in 3, or name them"),
        (("train", "sorting", "-a", "softsrot"), "--algorithm softsrot: did you mean softsort?"),
        (("train", "sorting", "-c", "fisher", "--damping", "0"), "--damping 0.0: expected a positive number"),
        (("train", "paths", "-a", "smoothed-algorithm", "-c", "hessian"), "There is no Hessian for smoothing of an"),
        (("train", "sorting", "--steps", "many"), "--steps many: expected a whole number."),
        (("train", "sorting", "--device", "tpu"), "--device tpu: did you mean cpu? Expected one of auto, cpu, cuda."),
        (("train", "sorting", "--damping", "abc"), "--damping abc: expected a positive number, running (or auto)"),
        (("train", "sorting", "--damping", "1"), "--damping is the damping of a curvature, and this run is a baseline"),
        ((*SWEEP, "--n", "5,,10"), "--n 5,,10: a value between commas is empty."),
        ((*SWEEP, "--algorithm", "softsort,"), "--algorithm softsort,: a value between commas is empty."),
        ((*SWEEP, "--seeds", "0"), "--seeds 0: this is how many, at least 1. For the seed 0 give --seed."),
        (("data", "check", "mnits"), "data set mnits: did you mean mnist?"),
        (("data", "fetch", "terrain"), "terrain is generated, not downloaded: newton-losses data make terrain"),
        (("data", "make", "mnist"), "mnist is real data and cannot be generated. Try: newton-losses data fetch mnist"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered(words, answer, tmp_path):
    code, text = command(*words)
    assert code == 2
    assert text.startswith(f"error: {answer}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("trian",), "Did you mean 'train'"),
        (("train", "srting"), "Did you mean 'sorting'"),
        (("train", "sorting", "--algoritm", "x"), "--algorithm"),
        (("train", "sorting", "--at-once", "2"), "No such option: --at-once"),
    ],
)
def test_a_misspelling_is_answered_with_what_there_is(words, answer):
    code, text = command(*words)
    assert code == 2
    assert answer in text


@pytest.mark.parametrize("words", [("train", "sorting", *TINY, "--out"), (*SWEEP, "--results")])
def test_a_file_in_the_place_of_the_folder(words, tmp_path):
    (tmp_path / "letter").write_text("hello")
    code, text = command(*words, "letter")
    assert code == 2
    assert text.startswith("error: letter: could not be written (")
    assert "is a file. Choose another folder" in text
    assert (tmp_path / "letter").read_text() == "hello"


def test_a_store_that_cannot_be_written_is_reported_once(tmp_path, monkeypatch):
    """Not by each of its runs, twice."""
    (tmp_path / "letter").write_text("hello")
    code, text = command(*SWEEP, "--seeds", "5", "--results", "letter/store")
    assert code == 2
    assert text.startswith("error: letter/store: could not be written (Not a directory).")
    assert text.count("could not be written") == 1


def test_data_that_is_not_there_is_fetched_to_where_it_was_looked_for(monkeypatch):
    code, text = command("train", "sorting", "--data-root", "my data")
    assert code == 2
    assert "`newton-losses data fetch mnist --root 'my data'`" in text
    monkeypatch.setenv("NEWTON_LOSSES_DATA", "elsewhere")
    code, text = command("train", "sorting")
    assert code == 2
    assert "`newton-losses data fetch mnist`" in text


def test_the_folder_of_the_data_goes_by_the_name_that_it_has_in_training():
    code, text = command("data", "list", "--data-root", "my data")
    assert code == 0
    assert text.startswith("in my data")


def test_a_report_on_an_empty_store_says_so(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    code, text = command("report", "--results", "store")
    assert code == 0
    assert "store holds no finished run; every cell will be marked" in text


def test_a_report_finds_out_at_once_that_it_cannot_be_written(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "letter").write_text("hello")
    code, text = command("report", "--results", "store", "--out", "letter")
    assert code == 2
    assert text.startswith("error: letter: could not be written (File exists).")


# The report on a loss of one's own

LOSS = """
import torch
def loss(y, t): return ((y - t) ** 2).sum(1)
def batch(): return torch.ones(4, 3), torch.zeros(4, 3)
def alone(y): return y.square().sum(1)
def broken(y, t):
    return torch.cat([y, t[:, :2]]).sum(1)
def no_batch(): return {}["batch"]
def no_tensors(): return [4, 3], [0, 0]
class Needy(torch.nn.Module):
    def __init__(self, weight): super().__init__()
class Broken(torch.nn.Module):
    def forward(self, y, t): return broken(y, t)
class Own:
    def expand(self, y, t, curvature): return {}["own"]
def silent(y, t): raise ValueError
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "own.py").write_text(LOSS)
    (tmp_path / "broken.py").write_text("def loss(:")
    (tmp_path / "lost.py").write_text("import no_such_module_anywhere")
    (tmp_path / "early.py").write_text("import torch\n1 / 0")
    (tmp_path / "bad.pt").write_text("garbage")
    torch.save((torch.ones(4, 3), torch.zeros(4, 3)), tmp_path / "good.pt")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("broken.py:loss", "-b", "good.pt"), "broken.py:loss: SyntaxError: invalid syntax (broken.py, line 1)."),
        (("lost.py:loss", "-b", "good.pt"), "lost.py:loss: ModuleNotFoundError: No module named 'no_such"),
        (("early.py:loss", "-b", "good.pt"), "early.py:loss: ZeroDivisionError: division by zero (early.py, line 2)."),
        (("early:loss", "-b", "good.pt"), "early:loss: ZeroDivisionError: division by zero (early.py, line 2)."),
        (("own.py:alone", "-b", "good.pt"), "The loss alone(y) was called with the outputs and 1 target: too many"),
        (("own.py:broken", "-b", "good.pt"), "own.py:broken, called with outputs of shape (4, 3) and 1 target"),
        (("own.py:Broken", "-b", "good.pt"), "own.py:Broken, called with outputs of shape (4, 3) and 1 target"),
        (
            ("own.py:Own", "-b", "good.pt"),
            "own.py:Own, called with outputs of shape (4, 3) and 1 target: KeyError: 'own'",
        ),
        (
            ("own.py:silent", "-b", "good.pt"),
            "own.py:silent, called with outputs of shape (4, 3) and 1 target: ValueError (own.py, line 16).",
        ),
        (("own.py:Needy", "-b", "good.pt"), "own.py:Needy, a class, made without arguments: TypeError: Needy."),
        (("own.py:los", "-b", "good.pt"), "loss own.py:los: own.py has no los. Did you mean loss?"),
        (("own.py:loss", "-b", "own.py:no_batch"), "own.py:no_batch: KeyError: 'batch' (own.py, line 8)."),
        (("own.py:loss", "-b", "own.py:no_tensors"), "The outputs have to be a tensor"),
        (("own.py:loss", "-b", "bad.pt"), "--batch bad.pt: torch.load cannot read it"),
        (("own.py:loss", "-b", "own.py"), "--batch own.py: torch.load cannot read it"),
    ],
)  # fmt: skip
def test_a_diagnosis_that_cannot_begin(words, answer, files):
    code, text = command("diagnose", *words)
    assert code == 2
    assert text.startswith(f"error: {answer}")


@pytest.mark.parametrize("name", ["broken", "Broken"])
def test_a_loss_that_fails_says_in_which_line_of_the_user(name, files):
    code, text = command("diagnose", f"own.py:{name}", "-b", "good.pt")
    assert code == 2
    assert "Sizes of tensors must match" in text
    assert text.endswith("(own.py, line 7).")


def test_a_bug_of_ours_is_a_sentence_too(files, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("newton_losses_bench.cli._diagnose.make_report", broken)
    code, text = command("diagnose", "own.py:loss", "-b", "good.pt")
    assert code == 1
    assert text.startswith("error: unexpected ZeroDivisionError: oops (")
    assert "Traceback" not in text
