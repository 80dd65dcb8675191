"""Speed of shortest paths and of the relaxed Bellman-Ford algorithm against their peers, in one run.

    python benchmarks/paths.py            # everything
    python benchmarks/paths.py exact      # shortest_path against scipy and a pure-Python heap, on one core
    python benchmarks/paths.py relaxed    # RelaxedBellmanFord against algovision
    python benchmarks/paths.py cuda       # shortest_path on a GPU: plain call and graph replay
    python benchmarks/paths.py relaxed-cuda  # RelaxedBellmanFord on a GPU: Triton, torch, and the kernels of each

Peers take turns, so that a busy machine hits all of them alike. Printed are the least time of each and the
median over the turns of its ratio to ours. On a GPU a time is that of many calls between two events of the device.
"""

import heapq
import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

from newton_losses.paths import RelaxedBellmanFord, shortest_path
from timing import rounds_of, to_first

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "paths"))
import path_maps
from path_kernels import kernels_of


def race(entries: dict[str, tuple[Callable[[], object], int]], turns: int) -> dict[str, list[float]]:
    """Seconds per item of each entry (a run, its number of items) at each turn, after a run to warm up."""
    taken = rounds_of({name: run for name, (run, _) in entries.items()}, turns, 1)
    return {name: [seconds / entries[name][1] for seconds in times] for name, times in taken.items()}


def report(title: str, seconds: dict[str, list[float]]) -> None:
    print(f"\n{title}")
    for name, ratio in to_first(seconds).items():
        print(f"  {name:<34} {min(seconds[name]) * 1e6:>10.2f} µs   {ratio:>8.1f} × ours")


def heap_path(costs: np.ndarray) -> np.ndarray:
    """Dijkstra with Python's own heap, dictionaries and tuples, as it is often written for this task."""
    height, width = costs.shape
    best = {(0, 0): float(costs[0, 0])}
    previous: dict[tuple[int, int], tuple[int, int]] = {}
    done = set()
    heap = [(best[0, 0], (0, 0))]
    while heap:
        distance, (x, y) = heapq.heappop(heap)
        if (x, y) in done:
            continue
        done.add((x, y))
        for i in (-1, 0, 1):
            for j in (-1, 0, 1):
                v = (x + i, y + j)
                if not (0 <= v[0] < height and 0 <= v[1] < width) or v in done:
                    continue
                reached = distance + float(costs[v])
                if v not in best or reached < best[v]:
                    best[v], previous[v] = reached, (x, y)
                    heapq.heappush(heap, (reached, v))
    path, vertex = np.zeros_like(costs), (height - 1, width - 1)
    path[vertex] = 1
    while vertex != (0, 0):
        vertex = previous[vertex]
        path[vertex] = 1
    return path


def exact() -> None:
    """Times are per map, on one core, whatever there are."""
    torch.set_num_threads(1)
    count, few = 2100, 20
    for kind in ("uniform", "terrain", "tied"):
        costs = path_maps.make_maps(kind, count, 12, 12, seed=0)
        seconds = race(
            {
                "shortest_path, numba": (partial(shortest_path, costs, backend="numba"), count),
                "shortest_path, torch": (partial(shortest_path, costs, backend="torch"), count),
                "scipy.sparse.csgraph, graph + cost": (partial(each, scipy_cost, costs[:few]), few),
                "pure-Python heap": (partial(each, heap_path, costs[:few]), few),
            },
            12,
        )
        report(f"12×12, {kind}, {count} maps a call, one core, per map", seconds)
    for kind in ("uniform", "terrain", "snake"):
        costs = path_maps.make_maps(kind, 40, 64, 64, seed=0)
        seconds = race(
            {
                "shortest_path, numba": (partial(shortest_path, costs, backend="numba"), 40),
                "scipy.sparse.csgraph, graph + cost": (partial(each, scipy_cost, costs[:4]), 4),
            },
            8,
        )
        report(f"64×64, {kind}, 40 maps a call, one core, per map", seconds)


def each(function: Callable[[np.ndarray], object], maps: torch.Tensor) -> list[object]:
    return [function(grid) for grid in maps.numpy()]


def scipy_cost(grid: np.ndarray) -> float:
    height, width = grid.shape
    return path_maps.scipy_cost(grid, 8, (0, 0), (height - 1, width - 1))


def relaxed() -> None:
    """Forward and backward at the batch of the experiments."""
    from algovision_program import algovision_path  # not everywhere where the other sections run

    warnings.filterwarnings("ignore", "Using a non-tuple sequence", UserWarning)
    torch.set_num_threads(1)
    costs = path_maps.make_maps("uniform", 70, 12, 12, seed=0).requires_grad_()
    for loop in ("for", "while"):
        ours, theirs = RelaxedBellmanFord(10.0, 18, loop), algovision_path(10.0, 18, loop)
        seconds = race(
            {
                "RelaxedBellmanFord": (lambda ours=ours: ours(costs).sum().backward(), 1),
                "algovision": (lambda theirs=theirs: theirs(costs).sum().backward(), 1),
            },
            20,
        )
        report(f"forward + backward, batch 70, 12×12, 18 iterations, loop={loop!r}, one core", seconds)


def relaxed_cuda() -> None:
    """Forward and backward at the batch of the experiments, by both back ends."""
    costs = path_maps.make_maps("uniform", 70, 12, 12, seed=0).cuda().requires_grad_()
    gradient = torch.ones_like(costs)
    for loop, conorm in product(("for", "while"), ("probabilistic", "yager")):
        title = f"forward + backward, batch 70, 12×12, 18 iterations, {loop!r}, {conorm!r}, on the device"
        steps = {
            backend: partial(path_and_gradient, RelaxedBellmanFord(10.0, 18, loop, conorm, backend), costs, gradient)
            for backend in ("triton", "torch")
        }
        names = {backend: f"{backend}, {len(kernels_of(step))} kernels" for backend, step in steps.items()}
        replays = {names[backend]: captured(step).replay for backend, step in steps.items()}
        calls = {names[backend]: step for backend, step in steps.items()}
        for way, runs in (("graph replay", replays), ("plain call", calls)):
            turns = [{name: on_device(run) for name, run in runs.items()} for _ in range(9)]
            report(f"{title}, {way}", {name: [turn[name] for turn in turns] for name in runs})


def path_and_gradient(
    algorithm: RelaxedBellmanFord, costs: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    path = algorithm(costs)
    return path, *torch.autograd.grad(path, costs, gradient)


def captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of one run, after one outside of it that compiles."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def cuda() -> None:
    print("\n12×12, 2100 maps a call, on the device, per map")
    for backend in ("triton", "torch"):
        for kind in ("uniform", "terrain", "tied"):
            costs = path_maps.make_maps(kind, 2100, 12, 12, seed=0).cuda()
            call = partial(shortest_path, costs, backend=backend)
            for name, run in (("plain call", call), ("graph replay", captured(call).replay)):
                seconds = min(on_device(run) for _ in range(5))
                print(f"  {backend:<7} {kind:<8} {name:<13} {seconds / 2100 * 1e6:>8.4f} µs")


def on_device(run: Callable[[], object], calls: int = 20) -> float:
    """Seconds a call."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    run()
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / calls


if __name__ == "__main__":
    sections = {"exact": exact, "relaxed": relaxed, "cuda": cuda, "relaxed-cuda": relaxed_cuda}
    for section in sys.argv[1:] or sections:
        if "cuda" in section and not torch.cuda.is_available():
            print(f"\n{section}: no CUDA device, nothing to time there")
        else:
            sections[section]()
