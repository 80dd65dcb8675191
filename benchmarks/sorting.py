"""Sorting losses against `diffsort` 0.2.0, side by side in one run: forward and backward, and mean Hessians.

Run as `python benchmarks/sorting.py [--repetitions 30] [--device cpu]`. All candidates take turns in every
repetition, so that a busy machine slows all alike; figures are medians, and ratios are medians over the repetitions.
Operators are counted as they reach the device (views are not), with a graph of the whole step they are one launch.

On a GPU, `python benchmarks/sorting.py --device cuda --backend triton` puts the Triton kernels in our place, and
then times both back ends side by side, each with the kernels that one call launches, as torch's profiler counts them.
"""

import argparse
import statistics
import warnings
from collections.abc import Callable

import diffsort
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from newton_losses.sorting import SortingLoss, SortingNetwork
from timing import rounds_of


class CountOperators(TorchDispatchMode):
    """Counts the operators that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        aliases = [returned.alias_info for returned in function._schema.returns]
        self.count += not any(alias is not None and not alias.is_write for alias in aliases)
        return result


def candidates(count: int, n: int, steepness: float, device: str, backend: str) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(count, n, generator=generator).to(device)
    values = torch.rand(count, n, generator=generator).to(device)
    goal = torch.nn.functional.one_hot(values.argsort(-1), n).float().mT
    peer = diffsort.DiffSortNet("odd_even", n, device=device, steepness=steepness, distribution="logistic")
    loss = SortingLoss(SortingNetwork(n, steepness=steepness, backend=backend)).to(device)

    def peer_loss(inputs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy(peer(inputs)[1].clamp(0, 1), goal)

    def peer_step() -> None:
        peer_loss(scores.clone().requires_grad_()).backward()

    def our_step() -> None:
        loss(scores.clone().requires_grad_(), values).mean().backward()

    def peer_hessian() -> torch.Tensor:
        leaf = scores.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(peer_loss(leaf), leaf, create_graph=True)
        rows = [torch.autograd.grad(column.sum(), leaf, retain_graph=True)[0] for column in gradient.unbind(1)]
        return torch.stack([row.sum(0) for row in rows])

    def generic_hessian() -> torch.Tensor:
        def single(score: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return loss(score.unsqueeze(0), value.unsqueeze(0)).squeeze(0)

        return torch.func.vmap(torch.func.hessian(single))(scores, values).mean(0)

    return {
        "diffsort, forward and backward": peer_step,
        "ours, forward and backward": our_step,
        "diffsort, mean Hessian by gradient elements": peer_hessian,
        "ours, mean Hessian by vmapped torch.func": generic_hessian,
        "ours, expand with Hessian": lambda: loss.expand(scores, values, curvature="hessian"),
        "ours, expand with empirical Fisher": lambda: loss.expand(scores, values, curvature="fisher"),
    }


def back_ends(count: int, n: int, steepness: float, device: str) -> dict[str, Callable[[], object]]:
    """Our own step and Hessian by each back end of CUDA."""
    return {
        f"{backend}{name.removeprefix('ours')}": function
        for backend in ("torch", "triton")
        for name, function in candidates(count, n, steepness, device, backend).items()
        if name in ("ours, forward and backward", "ours, expand with Hessian")
    }


def launches(function: Callable[[], object]) -> int:
    """The kernels that one call puts on a GPU; copies and fills by the driver are not counted."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        function()
        torch.cuda.synchronize()
    names = [event.name for event in recorded.events() if event.device_type == DeviceType.CUDA]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in names)


def compare_back_ends(functions: dict[str, Callable[[], object]], repetitions: int, device: str) -> None:
    """Print time and launches of each, and how much faster Triton is."""
    taken = rounds_of(functions, repetitions, 2, device)
    for name, function in functions.items():
        print(f"{name:<46} {1e3 * statistics.median(taken[name]):8.2f} ms  {launches(function):6d} kernels")
    for name in functions:
        if name.startswith("torch"):
            rounds = zip(taken[name], taken[name.replace("torch", "triton")], strict=True)
            print(
                f"{name.removeprefix('torch, ')}: triton {statistics.median(a / b for a, b in rounds):.1f} times faster"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--n", type=int, default=10)
    parser.add_argument("--steepness", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="auto", help="of the network: auto, numba, triton or torch")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*torch.jit")
    torch.set_num_threads(arguments.threads)
    functions = candidates(arguments.count, arguments.n, arguments.steepness, arguments.device, arguments.backend)
    taken = rounds_of(functions, arguments.repetitions, 2, arguments.device)
    print(f"logistic odd-even network, N={arguments.count}, n={arguments.n}, {arguments.device}")
    for name, function in functions.items():
        with CountOperators() as counter:
            function()
        print(f"{name:<46} {1e3 * statistics.median(taken[name]):8.2f} ms  {counter.count:6d} operators")

    def ratio(slow: str, fast: str) -> float:
        return statistics.median(a / b for a, b in zip(taken[slow], taken[fast], strict=True))

    peer_step, our_step, peer_hessian, _, hessian, *_ = functions
    print(f"forward and backward: {ratio(peer_step, our_step):.1f} times faster than diffsort (wanted: 2)")
    print(f"mean Hessian: {ratio(peer_hessian, hessian):.1f} times faster than through diffsort (wanted: 10)")
    print(f"mean Hessian: {ratio(hessian, our_step):.1f} times its own forward and backward (wanted: at most 4)")
    if arguments.device.startswith("cuda") and arguments.backend == "triton":
        both = back_ends(arguments.count, arguments.n, arguments.steepness, arguments.device)
        compare_back_ends(both, arguments.repetitions, arguments.device)


if __name__ == "__main__":
    main()
