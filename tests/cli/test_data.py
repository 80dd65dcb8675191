"""`newton-losses data` and `newton-losses info`."""

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from cli.running import command, in_one_line
from newton_losses_bench.machine import EXTRAS


def test_data_is_listed_made_and_checked(tmp_path):
    root = ["--root", str(tmp_path)]
    assert json.loads(command("data", "list", "--json", *root)[1])["terrain"]["state"] == "not here"
    code, text = command("data", "make", "terrain", "--train", "6", "--test", "3", *root)
    assert code == 0
    assert "12 maps of 12×12" in text
    assert command("data", "check", "terrain", *root)[1].startswith("terrain: in order, 6 for training")
    assert "available (6 training maps" in command("data", "list", *root)[1]
    assert "digits: in order" in command("data", "check", "digits", *root)[1]
    code, text = command("data", "check", "warcraft", *root)
    assert code == 2
    assert "10.17617/3.YJCQ5S" in text


def test_info_tells_versions():
    import torch

    assert f"torch          {torch.__version__}" in command("info")[1]
    told = json.loads(command("info", "--json")[1])
    assert told["torch"] == torch.__version__
    assert set(told["data"]) == {"digits", "glyphs", "mnist", "terrain", "warcraft"}


def test_info_says_what_a_missing_extra_would_add(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("ray", "numba") else found(name))
    text = in_one_line(command("info")[1])
    assert "extra ray missing ray; it adds sweeps on a cluster (--ray): pip install 'newton-losses[ray]'" in text
    assert "extra numba missing numba" in text


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extra, (modules, _) in EXTRAS.items():
        wanted = {
            re.split(r"[><=]", name)[0].replace("scikit-learn", "sklearn")
            for name in project["optional-dependencies"][extra]
        }
        assert set(modules) == wanted


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
