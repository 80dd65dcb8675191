"""What a run may leave behind in its process, and putting it back for the next one."""

import gc
from typing import Any

import torch

_FLAGS: tuple[tuple[Any, str], ...] = (
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cuda.matmul, "allow_tf32"),
)


class FreshProcess:
    """The state of a process in which nothing has been run yet.

    A run puts back the flags that it sets, and draws from generators of its own. This is for what it might forget,
    and for memory: the graphs that it has captured hold their device memory until they are collected.
    """

    def __init__(self) -> None:
        self._flags = [getattr(owner, name) for owner, name in _FLAGS]
        self._generator = torch.get_rng_state()
        self._threads = torch.get_num_threads()
        self._dtype = torch.get_default_dtype()
        self._compiled: list[Any] | None = None

    def make_room(self, configuration: dict[str, Any]) -> None:
        """Before a compiled run: forget the code for networks of other shapes than this one's.

        Of the same shape it is of use. Of others it would add up: the compiler keeps some versions of a function, and
        what comes after those it leaves as it is.
        """
        if not configuration.get("compile"):
            return
        shape = [configuration.get(name) for name in ("task", "size", "train_maps", "batch_size", "precision")]
        if self._compiled not in (None, shape):
            torch.compiler.reset()
        self._compiled = shape

    def restore(self) -> None:
        """Make the process as it was, as far as a run can tell."""
        gc.collect()
        for (owner, name), value in zip(_FLAGS, self._flags, strict=True):
            setattr(owner, name, value)
        torch.set_rng_state(self._generator)
        if torch.get_num_threads() != self._threads:  # setting it, to whatever, also forbids MKL to choose by itself
            torch.set_num_threads(self._threads)
        torch.set_default_dtype(self._dtype)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(torch.initial_seed())
            for device in range(torch.cuda.device_count()):
                # Waiting for one that was not used would take memory on it.
                if torch.cuda.memory_reserved(device):
                    torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
