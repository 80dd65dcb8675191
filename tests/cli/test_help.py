"""`--help`, `--version` and completion: what somebody sees who knows nothing else, and how soon."""

import json
import os
import re
import subprocess
import sys

import pytest

import newton_losses
from cli.running import command, in_one_line
from newton_losses_bench.cli.app import COMMANDS, load_command
from newton_losses_bench.config import PathsConfig, SortingConfig
from newton_losses_bench.settings import settings

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def commands():
    """All commands that do something, by the words that call them."""
    for name in COMMANDS:
        found = load_command(name)
        if hasattr(found, "commands"):
            yield from (((name, below), one) for below, one in found.commands.items())
        else:
            yield (name,), found


ALL = dict(commands())


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["trian"]])
def test_the_first_answer_needs_neither_torch_nor_numpy(words):
    program = "import sys, json; sys.argv[1:] = json.loads(sys.argv[1])\nfrom newton_losses_bench.cli import main\n"
    program += "try: main()\nfinally: print(json.dumps(list(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(words)], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert "typer" in loaded
    assert not loaded & {"torch", "numpy", "newton_losses", "matplotlib", "scipy"}
    said = done.stdout + done.stderr
    assert {"--version": "0.", "trian": "Did you mean 'train'"}.get(words[0] if words else "", "demo") in said


def test_commands_import_only_what_they_need():
    program = "import json, sys, newton_losses_bench.cli._train; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert not set(json.loads(done.stdout)) & {"torch._dynamo", "sympy", "scipy", "sklearn", "matplotlib", "numba"}


def test_the_version():
    assert command("--version") == (0, f"newton-losses {newton_losses.__version__}\n")


@pytest.mark.parametrize("words", [(), ("train",), ("sweep",), ("reproduce",), ("data",), *ALL])
def test_help_is_plain(words):
    code, text = command(*words, "--help")
    assert code == 0
    assert "Usage" in text
    assert not re.search(r"<(bool|str|int|float|path)>|\[\[", text)


def test_every_command_says_in_one_line_what_it_does():
    listed = in_one_line(command("--help")[1])
    assert all(f"{name} {text}" in listed for name, (_, _, text) in COMMANDS.items())


@pytest.mark.parametrize(("kind", "config"), [("sorting", SortingConfig), ("paths", PathsConfig)])
@pytest.mark.parametrize("name", ["train", "sweep"])
def test_every_setting_has_an_option_with_its_choices(name, kind, config):
    text = in_one_line(command(name, kind, "--help")[1])
    not_swept = ("device", "graph", "kernels") if name == "sweep" else ()
    for one in settings(config):
        if one.name in ("drops", "seed", *not_swept):
            continue
        assert f" {one.option} " in text
        assert all(choice in text for choice in one.choices)


def test_the_options_that_matter_come_first():
    lines = command("train", "sorting", "--help")[1].splitlines()
    options = [line.split()[1] for line in lines if line.startswith("│ --")]
    assert options[:7] == ["--algorithm", "--curvature", "--damping", "--n", "--steps", "--data", "--seed"]
    topics = [line.split("─")[1].strip() for line in lines if line.startswith("╭")]
    assert topics == ["Options", "The experiment", "Curvature", "Training", "Data", "Computing", "Output"]


def test_tables_have_only_options_that_they_take():
    assert "--steps" in command("reproduce", "table1", "--help")[1]
    assert "--epochs" not in command("reproduce", "table1", "--help")[1]
    assert "--epochs" in command("reproduce", "table2", "--help")[1]
    assert "--steps" not in command("reproduce", "runtimes", "--help")[1]


def test_a_letter_means_the_same_in_all_commands():
    meanings = {}
    for one in ALL.values():
        for parameter in one.params:
            letters = [word for word in parameter.opts if len(word) == 2 and word.startswith("-")]
            longs = [word for word in parameter.opts if word.startswith("--")]
            for letter in letters:
                meanings.setdefault(letter, set()).add(longs[0])
    assert all(len(names) == 1 for names in meanings.values()), meanings
    assert meanings["-r"] == {"--results"}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("newton-losses re", ["reproduce", "report"]),
        ("newton-losses reproduce tab", ["table1", "table2", "table3"]),
        ("newton-losses train sorting --curv", ["--curvature"]),
        ("newton-losses sweep sorting --curvature none,f", ["none,fisher"]),
        pytest.param("newton-losses train so", ["sorting"], marks=pytest.mark.slow),
        pytest.param("newton-losses reproduce list tab", ["table1", "table2", "table3"], marks=pytest.mark.slow),
        pytest.param("newton-losses data fetch m", ["mnist"], marks=pytest.mark.slow),
        pytest.param("newton-losses train sorting --algorithm s", ["softsort"], marks=pytest.mark.slow),
    ],
)
def test_completion(typed, offered):
    environment = {**ENVIRONMENT, "_NEWTON_LOSSES_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    environment["COMP_CWORD"] = str(len(typed.split()) - 1)
    done = subprocess.run(
        [sys.executable, "-m", "newton_losses_bench"], env=environment, capture_output=True, text=True, check=False
    )
    assert sorted(done.stdout.split()) == sorted(offered), done.stderr
