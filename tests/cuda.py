"""What the tests on a CUDA device share."""

import contextlib
import warnings
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def no_synchronisation() -> Iterator[None]:
    """Raise at every operation that waits for the device."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it does not find all of them
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
