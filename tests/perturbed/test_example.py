"""The worked example with somebody else's solver runs, learns, and its solver solves."""

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "black_box_solver.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def test_the_solver_returns_permutations_no_dearer_than_any_other(example):
    costs = torch.rand(20, 6, 6, generator=torch.Generator().manual_seed(0))
    matchings = example["cheapest_matching"](costs)
    assert torch.equal(matchings.sum(1), torch.ones(20, 6))
    assert torch.equal(matchings.sum(2), torch.ones(20, 6))
    for shift in range(6):
        other = torch.eye(6).roll(shift, 0)
        assert ((costs * matchings).sum((1, 2)) <= (costs * other).sum((1, 2)) + 1e-6).all()


@pytest.mark.parametrize("newton", [False, True])
def test_the_example_learns(example, newton):
    assert example["train"](newton, steps=0) < 0.1
    assert example["train"](newton, steps=30) > 0.6
