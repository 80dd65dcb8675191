"""The examples run, in less than 100 lines each. Here with a few steps; what they reach is printed when run in full."""

import runpy
import sys
import warnings
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"

SHORT = {
    "quickstart": ("--steps", "2", "--seeds", "1"),
    "black_box_solver": (),
    "third_party_loss": ("--steps", "2"),
    "learning_to_rank": ("--steps", "2", "--seeds", "1"),
    "lightning_module": ("--epochs", "1", "--sets", "100"),
    "convex_layers": ("--steps", "1", "--samples", "5"),
    "graded_lists": ("--steps", "2", "--seeds", "1"),
    "survival": ("--steps", "2", "--seeds", "1"),
}
NEEDS = {
    "black_box_solver": ("scipy",),
    "third_party_loss": ("diffsort",),
    "learning_to_rank": ("sklearn",),
    "lightning_module": ("lightning",),
    "convex_layers": ("cvxpylayers",),
    "graded_lists": ("lightgbm", "recbole"),
    "survival": ("sksurv",),
}


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, object]:
    path = EXAMPLES / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    dtype = torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other packages' own
            for package in NEEDS.get(name, ()):
                pytest.importorskip(package, reason=f"examples/{name}.py needs {package}, which is not installed.")
            return runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_default_dtype(dtype)


def test_all_are_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 100


@pytest.mark.parametrize("name", SHORT)
def test_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(name, monkeypatch, *SHORT[name])
    assert capsys.readouterr().out


def test_the_third_party_loss_is_found_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("third_party_loss", monkeypatch, "--steps", "0")
    printed = " ".join(capsys.readouterr().out.split())
    assert "The numerics are broken" in printed
    assert printed.count("first derivative wrong") == printed.count("second derivative wrong") == 1
    assert printed.count("first derivative right") == printed.count("second derivative right") == 1


@pytest.fixture(scope="module")
def black_box_solver():
    pytest.importorskip("scipy")
    return runpy.run_path(str(EXAMPLES / "black_box_solver.py"))


def test_the_black_box_returns_permutations_no_dearer_than_any_other(black_box_solver):
    costs = torch.rand(20, 6, 6, generator=torch.Generator().manual_seed(0))
    matchings = black_box_solver["cheapest_matching"](costs)
    assert torch.equal(matchings.sum(1), torch.ones(20, 6))
    assert torch.equal(matchings.sum(2), torch.ones(20, 6))
    for shift in range(6):
        other = torch.eye(6).roll(shift, 0)
        assert ((costs * matchings).sum((1, 2)) <= (costs * other).sum((1, 2)) + 1e-6).all()


@pytest.mark.parametrize("newton", [False, True])
def test_the_black_box_example_learns(black_box_solver, newton):
    assert black_box_solver["train"](newton, steps=0) < 0.1
    assert black_box_solver["train"](newton, steps=30) > 0.6
