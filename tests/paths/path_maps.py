"""The catalogue of maps for the tests of paths, and references that share no code with the library."""

import heapq
from itertools import pairwise

import numpy as np
import torch
from scipy import ndimage, sparse
from scipy.sparse import csgraph

KINDS = ("uniform", "tied", "integer", "maze", "snake", "terrain", "clamped", "extreme")
STEPS = {
    4: [(-1, 0), (0, -1), (0, 1), (1, 0)],
    8: [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)],
}


def make_maps(kind: str, count: int, height: int, width: int, seed: int) -> torch.Tensor:
    """`count` maps of one kind, float32."""
    generator = np.random.default_rng([seed, height, width, KINDS.index(kind)])
    uniform = generator.random((count, height, width), dtype=np.float32)
    if kind == "tied":
        costs = np.array([0.8, 1.2, 5.3, 7.7, 9.2], np.float32)[(5 * uniform).astype(int)]
    elif kind == "integer":
        costs = np.floor(4 * uniform)
    elif kind == "maze":
        costs = np.where(uniform < 0.3, np.inf, np.floor(30 * uniform)).astype(np.float32)
    elif kind == "snake":
        costs = snakes(uniform)
    elif kind == "terrain":
        rough = ndimage.gaussian_filter(uniform, (0, 1.5, 1.5))
        levels = np.searchsorted(np.quantile(rough, [0.2, 0.4, 0.6, 0.8]), rough)
        costs = np.array([0.8, 1.2, 5.3, 7.7, 9.2], np.float32)[levels]
    elif kind == "clamped":
        costs = uniform - 0.4
    elif kind == "extreme":
        costs = np.where(uniform < 0.5, np.float32(1e-30), np.float32(1e30)) * np.ceil(2 * uniform)
    else:
        costs = uniform
    return torch.from_numpy(np.ascontiguousarray(costs, dtype=np.float32))


def snakes(uniform: np.ndarray) -> np.ndarray:
    """Corridors that turn back at alternate ends: along rows on even maps, along columns on odd ones."""
    costs = uniform.copy()
    for index in range(costs.shape[0]):
        grid = costs[index] if index % 2 == 0 else costs[index].T
        for wall in range(1, grid.shape[0] - 1, 2):
            open_at = -1 if wall % 4 == 1 else 0
            keep = grid[wall, open_at]
            grid[wall] = np.inf
            grid[wall, open_at] = keep
    return costs


def scipy_cost(costs: np.ndarray, neighbors: int, start: tuple[int, int], goal: tuple[int, int]) -> float:
    """The cost by scipy's Dijkstra in float64, from a source before the start so that this counts as well."""
    height, width = costs.shape
    clean = np.maximum(costs.astype(np.float64), 0.0)
    number = np.arange(height * width).reshape(height, width)
    tails, heads = [np.array([height * width])], [np.array([start[0] * width + start[1]])]
    for i, j in STEPS[neighbors]:
        rows, columns = slice(max(0, -i), height - max(0, i)), slice(max(0, -j), width - max(0, j))
        tails.append(number[rows, columns].ravel())
        heads.append((number[rows, columns] + i * width + j).ravel())
    tail, head = np.concatenate(tails), np.concatenate(heads)
    weight = clean.ravel()[head]
    passable = np.isfinite(weight)
    size = height * width + 1
    graph = sparse.csr_array((weight[passable], (tail[passable], head[passable])), shape=(size, size))
    return float(csgraph.dijkstra(graph, indices=height * width)[goal[0] * width + goal[1]])


def is_valid_path(path: np.ndarray, neighbors: int, start: tuple[int, int], goal: tuple[int, int]) -> bool:
    """One chain without a chord from start to goal: the ends touch one vertex of it, the others two."""
    structure = np.ones((3, 3)) if neighbors == 8 else ndimage.generate_binary_structure(2, 1)
    on_path = path.astype(bool)
    touching = ndimage.convolve(on_path.astype(int), structure.astype(int), mode="constant") - 1
    expected = np.full(path.shape, 2)
    expected[start] -= 1
    expected[goal] -= 1
    connected = ndimage.label(on_path, structure)[1] == 1
    return bool(on_path[start] and on_path[goal] and connected and (touching == expected)[on_path].all())


def reference(
    costs: np.ndarray, neighbors: int, start: tuple[int, int], goal: tuple[int, int]
) -> tuple[list[tuple[int, int]], float, bool]:
    """The path by its rule: float64 sums, fewest vertices, first predecessor in reading order."""
    height, width = costs.shape
    cost = {(i, j): max(float(costs[i, j]), 0.0) for i in range(height) for j in range(width)}

    def around(v: tuple[int, int]) -> list[tuple[int, int]]:
        return [u for i, j in STEPS[neighbors] if (u := (v[0] + i, v[1] + j)) in cost]

    distance = dict.fromkeys(cost, np.inf)
    distance[start] = cost[start]
    heap = [(cost[start], start)]
    while heap:
        reached, u = heapq.heappop(heap)
        for v in around(u):
            if reached == distance[u] and reached + cost[v] < distance[v]:
                distance[v] = reached + cost[v]
                heapq.heappush(heap, (distance[v], v))
    if not np.isfinite(distance[goal]):
        return [], distance[goal], False

    def tight(v: tuple[int, int]) -> list[tuple[int, int]]:
        return [] if v == start else [u for u in around(v) if distance[u] + cost[v] == distance[v] < np.inf]

    layers, seen = [{start}], {start}
    while goal not in layers[-1]:
        layers.append({v for u in layers[-1] for v in around(u) if v not in seen and u in tight(v)})
        seen |= layers[-1]
    route = [goal]
    for layer in reversed(layers[:-1]):
        route.append(next(u for u in tight(route[-1]) if u in layer))
    return route[::-1], distance[goal], all(len(tight(v)) <= 1 for v in route)


def simple_paths(height: int, width: int, neighbors: int, goal: tuple[int, int]) -> list[list[tuple[int, int]]]:
    """All paths from the top left to the goal that visit no vertex twice."""
    found, stack = [], [[(0, 0)]]
    while stack:
        path = stack.pop()
        if path[-1] == goal:
            found.append(path)
            continue
        for i, j in STEPS[neighbors]:
            v = (path[-1][0] + i, path[-1][1] + j)
            if 0 <= v[0] < height and 0 <= v[1] < width and v not in path:
                stack.append([*path, v])
    assert all(len(set(p)) == len(p) and len(list(pairwise(p))) == len(p) - 1 for p in found)
    return found
