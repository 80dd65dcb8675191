"""The paper's experiment with convex layers: two ReLUs as convex problems and a linear layer, fitted to random numbers.

There is one batch, nothing is random after the start, and only the training loss counts.
"""

import importlib
from typing import Any, cast

import torch
from torch import Tensor, nn

from newton_losses.convex import repeat_with_fisher

from ..config import ConvexConfig
from .task import Figures, Record, Tell, damping_rule, nobody

SIZE = 20


class ConvexTask:
    """Random inputs and outputs, and the network that is fitted to them. See `Task`."""

    def __init__(self, config: ConvexConfig) -> None:
        self._config = config
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(config.seed)
            # The order of the notebook that the paper took this from: weights first, then the data.
            self.model: nn.Module = nn.Sequential(ConvexReLU(config), ConvexReLU(config), nn.Linear(SIZE, 1))
            self._inputs, self._wanted = torch.randn(config.batch_size, SIZE), torch.randn(config.batch_size, 1)
        self.loss_module: nn.Module = nn.MSELoss()
        self.generators: dict[str, torch.Generator] = {}
        self.tensors: dict[str, Tensor] = {}
        self.total_steps, self.eval_every = config.steps, config.eval_every
        self.drops: tuple[int, ...] = ()
        self.batch_sizes: tuple[int, ...] = (config.batch_size,)

    def begin_step(self, step: int) -> int:
        return self._config.batch_size

    def draw_loss(self, size: int) -> Tensor:
        return cast(Tensor, self.loss_module(self.model(self._inputs), self._wanted))

    def evaluate(self, tell: Tell = nobody) -> Figures:
        return {"test": {"loss": self.draw_loss(self._config.batch_size).item()}}

    def reported(self, evaluations: list[Record]) -> Record:
        return evaluations[-1]


class ConvexReLU(nn.Module):
    """max(Wx + b, 0) as the solution of a problem for each sample, with weights handed to each sample."""

    def __init__(self, config: ConvexConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(1e-3 * torch.randn(SIZE, SIZE))
        self.bias = nn.Parameter(1e-3 * torch.randn(SIZE))
        self._damping = damping_rule(config)
        self._solve = _relu_problem() if config.algorithm == "relu" else None

    def forward(self, x: Tensor) -> Tensor:
        if self._damping is None:
            weight, bias = self.weight.expand(len(x), -1, -1), self.bias.expand(len(x), -1)
        else:
            weight, bias = repeat_with_fisher((self.weight, self.bias), len(x), self._damping)
        affine = torch.einsum("nij,nj->ni", weight, x) + bias
        return affine.relu() if self._solve is None else cast(Tensor, self._solve(affine)[0].to(x.dtype))


def _relu_problem() -> Any:
    # By name: neither package has types, and only this experiment needs them.
    cvxpy, layers = importlib.import_module("cvxpy"), importlib.import_module("cvxpylayers.torch")
    z, affine = cvxpy.Variable(SIZE), cvxpy.Parameter(SIZE)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(z - affine)), [z >= 0])
    return layers.CvxpyLayer(problem, parameters=[affine], variables=[z])
