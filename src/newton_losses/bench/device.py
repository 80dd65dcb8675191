"""The device of a run, beside its tensors: being on it. Which one it is, `config.resolve_device` finds."""

import contextlib

import torch


def on_device(name: str) -> contextlib.AbstractContextManager[object]:
    """A context in which `name` is the device of everything that is not told one; nothing on a CPU.

    Graphs, streams, events and the handles of libraries belong to torch's current CUDA device, wherever the tensors
    lie. The loop enters this once around all of its runs: nothing beneath it has to name a device for these.

    >>> with on_device("cpu"):
    ...     torch.zeros(()).device
    device(type='cpu')
    """
    return torch.cuda.device(name) if device_kind(name) == "cuda" else contextlib.nullcontext()


def device_kind(name: str) -> str:
    """A device without its number.

    >>> device_kind("cuda:1"), device_kind("cpu")
    ('cuda', 'cpu')
    """
    return name.partition(":")[0]
