"""One training step, whatever the task: batch, network, loss, curvature, solve, optimizer; and its whole state.

Everything that a step changes is a tensor in `Trainer.tensors` or a generator, which is what makes both a
captured graph and an exact checkpoint possible. When to step, evaluate and save is in `loop.py`.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .average import WeightAverage
from .config import RunConfig
from .cuda_graph import CapturedStep
from .kernels import make_adam
from .ranks import current_ranks
from .store import RunError
from .tasks import Task


class Trainer:
    """The steps of a task. `step` counts those that are done."""

    def __init__(self, task: Task, config: RunConfig) -> None:
        self.task = task
        self.step = 0
        self._clip_norm = config.clip_norm
        self._ranks = current_ranks()
        self._is_baseline = config.curvature == "none"
        self._parameters = list(task.model.parameters())
        self._optimizer = _adam(self._parameters, config)
        self.average = WeightAverage(task.model) if config.average else None
        self._rate = config.learning_rate
        device = self._parameters[0].device
        self.tensors: dict[str, Tensor] = {
            **_named("model", task.model),
            **_named("loss", task.loss_module),
            **_named_state(self._optimizer),
            **{f"task.{name}": tensor for name, tensor in task.tensors.items()},
            **{f"average.{name}": tensor for name, tensor in (self.average.tensors if self.average else {}).items()},
            "loss_sum": torch.zeros((), dtype=torch.float64, device=device),
            "loss_count": torch.zeros((), dtype=torch.float64, device=device),
            "last_loss": torch.zeros((), dtype=torch.float64, device=device),
        }
        self._skipped = self.tensors.get("loss.skipped")
        # Rank 0 evaluates alone, from a stream of its own.
        self._generators = [g for name, g in task.generators.items() if name != "evaluation"]
        self._run = self._compute
        # Several ranks wait for each other in a step, which a graph would have to be told about: they do without.
        if config.graph and self._ranks.count == 1:
            task.model.train()
            generators = task.generators.values()
            self._run = CapturedStep(self._compute, task.batch_sizes, self.tensors.values(), generators)

    def train_step(self) -> None:
        """Do one step. On CUDA this returns before the device is done."""
        size = self.task.begin_step(self.step)
        self._set_learning_rate(self.task.learning_rate(self.step))
        self._run(size)
        self.step += 1
        if self.average is not None:
            self.average.follow(self.step)

    def _set_learning_rate(self, rate: float) -> None:
        # It seldom changes, and setting a tensor is one more launch on the device.
        if rate == self._rate:
            return
        self._rate = rate
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _compute(self, size: int) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._ranks.begin(size, self._skipped)
        rows = self.task.draw_loss(size)
        self._ranks.keep_in_step(self._generators)
        loss = self._ranks.backward(rows, self._parameters, self._skipped, is_mean_of_rows=self._is_baseline)
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
        self._optimizer.step()
        with torch.no_grad():
            self.tensors["last_loss"].copy_(loss)
            # Only finite losses count, which are those that the replacement by 0 leaves equal to themselves.
            finite = loss.nan_to_num(0.0, 0.0, 0.0)
            self.tensors["loss_sum"].add_(finite)
            self.tensors["loss_count"].add_(finite == loss)

    def last_loss(self) -> float | None:
        """The loss of the last step; waits for the device. `None` if it is not finite."""
        return _finite(self.tensors["last_loss"])

    def take_mean_loss(self) -> tuple[float | None, int]:
        """The mean loss of the steps since this was last asked for, and of how many; waits for the device.

        Of those with a finite loss. If there is none, there is no mean.
        """
        mean, count = _finite(self.tensors["loss_sum"] / self.tensors["loss_count"]), int(self.tensors["loss_count"])
        self.tensors["loss_sum"].zero_()
        self.tensors["loss_count"].zero_()
        return mean, count

    def skipped_samples(self) -> int:
        """How many samples so far had a loss or gradient that was not finite, where that is counted."""
        return 0 if self._skipped is None else int(self._skipped)

    def replicated(self) -> list[Tensor]:
        """What is the same on all ranks of a run, to the last bit."""
        return [*self.tensors.values(), *(generator.get_state() for generator in self._generators)]

    def state(self) -> dict[str, Any]:
        """Everything that going on needs, on the CPU."""
        return {
            "step": self.step,
            "tensors": {name: tensor.detach().cpu().clone() for name, tensor in self.tensors.items()},
            "generators": {name: g.get_state() for name, g in self.task.generators.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Be as at the time of `state()`, in place: captured graphs stay valid."""
        if state["tensors"].keys() != self.tensors.keys():
            raise RunError(
                "The checkpoint is of another version of newton-losses or torch: it holds other tensors than this one "
                "trains. Go on with the versions named in the run's config.json, or start anew in another folder."
            )
        self.step = state["step"]
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(state["tensors"][name])
            # An earlier version has added up losses that were not finite, too: what it had of the others is lost.
            if not self.tensors["loss_sum"].isfinite():
                self.tensors["loss_sum"].zero_()
                self.tensors["loss_count"].zero_()
        for name, generator in self.task.generators.items():
            generator.set_state(state["generators"][name])


def _adam(parameters: list[torch.nn.Parameter], config: RunConfig) -> torch.optim.Adam:
    """Adam with its moments already made, so that they have their place in memory before the first step."""
    assert config.learning_rate is not None
    captured = config.graph
    # In a captured graph a number would be frozen; a tensor can change between replays.
    rate = torch.tensor(config.learning_rate, device=config.device) if captured else config.learning_rate
    optimizer = make_adam(parameters, rate, captured)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    # Zero gradients move nothing; they only make Adam allocate what it keeps.
    optimizer.step()
    for kept in optimizer.state.values():
        for tensor in kept.values():
            tensor.zero_()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def _named(prefix: str, module: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and all buffers, also those that a `state_dict` leaves out."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _named_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"optimizer.{index}.{name}": tensor
        for index, kept in enumerate(optimizer.state.values())
        for name, tensor in kept.items()
    }


def _finite(value: Tensor) -> float | None:
    number = value.item()
    return number if math.isfinite(number) else None
