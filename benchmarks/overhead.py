"""What a Newton loss adds to the plain loss in a user's loop: forward and backward of the loss alone, no network.

    PYTHONPATH=src python benchmarks/overhead.py                                 # CPU, one and two threads, eager
    PYTHONPATH=src python benchmarks/overhead.py --device cuda --modes eager captured compiled
    PYTHONPATH=src python benchmarks/overhead.py --device cuda --modes compiled --wait    # measure after Enter
    PYTHONPATH=src python benchmarks/overhead.py --losses pairwise --sizes 128x10 --rounds 200 --threads 1 --busy

Each row: operations (kernels on CUDA, operators of torch on a CPU, where compiled code has none), median milliseconds,
and the median ratio to the plain loss in the same round. Arms take turns within a round, so that a busy machine slows
all of them alike, unless one takes so long that others have their turn in it: --busy counts the processor's time
instead, on a CPU. "beyond" is the number of operations beyond those of the plain loss. The floors are what autograd
alone takes for the same derivatives, without a curvature, a solve or a check.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import newton_losses as nl
from timing import rounds_of

Step = Callable[[], object]
SIZES = ((128, 10), (128, 100), (1024, 10), (64, 1000))
# The Hessian of a pairwise loss at m = 1000 has N·m³ = 6e10 elements in its intermediates.
LARGEST_HESSIAN = 128


def pairwise(y: Tensor, target: Tensor) -> Tensor:
    """Sigmoid loss of all pairs in the wrong order, one value per list."""
    wanted = torch.sign(target[:, :, None] - target[:, None, :])
    return torch.nn.functional.softplus(-wanted * (y[:, :, None] - y[:, None, :])).mean((1, 2))


def ragged(y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """The same for lists of different lengths, up to m."""
    wanted = torch.sign(target[:, :, None] - target[:, None, :]) * (mask[:, :, None] & mask[:, None, :])
    pairs = torch.nn.functional.softplus(-wanted * (y[:, :, None] - y[:, None, :])) * wanted.abs()
    return pairs.sum((1, 2)) / mask.sum(1).square()


def lists(y: Tensor, target: Tensor) -> Tensor:
    """Softmax cross-entropy between scores and relevance, as in ListNet."""
    return -(torch.softmax(target, 1) * torch.log_softmax(y, 1)).sum(1)


def black_box() -> nl.smoothing.SmoothedLoss:
    """Hard ranks, smoothed with ten samples."""
    return nl.smoothing.SmoothedLoss(
        lambda y, target: (y.argsort(-1).argsort(-1) - target.argsort(-1).argsort(-1)).abs().float().mean(-1),
        num_samples=10,
    )


LOSSES: dict[str, Callable[[], Any]] = {
    "pairwise": lambda: pairwise,
    "ragged": lambda: ragged,
    "lists": lambda: lists,
    "black-box": black_box,
    "sorting": lambda: nl.sorting.SortingLoss("softsort", temperature=0.5),
}
LARGEST = {"sorting": 128, "ragged": 128, "black-box": 1000}


@dataclass(frozen=True)
class Problem:
    loss: Any
    y: Tensor
    target: Tensor
    mask: Tensor | None = None

    def arms(self) -> Iterator[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
        """The plain loss first, then every way to make it a Newton loss."""
        loss, masked = self.loss, {} if self.mask is None else {"mask": self.mask}
        plain = partial(loss, **masked)
        yield "plain", lambda y, target: _mean(plain(y, target))
        yield "fisher", partial(nl.NewtonLoss(loss, "fisher"), **masked)
        # As fast as the one before: checks are over.
        yield "unchecked", partial(nl.NewtonLoss(loss, "fisher", check=False, on_nonfinite="ignore"), **masked)
        yield "fisher 0.1", partial(nl.NewtonLoss(loss, "fisher", 0.1), **masked)
        if masked:
            yield "exchangeable", partial(nl.NewtonLoss(loss, "fisher", exchangeable=True), **masked)
        yield "sample", partial(nl.NewtonLoss(loss, "sample"), **masked)
        yield "inject_fisher", lambda y, target: _mean(plain(nl.inject_fisher(y), target))
        if self.y.shape[1] <= LARGEST_HESSIAN:
            yield "hessian", partial(nl.NewtonLoss(loss, "hessian"), **masked)

    def floors(self) -> Iterator[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
        """What autograd alone takes for the same derivatives: no curvature, no solve, no check, no value."""
        loss = self.loss if self.mask is None else partial(self.loss, mask=self.mask)
        yield "fisher floor", partial(_floor, loss, second=False)
        has_second = not isinstance(self.loss, nl.smoothing.SmoothedLoss)  # by autograd; it estimates its Hessian
        if has_second and self.y.shape[1] <= LARGEST_HESSIAN:
            yield "hessian floor", partial(_floor, loss, second=True)

    def steps(self, mode: str) -> dict[str, Step]:
        arms = chain(self.arms(), () if mode == "compiled" else self.floors())  # no compiler takes autograd.grad
        return {name: self._step(function, mode) for name, function in arms}

    def _step(self, function: Callable[[Tensor, Tensor], Tensor], mode: str) -> Step:
        y = self.y.clone().requires_grad_()

        def step() -> None:
            y.grad = None
            function(y, self.target).backward()

        if mode == "eager":
            return step
        step()  # the first call, which checks the loss
        if mode == "compiled":
            torch._dynamo.config.recompile_limit = 1000  # one class in many arms
            compiled = torch.compile(function, fullgraph=True)

            def run() -> None:
                y.grad = None
                compiled(y, self.target).backward()

            return run
        return _captured(step)


def _mean(value: Tensor) -> Tensor:
    return value.mean()


def _floor(loss: Any, y: Tensor, target: Tensor, *, second: bool) -> Tensor:
    """A number whose gradient is the loss's own, by way of one at a leaf, as a Newton loss has to take it."""
    leaf = y.detach().requires_grad_()
    value = loss(leaf, target)
    (gradient,) = torch.autograd.grad(value, leaf, torch.ones_like(value), create_graph=second)
    if second:  # along every output, in one pass
        count, size = y.shape
        along = torch.eye(size, device=y.device)[:, None].expand(-1, count, -1)
        torch.autograd.grad(gradient, leaf, along, is_grads_batched=True)
    return torch.dot(y.reshape(-1), gradient.detach().reshape(-1))


def _captured(step: Step) -> Step:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


class _Counted(TorchDispatchMode):
    """Counts operators, but for those that only look at a tensor in another way."""

    count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), options: Any = None) -> Any:
        self.count += not any(result.alias_info is not None for result in operator._schema.returns)
        return operator(*given, **(options or {}))


def operations(step: Step, mode: str, device: str) -> int | None:
    """How many there are; `None` on a CPU for compiled code, which is not made of operators."""
    step()
    if device == "cpu" and mode == "compiled":
        return None
    if device == "cpu":
        with _Counted() as counted:
            step()
        return counted.count
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)


@dataclass(frozen=True)
class Table:
    """The arms of one problem in one mode, ready to be timed, and how many operations each of them is."""

    title: str
    steps: dict[str, Step]
    counts: dict[str, int | None]

    @classmethod
    def of(cls, title: str, problem: Problem, mode: str, device: str) -> "Table":
        steps = problem.steps(mode)
        return cls(title, steps, {name: operations(step, mode, device) for name, step in steps.items()})

    def measure(self, rounds: int, device: str, clock: Callable[[], float]) -> None:
        taken = rounds_of(self.steps, rounds, warm_up=5, device=device, clock=clock)
        for name, times in taken.items():
            ratio = statistics.median(a / b for a, b in zip(times, taken["plain"], strict=True))
            milliseconds = 1000 * statistics.median(times)
            print(
                f"{self.title:32} {name:14} {self._operations(name)} {milliseconds:9.3f} ms {ratio:7.2f} ×", flush=True
            )

    def _operations(self, name: str) -> str:
        count, plain = self.counts[name], self.counts["plain"]
        return f"{'':32}" if count is None or plain is None else f"{count:6d} operations {count - plain:+6d} beyond"


def tables(arguments: argparse.Namespace) -> Iterator[Table]:
    for name in arguments.losses:
        for size in arguments.sizes:
            count, outputs = map(int, size.split("x"))
            if outputs > LARGEST.get(name, outputs):
                continue
            torch.manual_seed(0)
            y, target = torch.randn(2, count, outputs, device=arguments.device)
            lengths = torch.randint(2, outputs + 1, (count, 1), device=arguments.device)
            mask = torch.arange(outputs, device=arguments.device) < lengths if name == "ragged" else None
            problem = Problem(LOSSES[name](), y, target, mask)
            for mode in arguments.modes:
                yield Table.of(f"{name} {size} {mode}", problem, mode, arguments.device)


def two_threads(arguments: list[str]) -> None:
    """The same in a process with two threads: torch takes its thread pools as they are when it starts."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, __file__, *arguments, "--threads", "2"], env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--modes", nargs="+", default=["eager"], choices=["eager", "compiled", "captured"])
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=list(LOSSES))
    parser.add_argument("--sizes", nargs="+", default=[f"{n}x{m}" for n, m in SIZES], help="N x m, as 128x10")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, choices=[1, 2], help="on a CPU; both, if not given")
    parser.add_argument("--busy", action="store_true", help="count the processor's time and not the clock's")
    parser.add_argument("--wait", action="store_true", help="get everything ready, then wait for a line of input")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        torch.set_num_threads(arguments.threads or 1)
    clock = time.process_time if arguments.busy else time.perf_counter
    where = arguments.device if arguments.device != "cpu" else f"cpu, {torch.get_num_threads()} thread(s)"
    print(f"{where}, torch {torch.__version__}", flush=True)
    found = tables(arguments)
    if arguments.wait:  # captured and compiled, so that whatever else runs on the machine can end first
        found = iter(list(found))
        print("ready; press Enter to measure", flush=True)
        input()
    for one in found:
        one.measure(arguments.rounds, arguments.device, clock)
    if arguments.device == "cpu" and arguments.threads is None:
        two_threads(sys.argv[1:])


if __name__ == "__main__":
    main()
