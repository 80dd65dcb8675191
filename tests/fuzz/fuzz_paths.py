"""Fuzzed calls of the shortest paths, against a search in plain Python."""

import math
import warnings
from typing import Any

import torch
from drawing import NOT_TENSORS, Draw, same
from torch import Tensor

import newton_losses as nl
from newton_losses import paths


def draw_costs(draw: Draw) -> Tensor:
    height, width = (int(size) for size in draw.random.integers(0 if draw.chance(0.05) else 1, 5, 2))
    costs = draw.tensor((*draw.pick(((), (1,), (2,), (0,), (2, 2))), height, width), bad=0.3)
    return costs.abs() if draw.chance(0.7) and costs.dtype != torch.bool else costs


def distances(costs: list[list[float]], start: tuple[int, int], neighbors: int) -> list[list[float]]:
    """Bellman-Ford, vertex by vertex, until nothing changes."""
    height, width = len(costs), len(costs[0])
    found = [[math.inf] * width for _ in range(height)]
    found[start[0]][start[1]] = costs[start[0]][start[1]]
    changed = True
    while changed:
        changed = False
        for row in range(height):
            for column in range(width):
                for down in (-1, 0, 1):
                    for right in (-1, 0, 1):
                        above, left = row + down, column + right
                        touches = (down, right) != (0, 0) and (neighbors == 8 or not (down and right))
                        if touches and 0 <= above < height and 0 <= left < width:
                            through = found[above][left] + costs[row][column]
                            if through < found[row][column]:
                                found[row][column], changed = through, True
    return found


def shortest_path(draw: Draw) -> None:
    costs = draw_costs(draw)
    neighbors = 6 if draw.chance(0.02) else draw.pick((4, 8))
    start, goal = (
        (None, None)
        if draw.chance(0.7)
        else ((int(draw.random.integers(-3, 4)), 0), (0, int(draw.random.integers(-3, 4))))
    )
    strict = draw.pick((None, False, False, True))
    solution = paths.solve(costs, neighbors, start, goal, strict=strict)
    assert solution.path.shape == costs.shape
    assert solution.path.dtype == costs.dtype
    assert solution.cost.shape == solution.unique.shape == solution.reachable.shape == costs.shape[:-2]
    height, width = costs.shape[-2:]
    first, last = (0, 0) if start is None else start, (-1, -1) if goal is None else goal
    first, last = (first[0] % height, first[1] % width), (last[0] % height, last[1] % width)
    plain = paths.solve(costs.clone(memory_format=torch.contiguous_format), neighbors, start, goal, strict=strict)
    assert torch.equal(plain.path, solution.path), "another path in another layout"
    maps, masks = costs.reshape(-1, height, width).double(), solution.path.reshape(-1, height, width).double()
    for number, (one, mask) in enumerate(zip(maps, masks, strict=True)):
        check_map(
            one,
            mask,
            float(solution.cost.reshape(-1)[number]),
            bool(solution.reachable.reshape(-1)[number]),
            first,
            last,
            neighbors,
        )


def check_map(costs: Tensor, mask: Tensor, cost: float, reachable: bool, first: Any, last: Any, neighbors: int) -> None:
    if costs.isnan().any():
        assert not reachable, "a map with a NaN has a path"
        assert math.isnan(cost)
        assert not mask.any()
        return
    wanted = distances(costs.clamp(min=0).tolist(), first, neighbors)[last[0]][last[1]]
    assert reachable == math.isfinite(wanted), f"reachable is {reachable} at the distance {wanted}"
    assert cost == wanted, f"the cost is {cost} instead of {wanted}"
    if not reachable:
        assert not mask.any()
        return
    assert set(mask.unique().tolist()) <= {0.0, 1.0}
    assert mask[first] == 1
    assert mask[last] == 1
    same(
        (costs.clamp(min=0) * mask).nan_to_num(0.0).sum(),
        torch.tensor(wanted, dtype=torch.float64),
        1e-9,
        "cost along the path",
    )
    # walking on the mask alone gets as cheaply to the goal: the path hangs together
    walled = torch.where(mask > 0, costs.clamp(min=0), math.inf)
    assert abs(distances(walled.tolist(), first, neighbors)[last[0]][last[1]] - wanted) <= 1e-9 * abs(wanted)


def path_cost(draw: Draw) -> None:
    costs = draw_costs(draw)
    path = draw.tensor(costs.shape, bad=0.0)
    found = paths.path_cost(costs, path)
    assert found.shape == costs.shape[:-2]
    if costs.is_complex() or path.is_complex():
        return
    wide, mask = costs.double().clamp(min=0), path.double()
    wanted = torch.where((mask == 0) & costs.double().isinf(), 0.0, wide * mask).sum((-2, -1))
    if found.dtype.is_floating_point and (wanted.abs() < 1e30).all() and not wanted.isnan().any():
        cancelled = torch.where((mask == 0) & costs.double().isinf(), 0.0, (wide * mask).abs()).sum((-2, -1))
        error = (found.double() - wanted).abs()
        # each product may lose as much as the least number of the dtype, 6e-8 in float16
        least = torch.finfo(found.dtype).smallest_normal * torch.finfo(found.dtype).eps * costs.shape[-2:].numel()
        bad = error > (1e-2 if found.dtype.itemsize == 2 else 1e-5) * cancelled + max(1e-30, least)
        assert not bad.any() or not torch.isfinite(found).all(), f"{found} instead of {wanted}"


def bellman_ford(draw: Draw) -> None:
    height, width = (int(size) for size in draw.random.integers(1, 5, 2))
    costs = draw.tensor((int(draw.random.integers(0, 4)), height, width))
    costs = costs.abs() if costs.dtype != torch.bool else costs
    beta = draw.power(-2, 3)
    relaxed = paths.RelaxedBellmanFord(
        beta, int(draw.random.integers(1, 12)), draw.pick(("for", "while")), draw.pick(("probabilistic", "yager"))
    )
    leaf = costs.detach().clone().requires_grad_(costs.is_floating_point())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* end before it arrives")
        found = relaxed(leaf)
    assert found.shape == costs.shape
    good = (costs.double() * beta < 1e9).flatten(1).all(1)
    assert torch.isfinite(found[good]).all(), f"{found} for costs {costs}"
    assert ((found[good] >= -1e-5) & (found[good] <= 1 + 1e-5)).all(), f"not within 0 and 1: {found}"
    same(relaxed(costs.clone(memory_format=torch.contiguous_format)), found, 1e-4, "result in another layout")
    if good.any() and not good.all():
        same(relaxed(costs[good]), found[good], 1e-4, "result without the bad maps")
    if found.requires_grad and found.numel():
        found[good].sum().backward()
        assert torch.isfinite(leaf.grad[good]).all(), f"the gradient {leaf.grad} at {costs}"


def not_maps(draw: Draw) -> None:
    thing: Any = draw.pick((*NOT_TENSORS, torch.tensor(1.0), torch.ones(3), torch.ones(2, 2, dtype=torch.complex64)))
    draw.pick((
        paths.shortest_path, paths.solve, paths.RelaxedBellmanFord(), lambda s: paths.path_cost(s, s),
        lambda s: paths.RelaxedBellmanFord(beta=s), lambda s: paths.RelaxedBellmanFord(iterations=s),
        lambda s: paths.RelaxedBellmanFord(loop=s), lambda s: paths.shortest_path(torch.ones(2, 2), s),
        lambda s: paths.shortest_path(torch.ones(2, 2), 8, s),
        lambda s: paths.shortest_path(torch.ones(2, 2), backend=s),
        lambda s: paths.PathLoss(paths.RelaxedBellmanFord())(torch.ones(1, 2, 2), s),
    ))(thing)  # fmt: skip


def path_loss(draw: Draw) -> None:
    """The Newton loss of a relaxed path: a map that is not finite harms no other."""
    costs = draw.tensor((int(draw.random.integers(1, 4)), 2, 3), draw.pick((torch.float32, torch.float64))).abs()
    label = torch.zeros_like(costs)
    beta = draw.power(-1, 2)
    loss = paths.PathLoss(paths.RelaxedBellmanFord(beta=beta, iterations=4), draw.pick(("l1", "l2")))
    kind = draw.pick(("hessian", "fisher"))
    found = nl.newton_target(loss, costs, label, curvature=kind, damping=draw.power(-2, 2))
    assert torch.isfinite(found.step).all()
    good = torch.isfinite(costs).flatten(1).all(1) & found.kept
    rest = nl.expand(loss, costs[good], label[good], curvature=None)
    same(found.gradient[good], rest.gradient, 1e-4, "gradient without the bad maps", 1e-6 * beta)


CALLS = (shortest_path,) * 3 + (path_cost, bellman_ford, not_maps, path_loss)
