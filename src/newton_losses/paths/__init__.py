"""Layer 3: shortest paths on grids, exact on batches of maps, and relaxed so that gradients flow."""

from ._bellman_ford import PathLoss as PathLoss
from ._bellman_ford import RelaxedBellmanFord as RelaxedBellmanFord
from ._shortest_path import PathSolution as PathSolution
from ._shortest_path import path_cost as path_cost
from ._shortest_path import shortest_path as shortest_path
from ._shortest_path import solve as solve
