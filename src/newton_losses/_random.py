"""Torch's global random state, borrowed with a seed and put back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed what is drawn on the CPU, and on `device` if that is a GPU; both are as they were at the end.

    Not by `torch.manual_seed`: that seeds all GPUs, and nothing would put back the others.

    >>> with seeded(0):
    ...     torch.rand(())
    tensor(0.4963)
    """
    gpu = device if device is not None and device.type == "cuda" else None
    with torch.random.fork_rng(devices=[] if gpu is None else [gpu]):
        torch.default_generator.manual_seed(seed)
        if gpu is not None:
            index = torch.cuda.current_device() if gpu.index is None else gpu.index
            torch.cuda.default_generators[index].manual_seed(seed)
        yield
