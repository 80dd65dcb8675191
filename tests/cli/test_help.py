"""What `--help` says is all that somebody needs who has nothing else."""

import pytest
from typer.testing import CliRunner

from newton_losses_bench.cli._app import app


def text_of(*words):
    done = CliRunner().invoke(app, [*words, "--help"], prog_name="newton-losses", terminal_width=200)
    assert done.exit_code == 0
    return " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize("words", [(), ("train",), ("sweep",), ("data",)])
def test_a_list_of_commands_ends_no_line_with_the_beginning_of_an_example(words):
    assert "For example" not in text_of(*words)


@pytest.mark.parametrize("task", ["sorting", "paths"])
def test_a_sweep_says_what_differs_from_train(task):
    text = text_of("sweep", task)
    assert "--algorithm has to be given" in text
    assert "--compile true" in text
    assert "Ctrl-C saves, and the same command goes on." in text
    assert "3, for the seed 3 alone" in text


@pytest.mark.parametrize("task", ["sorting", "paths"])
def test_train_names_all_kinds_of_damping_and_how_to_go_on(task):
    text = text_of("train", task)
    assert "auto:FACTOR" in text
    assert "Ctrl-C saves, and the same command goes on." in text


def test_train_does_not_call_its_own_choices_the_paper_s():
    assert "but for --numerics and the generated maps" in text_of("train")


def test_reproduce_says_what_it_needs_and_leaves_behind():
    text = text_of("reproduce")
    for what in (
        "Other data than mnist for sorting, which can be digits, and terrain for paths, which can be warcraft",
        "a clipped gradient norm, and a division by the energy of the gradients",
        "cvxpy needs the extra 'cvxpy'",
        "gradients draws pictures",
        "Ctrl-C saves, and the same command goes on.",
    ):
        assert what in text
