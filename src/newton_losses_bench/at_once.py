"""How many seeds of a command train at the same time: what was measured, the choice that follows, and a full device.

How they do it is in `turns.py` and `loop.py`.
"""

import gc

import torch

from newton_losses.errors import ArgumentError

from .config import RunConfig
from .device import device_kind
from .ranks import started_by_torchrun
from .settings import option
from .store import RunError

# On CUDA with a captured graph, where nobody says how many. Steps a second of all of them together over those of one
# run alone, on an H200 in bf16 (benchmarks/seeds_at_once.py; results/h200/benchmarks.txt):
#   sorting, SoftSort n=5:   2 at once 1.32,   4 at once 1.48
#   paths, Fenchel-Young:    2 at once 1.34,   4 at once 1.31
BY_ITSELF = {"sorting": 4, "paths": 2}
# What torch can keep apart on one GPU.
STREAMS = 32


def choose_at_once(asked: int | None, config: RunConfig, seeds: int) -> tuple[int, str | None]:
    """How many runs train at the same time, and why not as many as were asked for; `None` has asked for nothing.

    >>> from newton_losses_bench.config import SortingConfig
    >>> choose_at_once(None, SortingConfig(algorithm="softsort", device="cpu").resolved(), 10)
    (1, None)
    """
    if asked is not None:
        _check(asked, seeds)
    reason = _why_one(config)
    if reason is None:
        return min(BY_ITSELF.get(config.task, 1) if asked is None else asked, seeds), None
    return 1, f"The seeds train one after another: {reason}." if asked is not None and asked > 1 else None


def _check(asked: int, seeds: int) -> None:
    if not 1 <= asked <= STREAMS:
        raise ArgumentError(
            f"--at-once {asked}: so many of the --seeds train at the same time, from 1 (one after another) to "
            f"{STREAMS} (a GPU's streams in torch)."
        )
    if asked > 1 and seeds == 1:
        raise ArgumentError(
            f"--at-once {asked}: this is one run. Give several seeds, as in --seeds 0-{asked - 1}, or leave it out."
        )


def _why_one(config: RunConfig) -> str | None:
    if started_by_torchrun():
        return "ranks wait for each other in every step of a run, and have one run at a time"
    if device_kind(config.device) != "cuda":
        return "a step of one run keeps a CPU busy already"
    if not config.graph:
        return "without a captured graph it is the host that limits the pace, and there is one host"
    return None


def full_device(config: RunConfig, at_once: int) -> RunError:
    """A device has no memory left for so many runs, or for this one alone: what is to be done, in a sentence."""
    if at_once > 1:
        return RunError(
            f"The memory of {config.device} does not hold {at_once} runs at the same time. Give the same command again "
            f"with --at-once {at_once // 2}: what has been saved goes on."
        )
    sizes = [option(name) for name in ("batch_size", "n", "num_samples") if getattr(config, name, None) is not None]
    return RunError(
        f"The memory of {config.device} does not hold this run. A smaller {' or '.join(sizes)} needs less, and is "
        "another run, with a folder of its own. What was saved of this one is kept: where more memory is free, the "
        "same command goes on with it."
    )


def give_back_memory(device: str) -> bool:
    """Let go of what runs that have ended had on the device, for those that follow; whether that was possible."""
    # An error holds the frames that it came through, and with them a network and its graphs, in a circle.
    gc.collect()
    if device_kind(device) == "cuda":
        try:
            torch.cuda.empty_cache()
        except RuntimeError:  # a capture that was broken off can count as under way for ever
            return False
    return True
