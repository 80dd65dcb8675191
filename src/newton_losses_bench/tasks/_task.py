"""What the training loop needs to know of a task, and the one place where a loss gets its curvature."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from newton_losses.curvature import Damping, NormalizedDamping, RelativeDamping
from newton_losses.newton import NewtonLoss

from ..config import RunConfig
from ..settings import auto_factor
from ._energy import EnergyCurvature

Figures = dict[str, dict[str, float]]
Record = dict[str, Any]


class Task(Protocol):
    """A network with its data and its loss. The loop counts steps; everything else is asked of the task.

    `model` is what is trained and `loss_module` what may hold counters; `generators` and `tensors` are what
    a checkpoint has to hold beside them. `draw_loss` runs inside of the captured graph, `begin_step` before it.
    """

    model: nn.Module
    loss_module: nn.Module
    generators: dict[str, torch.Generator]
    tensors: dict[str, Tensor]
    total_steps: int
    batch_sizes: tuple[int, ...]

    def begin_step(self, step: int) -> int:
        """Get ready for step number `step` (from 0) and return its batch size."""

    def draw_loss(self, size: int) -> Tensor:
        """Draw a batch of this size, run the network on this rank's rows, return their mean loss with its graph."""

    def learning_rate(self, step: int) -> float:
        """The learning rate of step number `step` (from 0)."""

    def is_evaluation(self, steps: int) -> bool:
        """Whether to evaluate after so many steps."""

    def evaluate(self) -> Figures:
        """The figures of validation and test set, in per cent."""

    def reported(self, evaluations: list[Record]) -> Record:
        """The evaluation whose test figures are the result."""


class _MeanLoss(nn.Module):
    """The baseline: the plain mean of a loss over the batch."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, y: Tensor, *targets: Tensor) -> Tensor:
        values = self.loss(y, *targets)
        # One of several ranks may have no samples; the mean of none would not be a number.
        return values.mean() if len(values) else values.sum()


def damping_rule(config: RunConfig) -> Damping | None:
    """The damping that a resolved configuration asks for; `None` for a baseline."""
    if config.relative_damping is not None:
        return RelativeDamping(config.relative_damping)
    if isinstance(config.damping, str):
        return NormalizedDamping(auto_factor(config.damping))
    return config.damping


def training_loss(loss: Callable[..., Tensor], config: RunConfig) -> nn.Module:
    """The scalar loss of a batch: the mean of `loss`, its Newton loss, or that of the control without directions."""
    if config.curvature == "none":
        return _MeanLoss(loss)
    damping = damping_rule(config)
    # No check on the first call: it would draw noise, and a resumed run makes a first call of its own.
    if config.curvature == "energy":
        return NewtonLoss(EnergyCurvature(loss), "fisher", damping, check=False)  # type: ignore[arg-type]
    return NewtonLoss(loss, config.curvature, damping, spectrum=config.spectrum, check=False)  # type: ignore[arg-type]
