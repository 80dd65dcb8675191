"""One training step, whatever the task: batch, network, loss, curvature, solve, optimizer; and the state it changes.

Everything that a step changes is a tensor in `Trainer.tensors` or a generator. That is what makes both a captured
graph and an exact checkpoint possible. When to step, evaluate and save is decided in `train.py`.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from .config import RunConfig
from .cuda_graph import CapturedStep
from .kernels import make_adam
from .store import RunError
from .tasks import Task


class Trainer:
    """The steps of a task. `step` counts those that are done."""

    def __init__(self, task: Task, config: RunConfig) -> None:
        self.task = task
        self.step = 0
        self._clip_norm = config.clip_norm
        self._parameters = list(task.model.parameters())
        self._optimizer = _adam(self._parameters, config)
        self._first_rate = self._rate = cast(float, config.learning_rate)
        self.average = WeightAverage(task.model) if config.average else None
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
        self._run = self._compute
        if config.graph:
            task.model.train()
            generators = task.generators.values()
            self._run = CapturedStep(self._compute, task.batch_sizes, self.tensors.values(), generators)

    def train_step(self) -> None:
        """Do one step. On CUDA this returns before the device is done."""
        size = self.task.begin_step(self.step)
        self._set_learning_rate(self.learning_rate(self.step))
        self._run(size)
        self.step += 1
        if self.average is not None:
            self.average.follow(self.step)

    def learning_rate(self, step: int) -> float:
        """The learning rate of step number `step` (from 0)."""
        return self._first_rate * 0.1 ** sum(step >= drop for drop in self.task.drops)

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
        loss = self.task.draw_loss(size)
        loss.backward()  # type: ignore[no-untyped-call]
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
        """The loss of the last step, or `None` if it is not finite; waits for the device."""
        return _finite(self.tensors["last_loss"])

    def take_mean_loss(self) -> tuple[float | None, int]:
        """The mean of the finite losses since the last call, and their number; waits for the device.

        If there are none, the mean is `None`.
        """
        mean, count = _finite(self.tensors["loss_sum"] / self.tensors["loss_count"]), int(self.tensors["loss_count"])
        self.tensors["loss_sum"].zero_()
        self.tensors["loss_count"].zero_()
        return mean, count

    def skipped_samples(self) -> int:
        """How many samples so far had a loss or gradient that was not finite; a baseline does not count them."""
        skipped = self.tensors.get("loss.skipped")
        return 0 if skipped is None else int(skipped)

    def state(self) -> dict[str, Any]:
        """Everything that resuming needs, on the CPU."""
        return {
            "step": self.step,
            "tensors": {name: tensor.detach().cpu().clone() for name, tensor in self.tensors.items()},
            "generators": {name: g.get_state() for name, g in self.task.generators.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Return to the moment of `state()`, in place: captured graphs stay valid."""
        if state["tensors"].keys() != self.tensors.keys():
            raise RunError(
                "The checkpoint was written by another version of newton-losses or torch: it holds other tensors than "
                "this version trains. Resume with the versions named in the run's config.json, or start again in "
                "another folder."
            )
        self.step = state["step"]
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(state["tensors"][name])
        for name, generator in self.task.generators.items():
            generator.set_state(state["generators"][name])


class WeightAverage:
    """A mean of a network's weights and statistics over the steps of a run; `tensors` is all that it keeps.

    At a constant learning rate a network ends somewhere in the noise of its last steps; their mean lies amid them
    (Polyak and Juditsky, 1992). The share of a step grows with a power of its number (Shamir and Zhang, 2013), so that
    the mean is always about a tenth of the run old, and there is no length to choose. Training does not notice it.
    """

    # A step counts by about its number to this power: on average a step that was a tenth of all steps ago.
    POWER = 8
    # Weights change little in this many steps, and the mean of every tenth costs a tenth. Before the tenth step the
    # average is the weights.
    EVERY = 10

    def __init__(self, model: nn.Module) -> None:
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        # A counter of batches has no mean.
        self._of = {name: tensor for name, tensor in named.items() if tensor.is_floating_point()}
        self.tensors: dict[str, Tensor] = {name: tensor.detach().clone() for name, tensor in self._of.items()}

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Take in the weights after step number `step` (from 1), if this step counts."""
        if step % self.EVERY == 0 or step < self.EVERY:
            share = (self.POWER + 1) / (max(1, step // self.EVERY) + self.POWER)
            torch._foreach_lerp_(list(self.tensors.values()), [one.detach() for one in self._of.values()], share)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the network the averaged weights for a while; afterwards it has its own, to the last bit."""
        weights = [one.detach() for one in self._of.values()]
        own = [one.clone() for one in weights]
        torch._foreach_copy_(weights, list(self.tensors.values()))
        try:
            yield
        finally:
            torch._foreach_copy_(weights, own)


def _adam(parameters: list[nn.Parameter], config: RunConfig) -> torch.optim.Adam:
    """Adam with its moments already made, so that they have their place in memory before the first step."""
    assert config.learning_rate is not None
    optimizer: torch.optim.Adam
    if config.graph:
        # In a captured graph a number would be frozen; a tensor can change between replays.
        optimizer = make_adam(parameters, torch.tensor(config.learning_rate, device=config.device))
    else:
        optimizer = torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    # Zero gradients move nothing; they only make Adam allocate its moments.
    optimizer.step()
    for kept in optimizer.state.values():
        for tensor in kept.values():
            tensor.zero_()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def _named(prefix: str, module: nn.Module) -> dict[str, Tensor]:
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
