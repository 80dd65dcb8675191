"""All randomness of a run, from its one seed: separate streams, so that no arm disturbs another's batches."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

# Batches, noise and evaluations have streams of their own: the baseline, Fisher and Hessian arms of one seed
# see the same batches and the same evaluation sets, however much noise their losses draw.
STREAMS = ("weights", "batches", "noise", "evaluation")


def stream(seed: int, name: str, device: str | torch.device = "cpu") -> torch.Generator:
    """The generator of one stream of a seed.

    >>> torch.rand(1, generator=stream(0, "noise")) == torch.rand(1, generator=stream(0, "batches"))
    tensor([False])
    """
    words = np.random.SeedSequence([seed, STREAMS.index(name)]).generate_state(1, np.uint64)
    # torch takes seeds up to 2⁶³ on every device.
    return torch.Generator(device).manual_seed(int(words[0] >> np.uint64(1)))


@contextlib.contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Draw a network's weights from the seed's stream: torch initialises from its global generator."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would seed all GPUs and not put them back.
        torch.default_generator.manual_seed(stream(seed, "weights").initial_seed())
        yield
