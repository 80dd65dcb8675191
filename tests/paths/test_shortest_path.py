"""Shortest paths are right: against scipy, against enumeration, and at the edges of what costs can be."""

import os
import subprocess
import sys

import numpy as np
import path_maps
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from newton_losses.errors import ArgumentError, ShapeError
from newton_losses.paths import RelaxedBellmanFord, _dispatch, path_cost, shortest_path, solve

INFINITY = float("inf")
BACKENDS = ("torch", "numba")
SHAPES = (
    (2, 2),
    (2, 5),
    (5, 2),
    (1, 7),
    (3, 3),
    (7, 4),
    (12, 12),
    (10, 17),
    (33, 6),
    (24, 24),
    (64, 9),
    (64, 64),
)


def check_against_scipy(seed: int, per_case: int) -> int:
    """Solve `per_case` maps per kind, shape and number of neighbours; returns how many maps that were."""
    checked = 0
    for kind in path_maps.KINDS:
        for height, width in SHAPES:
            for neighbors in (4, 8):
                costs = path_maps.make_maps(kind, per_case, height, width, seed)
                # Every other case runs from the top right to somewhere below, or round a corner.
                start, goal = (0, 0), (height - 1, width - 1)
                if neighbors == 4 and kind != "snake":
                    start, goal = (0, width - 1), (height - 1, width // 3)
                best = solve(costs, neighbors, start, goal)
                for index in range(per_case):
                    expected = path_maps.scipy_cost(costs[index].numpy(), neighbors, start, goal)
                    # The same sums in the same order: equal to the last bit.
                    assert best.cost[index].item() == expected, (kind, height, width, neighbors, index)
                    path = best.path[index].numpy()
                    if np.isinf(expected):
                        assert not path.any()
                        assert not best.reachable[index]
                    else:
                        assert path_maps.is_valid_path(path, neighbors, start, goal), (kind, height, width)
                        assert best.reachable[index]
                torch.testing.assert_close(
                    path_cost(costs.double(), best.path.double())[best.reachable],
                    best.cost[best.reachable],
                    rtol=1e-14,
                    atol=0.0,
                )
                checked += per_case
    return checked


def test_costs_equal_scipys_and_paths_are_chains():
    assert check_against_scipy(seed=1, per_case=8) == 1536


@pytest.mark.slow
def test_costs_equal_scipys_on_ten_thousand_maps():
    assert check_against_scipy(seed=2, per_case=53) >= 10_000


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("neighbors", [4, 8])
@pytest.mark.parametrize("kind", path_maps.KINDS)
def test_path_follows_the_rule_for_ties(kind, neighbors, backend):
    for (height, width), start, goal in [
        ((3, 4), (0, 0), (2, 3)),
        ((6, 5), (5, 0), (0, 2)),
        ((9, 9), (4, 4), (4, 4)),
        ((8, 8), (0, 0), (7, 7)),
    ]:
        costs = path_maps.make_maps(kind, 12, height, width, seed=3)
        best = solve(costs, neighbors, start, goal, backend=backend)
        for index in range(12):
            route, cost, unique = path_maps.reference(costs[index].numpy(), neighbors, start, goal)
            expected = torch.zeros(height, width)
            for v in route:
                expected[v] = 1.0
            assert torch.equal(best.path[index], expected)
            assert best.cost[index].item() == cost
            assert best.unique[index].item() == unique


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("neighbors", [4, 8])
def test_unique_and_cheapest_among_all_simple_paths(neighbors, backend):
    everything = path_maps.simple_paths(3, 3, neighbors, (2, 2))
    # Whole numbers above 0: sums are exact, and a tight predecessor is always another path.
    costs = 1.0 + path_maps.make_maps("integer", 200, 3, 3, seed=4)
    best = solve(costs, neighbors, backend=backend)
    for grid, path, cost, unique in zip(costs, *best[:3], strict=True):
        totals = [sum(grid[v].item() for v in route) for route in everything]
        optimal = [route for route, total in zip(everything, totals, strict=True) if total == min(totals)]
        assert cost.item() == min(totals)
        assert unique.item() == (len(optimal) == 1)
        assert path.sum().item() == min(len(route) for route in optimal)
    assert 20 < best.unique.sum() < 180


@pytest.mark.parametrize("backend", BACKENDS)
def test_back_ends_agree_to_the_bit(backend):
    for kind in path_maps.KINDS:
        for neighbors in (4, 8):
            for shape in ((1, 1), (2, 3), (12, 12), (9, 23)):
                costs = path_maps.make_maps(kind, 20, *shape, seed=5)
                costs[3, -1, 0] = float("nan")
                expected = solve(costs, neighbors, strict=False, backend="torch")
                best = solve(costs, neighbors, strict=False, backend=backend)
                assert torch.equal(best.cost.view(torch.int64), expected.cost.view(torch.int64))
                for name in ("path", "unique", "reachable"):
                    assert torch.equal(getattr(best, name), getattr(expected, name)), (kind, shape, name)


def test_ties_at_the_distance_of_the_goal_itself():
    # Mazes of free vertices: ways of no cost lead to the goal after it has been reached, and count as ties.
    uniform = path_maps.make_maps("uniform", 2000, 9, 9, seed=12)
    costs = torch.where(uniform < 0.4, INFINITY, torch.where(uniform < 0.9, 0.0, 1.0))
    costs[:, 0, 0] = costs[:, 8, 8] = 0.0
    for neighbors in (4, 8):
        expected, best = (solve(costs, neighbors, backend=backend) for backend in BACKENDS)
        assert all(torch.equal(a, b) for a, b in zip(best, expected, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
class TestEdges:
    def test_zero_costs_take_the_fewest_vertices(self, backend):
        best = solve(torch.zeros(5, 8), backend=backend)
        assert best.path.sum() == 8
        assert best.cost == 0
        assert not best.unique

    def test_costs_lost_in_rounding_do_not_trap_the_way_back(self, backend):
        # After 1e30 every step is absorbed: all distances are equal, and every edge is tight both ways.
        costs = torch.full((9, 9), 1e-30)
        costs[0, 0] = 1e30
        best = solve(costs, backend=backend)
        assert best.path.diagonal().sum() == best.path.sum() == 9

    def test_negative_costs_count_as_zero(self, backend):
        costs = path_maps.make_maps("clamped", 10, 6, 6, seed=6)
        costs[0, 2, 2] = -INFINITY
        best, clamped = solve(costs, backend=backend), solve(costs.clamp(min=0), backend=backend)
        assert all(torch.equal(a, b) for a, b in zip(best, clamped, strict=True))
        assert not torch.signbit(solve(torch.full((2, 2), -0.0), backend=backend).cost)

    def test_walls_leave_a_flagged_map_and_no_other_changes(self, backend):
        costs = torch.ones(3, 4, 4)
        costs[1, 2] = INFINITY
        best = solve(costs, backend=backend)
        assert best.reachable.tolist() == [True, False, True]
        assert best.cost.tolist() == [4.0, INFINITY, 4.0]
        assert best.path.sum((1, 2)).tolist() == [4.0, 0.0, 4.0]
        with pytest.raises(ArgumentError, match=r"in map \(1,\) of the batch"):
            solve(costs, backend=backend, strict=True)

    @pytest.mark.parametrize("end", [(0, 0), (3, 3)])
    def test_walled_in_ends_are_unreachable(self, backend, end):
        costs = torch.ones(4, 4)
        costs[end] = INFINITY
        assert not solve(costs, backend=backend).reachable

    def test_nan_is_an_error_with_its_place_or_a_flag(self, backend):
        costs = torch.ones(2, 3, 4, 5)
        costs[1, 2, 3, 0] = float("nan")
        with pytest.raises(ArgumentError, match=r"NaN at \(1, 2, 3, 0\)"):
            shortest_path(costs, backend=backend)
        best = solve(costs, backend=backend, strict=False)
        assert best.reachable.sum() == 5
        assert best.cost[1, 2].isnan()
        assert best.path[1, 2].sum() == 0

    def test_any_leading_shape_and_memory_layout(self, backend):
        costs = path_maps.make_maps("uniform", 6, 5, 7, seed=7)
        expected = solve(costs, backend=backend)
        for view in (costs.view(2, 3, 5, 7), costs.mT.contiguous().mT, costs.repeat(1, 2, 1)[:, 5:]):
            best = solve(view, backend=backend)
            assert best.path.shape == view.shape
            assert torch.equal(best.path.reshape(6, 5, 7), expected.path)
            assert best.cost.shape == view.shape[:-2]
        assert torch.equal(shortest_path(costs[0], backend=backend), expected.path[0])
        assert solve(costs[:0], backend=backend).path.shape == (0, 5, 7)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8])
    def test_every_dtype_gives_its_own_mask(self, backend, dtype):
        costs = path_maps.make_maps("integer", 5, 6, 6, seed=8)
        best = solve(costs.to(dtype), backend=backend)
        assert best.path.dtype == dtype
        assert torch.equal(best.path.float(), shortest_path(costs))
        assert best.cost.dtype == torch.float64

    def test_one_vertex_and_equal_ends(self, backend):
        assert solve(torch.tensor([[3.0]]), backend=backend).cost == 3
        path = shortest_path(torch.ones(4, 4), start=(1, 2), goal=(-3, -2), backend=backend)
        assert path.sum() == path[1, 2] == 1

    def test_no_gradient_and_no_change_of_the_costs(self, backend):
        costs = torch.rand(2, 4, 4, requires_grad=True)
        before = costs.detach().clone()
        assert not shortest_path(costs, backend=backend).requires_grad
        assert torch.equal(costs, before)

    def test_under_vmap_and_compilation(self, backend):
        costs = path_maps.make_maps("uniform", 6, 5, 5, seed=9)
        expected = shortest_path(costs, backend=backend)
        mapped = torch.vmap(lambda c: shortest_path(c, backend=backend), in_dims=1, out_dims=1)
        assert torch.equal(mapped(costs.view(2, 3, 5, 5)), expected.view(2, 3, 5, 5))
        graph = torch.compile(lambda c: shortest_path(c, backend=backend) + 0, fullgraph=True, backend="aot_eager")
        assert torch.equal(graph(costs), expected)


@pytest.mark.parametrize("neighbors", [4, 8])
def test_labyrinths_agree_when_dijkstra_takes_over(neighbors):
    """Corridors along the columns take half a turn of the sweeps each: 60 of them are more than the sweeps may take.

    They are three wide, so that there are many ways through each, and only the right order of the heap finds the best.
    """
    costs = path_maps.make_maps("uniform", 3, 12, 4 * 60, seed=10)
    for wall in range(60):
        side = slice(None, -1) if wall % 2 == 0 else slice(1, None)
        costs[:, side, 4 * wall + 3] = INFINITY
    best = solve(costs, neighbors, goal=(0, -2), backend="numba")
    expected = solve(costs, neighbors, goal=(0, -2), backend="torch")
    assert all(torch.equal(a, b) for a, b in zip(best, expected, strict=True))
    for grid, cost in zip(costs, best.cost, strict=True):
        assert cost.item() == path_maps.scipy_cost(grid.numpy(), neighbors, (0, 0), (0, 4 * 60 - 2))


def test_threads_change_nothing():
    costs = path_maps.make_maps("tied", 500, 12, 12, seed=11)
    expected = shortest_path(costs)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(shortest_path(costs), expected)
    finally:
        torch.set_num_threads(threads)


def test_arguments_are_explained():
    with pytest.raises(ShapeError, match=r"shape \(4,\)"):
        shortest_path(torch.ones(4))
    with pytest.raises(ShapeError, match="at least one row"):
        shortest_path(torch.ones(2, 0, 3))
    with pytest.raises(ArgumentError, match="neighbors is 6"):
        shortest_path(torch.ones(2, 2), neighbors=6)
    with pytest.raises(ArgumentError, match="neighbors is True"):
        shortest_path(torch.ones(2, 2), neighbors=True)
    with pytest.raises(ArgumentError, match=r"strict is 'yes'\. Choose None, True or False"):
        shortest_path(torch.ones(2, 2), strict="yes")
    assert torch.equal(shortest_path(torch.ones(2, 2), np.int64(8), strict=np.True_), torch.eye(2))
    with pytest.raises(ArgumentError, match=r"goal is \(2, 0\), outside"):
        shortest_path(torch.ones(2, 2), goal=(2, 0))
    with pytest.raises(ArgumentError, match="'triton' cannot run on costs on 'cpu'"):
        shortest_path(torch.ones(2, 2), backend="triton")
    with pytest.raises(ArgumentError, match="backend is 'fast'"):
        shortest_path(torch.ones(2, 2), backend="fast")
    with pytest.raises(ArgumentError, match="no order"):
        shortest_path(torch.ones(2, 2, dtype=torch.complex64))
    for unusual, words in (
        (torch.nested.nested_tensor([torch.ones(2, 2)], layout=torch.jagged), "costs are a nested tensor"),
        (torch.eye(2).to_sparse(), "costs are a sparse tensor"),
    ):
        for function in (shortest_path, lambda costs: path_cost(costs, torch.eye(2)), RelaxedBellmanFord()):
            with pytest.raises(ArgumentError, match=words):
                function(unusual)
    assert shortest_path(torch.ones(2, 2, device="meta")).device.type == "meta"
    with pytest.raises(ShapeError, match="same"):
        path_cost(torch.ones(2, 2), torch.ones(3, 2))


def test_without_numba_torch_takes_over(monkeypatch):
    monkeypatch.setattr(_dispatch, "obstacle", lambda package: f"is not installed: pip install {package}")
    assert _dispatch.choose("auto", torch.device("cpu")) == "torch"
    assert _dispatch.choose("auto", torch.device("cuda")) == "torch"
    with pytest.raises(ArgumentError, match="pip install numba"):
        shortest_path(torch.ones(2, 2), backend="numba")


def test_importing_the_package_imports_no_compiler():
    code = "import sys, newton_losses.paths; print(sorted({'numba', 'triton', 'scipy'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout == "[]\n"


def test_path_cost_differentiates_by_costs_and_path():
    costs = torch.tensor([[1.0, INFINITY], [2.0, 3.0]], requires_grad=True)
    path = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    total = path_cost(costs, path)
    assert total == 4
    by_costs, by_path = torch.autograd.grad(total, (costs, path))
    assert by_costs.tolist() == [[1, 0], [0, 1]]
    assert by_path.tolist() == [[1, 0], [2, 3]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.bool])
def test_the_cost_of_a_path_of_whole_numbers_does_not_overflow(dtype):
    costs = torch.full((1, 20, 20), 100 if dtype != torch.bool else 1, dtype=dtype)
    assert path_cost(costs, shortest_path(costs)) == solve(costs).cost


def test_who_records_operators_sees_ours():
    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, given=(), options=None):
            seen.append(str(operator))
            return operator(*given, **(options or {}))

    seen: list[str] = []
    costs = torch.rand(2, 3, 3)
    with Recorder():
        recorded = shortest_path(costs, backend="torch")
    assert "newton_losses.shortest_path.default" in seen
    assert torch.equal(recorded, shortest_path(costs, backend="torch"))
