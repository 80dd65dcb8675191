"""Making a network from a run's seed."""

from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from newton_losses._random import seeded

from ..batch_norm import share_statistics
from ..config import RunConfig
from ..random_streams import stream
from ..ranks import current_ranks


def make_model(build: Callable[[str], nn.Module], config: RunConfig) -> nn.Module:
    """The network of `build(precision)` on its device, with the seed's weights, in training mode."""
    # torch's initialisations draw from the global generator.
    with seeded(stream(config.seed, "weights").initial_seed()):
        model = build("bf16" if config.precision == "bf16" else "float32")
    model = share_statistics(model.to(config.device), current_ranks())
    if config.device.startswith("cuda"):
        model = cast(nn.Module, model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    return model.train()
