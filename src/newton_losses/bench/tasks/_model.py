"""Making a network from a run's seed, and the function that the step calls it by."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from ..config import RunConfig
from ..seeds import stream


def make_model(build: Callable[[str], nn.Module], config: RunConfig) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The network of `build(precision)` on its device with the seed's weights, and how to call it.

    The two differ where the network is compiled: its state is that of the plain module.
    """
    # torch's initialisations draw from the global generator; it is put back afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(config.seed, "weights").initial_seed())
        model = build("bf16" if config.precision == "bf16" else "float32")
    model = model.to(config.device)
    if config.device.startswith("cuda"):
        model = cast(nn.Module, model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    model.train()
    return model, torch.compile(model) if config.compile else model
