"""What the tests on a CUDA device share."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


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


def capture(function: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """Run once outside of a graph, to compile, then capture; returns the graph and its outputs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function()
    return graph, outputs
