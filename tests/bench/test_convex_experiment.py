"""The paper's experiment with convex layers: it trains, resumes, and shows what the paper shows."""

import json
import shutil

import pytest

from newton_losses_bench.cells import cells
from newton_losses_bench.config import ConvexConfig
from newton_losses_bench.convex_experiment import run_convex
from newton_losses_bench.machine import Interrupted, StopRequests
from newton_losses_bench.store import Store


@pytest.mark.parametrize("cell", cells("cvxpy"), ids=lambda cell: cell.key)
def test_convex_layers_take_their_first_steps(cell, tmp_path):
    result = run_convex(cell.make(steps=2, batch_size=10, algorithm="relu-exact"), str(tmp_path))
    assert 0 < result["test"]["loss"] < 10


@pytest.mark.filterwarnings("ignore")  # the solver's packages warn about each other
def test_the_solver_is_near_the_known_solution(tmp_path):
    """Before the first step. Then they part: at a kink the derivative of an inexact solution is that of both sides."""
    cell = cells("cvxpy", only="relu-fisher")[0]
    losses = []
    for algorithm in ("relu", "relu-exact"):
        folder = tmp_path / algorithm
        run_convex(cell.make(steps=1, batch_size=4, algorithm=algorithm), str(folder))
        first = (folder / "evaluations.jsonl").read_text().splitlines()[0]
        losses.append(json.loads(first)["test"]["loss"])
    # The solver's own tolerance is 1e-4.
    assert losses[0] == pytest.approx(losses[1], rel=3e-4)


@pytest.mark.parametrize("settings", [{"damping": "auto:3"}, {"relative_damping": 3.0}])
def test_convex_layers_take_every_kind_of_damping(settings, tmp_path):
    small = {"algorithm": "relu-exact", "steps": 3, "batch_size": 8}
    plain = run_convex(ConvexConfig(**small), str(tmp_path / "plain"))
    damped = run_convex(ConvexConfig(**small, curvature="fisher", **settings), str(tmp_path / "damped"))
    assert damped["test"]["loss"] != plain["test"]["loss"]


@pytest.mark.slow
def test_the_fisher_leads_on_every_seed(tmp_path):
    """In the paper on 5 of 5, from the same weights and on the same data."""
    for seed in range(5):
        for curvature in ("none", "fisher"):
            config = ConvexConfig(algorithm="relu-exact", curvature=curvature, seed=seed)
            run_convex(config, str(tmp_path / f"{curvature}-{seed}"))
        curves = {one.curvature: one.curve for one in Store(tmp_path).records() if one.seed == seed}
        assert curves["fisher"][0]["loss"] == curves["none"][0]["loss"]
        assert curves["fisher"][-1]["loss"] < curves["none"][-1]["loss"]


def test_convex_layers_go_on_where_they_were(tmp_path):
    config = ConvexConfig(algorithm="relu-exact", curvature="fisher", steps=7, eval_every=3, batch_size=20)
    whole = run_convex(config, str(tmp_path / "whole"))
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    (tmp_path / "parts" / "result.json").unlink()
    shutil.move(tmp_path / "parts" / "checkpoint.previous.pt", tmp_path / "parts" / "checkpoint.pt")
    parts = run_convex(config, str(tmp_path / "parts"))
    assert parts["final"] == whole["final"]
    assert [record["step"] for record in Store(tmp_path).records()[0].curve] == [0, 3, 6, 7]


def test_convex_layers_save_when_they_are_stopped(tmp_path, monkeypatch):
    config = ConvexConfig(algorithm="relu-exact", steps=7, eval_every=3, batch_size=20)
    whole = run_convex(config, str(tmp_path / "whole"))
    calls = iter([None, None, None, None, *[15] * 9])
    monkeypatch.setattr(StopRequests, "requested", property(lambda self: next(calls)))
    with pytest.raises(Interrupted) as stopped:
        run_convex(config, str(tmp_path / "parts"))
    assert stopped.value.step in (1, 2)  # between two evaluations
    monkeypatch.setattr(StopRequests, "requested", None)
    assert run_convex(config, str(tmp_path / "parts"))["final"] == whole["final"]
