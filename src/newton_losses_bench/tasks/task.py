"""What the training loop asks of a task, and what the tasks share: network, training loss, random streams."""

from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from newton_losses import NewtonLoss
from newton_losses.curvature import (
    CurvatureKind,
    Damping,
    Dense,
    Expandable,
    Expansion,
    NormalizedDamping,
    RelativeDamping,
    RunningDamping,
    expand,
    finite,
)

from ..config import RunConfig
from ..settings import rule_and_factor

Figures = dict[str, dict[str, float]]
Tell = Callable[[float], None]  # hears which fraction of an evaluation is done


def nobody(fraction: float) -> None:
    """Where nobody listens."""


Record = dict[str, Any]

# Weights, batches, noise and evaluations have separate streams: the baseline, Fisher and Hessian arms of one seed see
# the same batches and the same evaluation sets, however much noise their losses draw.
_STREAMS = ("weights", "batches", "noise", "evaluation")


class Task(Protocol):
    """A network with its data and its loss. The loop counts steps; everything else is asked of the task.

    `model` is what is trained and `loss_module` what may hold counters; a checkpoint has to hold `generators` and
    `tensors` as well. `draw_loss` runs inside the captured graph, `begin_step` before it. There is an evaluation after
    every `eval_every` steps and at the end, and the learning rate falls tenfold after each of the `drops`, in steps.
    """

    model: nn.Module
    loss_module: nn.Module
    generators: dict[str, torch.Generator]
    tensors: dict[str, Tensor]
    total_steps: int
    eval_every: int
    drops: tuple[int, ...]
    batch_sizes: tuple[int, ...]

    def begin_step(self, step: int) -> int:
        """Get ready for step number `step` (from 0) and return its batch size."""

    def draw_loss(self, size: int) -> Tensor:
        """Draw a batch of this size, run the network, and return the mean loss with its graph."""

    def evaluate(self, tell: Tell = nobody) -> Figures:
        """The figures of validation and test set, in per cent; `tell` hears the fraction done after every batch."""

    def reported(self, evaluations: list[Record]) -> Record:
        """The evaluation whose test figures are the result."""


def counting(tell: Tell, total: int) -> Callable[[int], None]:
    """Takes how many were done and tells the fraction of all.

    >>> done = counting(print, 4)
    >>> done(1), done(2)
    0.25
    0.75
    (None, None)
    """
    count = 0

    def done(more: int) -> None:
        nonlocal count
        count += more
        tell(count / total)

    return done


def random_stream(seed: int, name: str, device: str | torch.device = "cpu") -> torch.Generator:
    """The generator of one of a seed's streams: "weights", "batches", "noise" or "evaluation".

    >>> torch.rand(1, generator=random_stream(0, "noise")) == torch.rand(1, generator=random_stream(0, "batches"))
    tensor([False])
    """
    words = np.random.SeedSequence([seed, _STREAMS.index(name)]).generate_state(1, np.uint64)
    # torch takes seeds up to 2⁶³ on every device.
    return torch.Generator(device).manual_seed(int(words[0] >> np.uint64(1)))


def make_model(build: Callable[[str], nn.Module], config: RunConfig) -> nn.Module:
    """The network of `build(precision)` on its device, with the seed's weights, in training mode."""
    # torch initialises from its global generator, which is lent. torch.manual_seed would seed all GPUs as well.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(random_stream(config.seed, "weights").initial_seed())
        model = build("bf16" if config.precision == "bf16" else "float32")
    model = model.to(config.device)
    if config.device.startswith("cuda"):
        model = cast(nn.Module, model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    return model.train()


def training_loss(loss: Callable[..., Tensor], config: RunConfig) -> nn.Module:
    """The scalar loss of a batch: the mean of `loss`, its Newton loss, or that of the control without directions."""
    if config.curvature == "none":
        return _MeanLoss(loss)
    # No check on the first call: it would draw noise, and a resumed run makes a first call of its own. No warning of
    # skipped samples: a run counts them in every evaluation, and says at its end what to try.
    options: dict[str, Any] = {"damping": damping_rule(config), "check": False, "on_nonfinite": "ignore"}
    if config.curvature == "energy":
        return NewtonLoss(EnergyCurvature(loss), "fisher", **options)
    return NewtonLoss(loss, config.curvature, spectrum=config.spectrum, **options)  # type: ignore[arg-type]


def damping_rule(config: RunConfig) -> Damping | None:
    """The damping that a resolved configuration asks for; `None` for a baseline."""
    if config.relative_damping is not None:
        return RelativeDamping(config.relative_damping)
    if isinstance(config.damping, str):
        name, factor = rule_and_factor(config.damping)
        return RunningDamping(factor) if name == "running" else NormalizedDamping(factor)
    return config.damping


class _MeanLoss(nn.Module):
    """The baseline: the plain mean of a loss over the batch."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, y: Tensor, *targets: Tensor) -> Tensor:
        return self.loss(y, *targets).mean()


class EnergyCurvature:
    """The control that asks how much of a Newton loss is only the size of its step: one number instead of a matrix.

    `loss` with the curvature c·I, where c is the energy of the batch's gradients.

        c = (1/N) Σ ‖∇ℓᵢ‖² / m,   ∂/∂yᵢ of its Newton loss = ∇ℓᵢ / (N (c + λ))

    c·m is the trace of the empirical Fisher, so this is a Fisher that keeps its scale and forgets all directions. It is
    an expansion like any other: `NewtonLoss` takes care of damping, of samples that are not finite and of capturing.
    `curvature` only says whether c·I is wanted.

    >>> from newton_losses import newton_target
    >>> loss = EnergyCurvature(lambda y: (3 * y).sum(1))  # gradient 3 everywhere, c = 9
    >>> newton_target(loss, torch.zeros(2, 2), curvature="fisher", damping=1.0).step
    tensor([[0.3000, 0.3000],
            [0.3000, 0.3000]])
    """

    def __init__(self, loss: Callable[..., Tensor] | Expandable) -> None:
        self.loss = loss

    def expand(self, y: Tensor, *targets: Any, curvature: CurvatureKind | None = None) -> Expansion:
        found = expand(self.loss, y, *targets, curvature=None)
        return found if curvature is None else Expansion(found.value, found.gradient, _energy(found))


def _energy(found: Expansion) -> Dense:
    kept = finite(found)
    # In float64, as the Fisher: the squares of large gradients leave float32 early.
    gradient = torch.where(kept[:, None], found.gradient, 0.0).double()
    size = gradient.shape[1]
    energy = gradient.square().sum() / (kept.sum().clamp(min=1) * size)
    return Dense(energy * torch.eye(size, dtype=gradient.dtype, device=gradient.device), semidefinite=True)
