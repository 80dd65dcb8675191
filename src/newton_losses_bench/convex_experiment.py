"""The paper's experiment with convex layers: its network and its short training loop.

It does not use `train.py`: there is one batch, nothing random after the start, and only the training loss counts. Its
run folders are like all others.
"""

import importlib
import time
from typing import Any, cast

import torch
from torch import Tensor, nn

from newton_losses.convex import repeat_with_fisher

from .config import ConvexConfig
from .machine import Interrupted, stop_requests
from .store import Record, RunFolder
from .tasks import damping_rule
from .train import Progress

SIZE = 20


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
    """Train as `config` says in the folder `out`, and return the result; an interrupted run is resumed."""
    config = config.resolved()
    progress = progress or Progress()
    with RunFolder(out, config) as folder:
        if (result := folder.result) is None:
            result = _train(config, folder, progress)
            folder.finish(result)
    progress.finished(result)
    return result


def _train(config: ConvexConfig, folder: RunFolder, progress: Progress) -> Record:
    saved = folder.load()
    assert config.learning_rate is not None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
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
