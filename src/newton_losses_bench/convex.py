"""The paper's experiment with convex layers: its configuration, its network and its short training loop.

It is no third task of `loop.py`: there is one batch, nothing is drawn after the start, and what counts is the
training loss. A run is a run folder like all others.
"""

import importlib
import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from newton_losses._random import seeded
from newton_losses.convex import repeat_with_fisher
from newton_losses.errors import ArgumentError

from .checks import check_at_least
from .config import RunConfig
from .progress import Progress, Silent
from .signals import Interrupted, stop_requests
from .store import Record, RunFolder
from .tasks import damping_rule

SIZE = 20


@dataclass(frozen=True, kw_only=True)
class ConvexConfig(RunConfig):
    """Two ReLU layers as convex problems and a linear layer, fitted to random numbers in one batch.

    The algorithm "relu" solves min_z ‖z − Wx − b‖², z ≥ 0 with `cvxpylayers`; "relu-exact" takes the known
    solution max(Wx + b, 0) instead, which is faster and free of the solver's errors.

    >>> ConvexConfig(algorithm="relu", curvature="fisher").resolved().damping
    0.1
    """

    task: ClassVar[str] = "convex"
    algorithms: ClassVar[tuple[str, ...]] = ("relu", "relu-exact")
    sources: ClassVar[tuple[str, ...]] = ("random",)

    data: str = "random"
    batch_size: int = 300
    eval_every: int = 10
    steps: int = 50
    device: str = "cpu"

    def resolved(self) -> Self:
        if self.device not in ("cpu", "auto"):
            raise ArgumentError(f"--device {self.device}: the solver of convex layers runs on the CPU.")
        config = super().resolved()
        check_at_least("steps", self.steps, 1)
        if self.average:
            raise ArgumentError("--average: there is no average of convex layers, of which only the training counts.")
        # Neither is there anything to compile or to capture, nor a convolution to be less precise in.
        return replace(config, device="cpu", graph=False, compile=False, precision="float32")

    def _check_curvature(self) -> None:
        super()._check_curvature()
        if self.curvature not in ("none", "fisher"):
            raise ArgumentError(
                f"--curvature {self.curvature}: convex layers have no second derivatives. Take fisher, or none."
            )

    def _default_damping(self) -> float:
        return 0.1

    def _default_learning_rate(self) -> float:
        return 0.01


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


def run_convex(config: ConvexConfig, out: str, *, progress: Progress | None = None) -> Record:
    """Train as `config` says in the folder `out` and return the result; going on where it was, like `loop.run`."""
    config = config.resolved()
    progress = progress or Silent()
    with RunFolder(out, config) as folder:
        if (result := folder.result) is None:
            result = _train(config, folder, progress)
            folder.finish(result)
    progress.finished(result)
    return result


def _train(config: ConvexConfig, folder: RunFolder, progress: Progress) -> Record:
    saved = folder.load()
    assert config.learning_rate is not None
    with seeded(config.seed):
        # The order of the notebook that the paper took this from: weights first, then the data.
        network = nn.Sequential(ConvexReLU(config), ConvexReLU(config), nn.Linear(SIZE, 1))
        inputs, wanted = torch.randn(config.batch_size, SIZE), torch.randn(config.batch_size, 1)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    step, earlier, start = 0, 0.0, time.monotonic()
    if saved is not None:
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        step, earlier = saved["step"], saved["seconds"]
    progress.started(config, step, config.steps, folder.evaluations)
    with stop_requests() as stop:
        while True:
            loss = nn.functional.mse_loss(network(inputs), wanted)
            due = step % config.eval_every == 0 or step == config.steps
            record = {"step": step, "loss": loss.item(), "test": {"loss": loss.item()}}
            new = due and not any(known["step"] == step for known in folder.evaluations)
            if new or stop.requested is not None:
                parts = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
                seconds = earlier + time.monotonic() - start
                folder.save({"step": step, "seconds": seconds, **parts}, record if new else None)
            if new:
                progress.evaluated(record)
            if stop.requested is not None:
                raise Interrupted(step, stop.requested)
            if step == config.steps:
                return _result(config, folder, earlier + time.monotonic() - start)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1


def _result(config: ConvexConfig, folder: RunFolder, seconds: float) -> Record:
    last = folder.evaluations[-1]
    return {
        "configuration": config.to_dict(),
        "test": last["test"],
        "reported": last,
        "final": last,
        "steps": config.steps,
        "seconds": round(seconds, 2),
        "milliseconds_per_step": round(1000 * seconds / config.steps, 4),
    }


def _relu_problem() -> Any:
    # By name: neither package has types, and only this experiment needs them.
    cvxpy, layers = importlib.import_module("cvxpy"), importlib.import_module("cvxpylayers.torch")
    z, affine = cvxpy.Variable(SIZE), cvxpy.Parameter(SIZE)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(z - affine)), [z >= 0])
    return layers.CvxpyLayer(problem, parameters=[affine], variables=[z])
