"""What `benchmarks/digit_layer_limits.py`, which needs a GPU, leaves out of the kernels is still in their sources."""

import importlib
import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def limits(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("digit_layer_limits")


def kernels_of(program):
    """The sources of a program, by kernel; before the first one are the functions that all may call."""
    begin, *rest = re.split(r'extern "C" __global__ void [^\n]*\n(\w+)\(', program)
    return {"": begin, **dict(zip(rest[::2], rest[1::2], strict=True))}


def test_every_change_finds_its_place(limits):
    before = kernels_of(limits.PROGRAM)
    assert {variant.kernel for variant in limits.VARIANTS} == {name for name in before if name and "sum" not in name}
    for variant in limits.VARIANTS:
        after = kernels_of(limits.source(variant))
        changed = {name for name, text in after.items() if text != before[name]}
        assert changed <= {"", variant.kernel}
        assert bool(changed) == bool(variant.changes)


def test_a_change_that_finds_no_place_says_so(limits):
    variant = limits.Variant("first_layer_forward", "no words", (("words", ""),))
    with pytest.raises(ValueError, match=r"first_layer_forward, no words: .* 0 times .* instead of once(.|\n)*words"):
        limits.source(variant, "nothing here")
    with pytest.raises(ValueError, match="2 times"):
        limits.source(variant, "words and words")


def test_no_gpu_is_said(limits, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["digit_layer_limits.py"])
    with pytest.raises(SystemExit):
        limits.main()
    assert "there is no Hopper GPU here" in capsys.readouterr().err
