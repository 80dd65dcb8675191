"""The paper's experiment with convex layers: it trains, resumes, and shows what the paper shows."""

import shutil

import pytest

from newton_losses_bench.cells import cells
from newton_losses_bench.config import ConvexConfig
from newton_losses_bench.store import Store
from newton_losses_bench.train import make_task, run


@pytest.mark.parametrize("cell", cells("cvxpy"), ids=lambda cell: cell.key)
def test_convex_layers_take_their_first_steps(cell, tmp_path):
    result = run(cell.make(steps=2, batch_size=10, algorithm="relu-exact"), str(tmp_path))
    assert 0 < result["test"]["loss"] < 10


@pytest.mark.filterwarnings("ignore")  # the solver's packages warn about each other
def test_the_solver_is_near_the_known_solution(tmp_path):
    """Before the first step. Then they part: at a kink the derivative of an inexact solution is that of both sides."""
    cell = cells("cvxpy", only="relu-fisher")[0]
    configs = [cell.make(batch_size=4, algorithm=algorithm) for algorithm in ("relu", "relu-exact")]
    losses = [make_task(config).evaluate()["test"]["loss"] for config in configs]
    # The solver's own tolerance is 1e-4.
    assert losses[0] == pytest.approx(losses[1], rel=3e-4)


@pytest.mark.parametrize("settings", [{"damping": "auto:3"}, {"relative_damping": 3.0}])
def test_convex_layers_take_every_kind_of_damping(settings, tmp_path):
    small = {"algorithm": "relu-exact", "steps": 3, "batch_size": 8}
    plain = run(ConvexConfig(**small), str(tmp_path / "plain"))
    damped = run(ConvexConfig(**small, curvature="fisher", **settings), str(tmp_path / "damped"))
    assert damped["test"]["loss"] != plain["test"]["loss"]


@pytest.mark.slow
def test_the_fisher_leads_on_every_seed(tmp_path):
    """In the paper on 5 of 5, from the same weights and on the same data."""
    for seed in range(5):
        for curvature in ("none", "fisher"):
            config = ConvexConfig(algorithm="relu-exact", curvature=curvature, seed=seed)
            run(config, str(tmp_path / f"{curvature}-{seed}"))
        curves = {one.configuration["curvature"]: one.curve for one in Store(tmp_path).records() if one.seed == seed}
        assert curves["fisher"][-1]["test"]["loss"] < curves["none"][-1]["test"]["loss"]


def test_convex_layers_go_on_where_they_were(tmp_path):
    config = ConvexConfig(algorithm="relu-exact", curvature="fisher", steps=7, eval_every=3, batch_size=20)
    whole = run(config, str(tmp_path / "whole"))
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    (tmp_path / "parts" / "result.json").unlink()
    shutil.move(tmp_path / "parts" / "checkpoint.previous.pt", tmp_path / "parts" / "checkpoint.pt")
    parts = run(config, str(tmp_path / "parts"))
    assert parts["final"] == whole["final"]
    assert [record["step"] for record in Store(tmp_path).records()[0].curve] == [3, 6, 7]
