"""A mean of a network's weights over the steps of a run, kept beside the training, which it does not change.

At a constant learning rate a network ends somewhere in the noise of its last steps; their mean lies amid them (Polyak
and Juditsky, 1992). The share of a step grows with a power of its number (Shamir and Zhang, 2013), so that the mean is
always about a tenth of the run old, and there is no length to choose.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

# A step counts by about its number to this power: on average a step that was a tenth of all steps ago.
POWER = 8
# Weights change little in so many steps, and the mean of every tenth costs a tenth. Before the tenth it is the weights.
EVERY = 10


class WeightAverage:
    """The running average of a network's weights and statistics; `tensors` is all that it keeps."""

    def __init__(self, model: nn.Module) -> None:
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        # A counter of batches has no mean.
        self._of = {name: tensor for name, tensor in named.items() if tensor.is_floating_point()}
        self.tensors: dict[str, Tensor] = {name: tensor.detach().clone() for name, tensor in self._of.items()}

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Take in the weights after step number `step` (from 1), if it is the turn of this one."""
        if step % EVERY == 0 or step < EVERY:
            share = (POWER + 1) / (max(1, step // EVERY) + POWER)
            torch._foreach_lerp_(list(self.tensors.values()), [one.detach() for one in self._of.values()], share)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The network has the averaged weights meanwhile, and afterwards its own, to the last bit."""
        weights = [one.detach() for one in self._of.values()]
        own = [one.clone() for one in weights]
        torch._foreach_copy_(weights, list(self.tensors.values()))
        try:
            yield
        finally:
            torch._foreach_copy_(weights, own)
