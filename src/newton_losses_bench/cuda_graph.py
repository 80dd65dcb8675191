"""Running a training step as one CUDA graph: the host launches it as a whole instead of kernel by kernel."""

from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor

# Enough for the compiler, for the choice of convolution algorithms and for lazily made handles.
WARM_UP_STEPS = 3


class CapturedStep:
    """`function(size)` for each of the `sizes`, captured once, on the current device, and replayed.

    `state` is every tensor that the function changes and reads again in the next call. They and the `generators` are
    put back after capturing, so that the warm-up leaves no trace in the results. All tensors must keep their place in
    memory: change them in place only.
    """

    def __init__(
        self,
        function: Callable[[int], None],
        sizes: Iterable[int],
        state: Iterable[Tensor],
        generators: Iterable[torch.Generator],
    ) -> None:
        undo = _Undo(list(state), list(generators))
        pool = torch.cuda.graph_pool_handle()
        stream = _capture_stream(torch.cuda.current_stream().device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        for size in sizes:
            _warm_up(function, size, undo, stream)
            graph = torch.cuda.CUDAGraph()
            for generator in undo.generators:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                function(size)
            self._graphs[size] = graph
        undo()

    def __call__(self, size: int) -> None:
        self._graphs[size].replay()


class _Undo:
    """Puts tensors and generators back, in place, as they were when this was made."""

    def __init__(self, tensors: list[Tensor], generators: list[torch.Generator]) -> None:
        self.generators = generators
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._seeds = [generator.get_state() for generator in generators]

    @torch.no_grad()
    def __call__(self) -> None:
        for tensor, value in self._tensors:
            tensor.copy_(value)
        for generator, seed in zip(self.generators, self._seeds, strict=True):
            generator.set_state(seed)


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """A device's one stream for capturing.

    Not torch's own for this purpose: warming up has to happen on the same stream, because cuBLAS keeps its scratch
    memory by stream. And not a new one for each run: that memory is never given back, and a process may do many runs.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _warm_up(function: Callable[[int], None], size: int, undo: _Undo, stream: torch.cuda.Stream) -> None:
    """A few calls on the stream that is to be captured, each from the same state.

    Otherwise the state could run off: an epoch's order has an end.
    """
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            function(size)
            undo()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
