"""Ranks, top-k weights and NDCG losses of lists beside peers, forward and backward, side by side in one run.

Run as `python benchmarks/lists.py [--rounds 10] [--sizes 10 100 1000 100000]`. All candidates take turns in every
round, so that a busy machine slows all alike; figures are medians in milliseconds for one list. Peers that are not
installed are named as such: diffsort, fast-soft-sort, softtorch, torchsort (which needs a compiler), allRank (which
needs torchvision). A candidate is left out at sizes that it cannot hold, or that would take minutes.
"""

import argparse
import importlib
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from newton_losses.sorting import NDCGLoss, soft_rank, soft_topk
from timing import rounds_of

Function = Callable[[Tensor], Tensor]


def peer(name: str) -> Any:
    """A peer's module, or `None` where it is not installed or does not import."""
    try:
        return importlib.import_module(name)
    except Exception:
        return None


def ranks(n: int) -> dict[str, Function]:
    found: dict[str, Function] = {"ours, laplace": lambda x: soft_rank(x, "laplace", temperature=0.1)}
    if n <= 1000:
        found["ours, softsort"] = lambda x: soft_rank(x, "softsort")
        found["ours, neuralsort"] = lambda x: soft_rank(x, "neuralsort")
    if n <= 100:
        found["ours, logistic network"] = lambda x: soft_rank(x, "logistic")
    if n <= 100 and (diffsort := peer("diffsort")):
        network = diffsort.DiffSortNet("odd_even", n, steepness=10.0, distribution="logistic")
        steps = torch.arange(float(n))
        found["diffsort"] = lambda x: (network(x[None])[1][0] * steps).sum(-1)
    if fast := peer("fast_soft_sort.pytorch_ops"):
        found["fast-soft-sort"] = lambda x: fast.soft_rank(x[None], regularization_strength=0.1)[0]
    if torchsort := peer("torchsort"):
        found["torchsort"] = lambda x: torchsort.soft_rank(x[None], regularization_strength=0.1)[0]
    if n <= 1000 and (softtorch := peer("softtorch")):
        found["softtorch"] = lambda x: softtorch.rank(x, softness=0.1)
    return found


def top_weights(n: int) -> dict[str, Function]:
    k = max(1, n // 10)
    found: dict[str, Function] = {"ours, laplace": lambda x: soft_topk(x, k, "laplace", temperature=0.1)}
    if n <= 1000:
        found["ours, softsort"] = lambda x: soft_topk(x, k, "softsort")
    return found


def graded(n: int) -> dict[str, Function]:
    grades = torch.randint(0, 5, (n,), generator=torch.Generator().manual_seed(1))
    found: dict[str, Function] = {"ours, laplace": lambda x: NDCGLoss("laplace", temperature=0.1)(x, grades)}
    if n <= 1000:
        found["ours, softsort"] = lambda x: NDCGLoss("softsort")(x, grades)
        found["ours, neuralsort"] = lambda x: NDCGLoss("neuralsort")(x, grades)
        if losses := peer("allrank.models.losses.neuralNDCG"):
            found["allRank NeuralNDCG"] = lambda x: losses.neuralNDCG(x[None], grades[None].float())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000, 100_000])
    arguments = parser.parse_args()
    modules = {"diffsort": "diffsort", "fast-soft-sort": "fast_soft_sort", "torchsort": "torchsort",
               "softtorch": "softtorch", "allRank": "allrank.models.losses.neuralNDCG"}  # fmt: skip
    missing = [name for name, module in modules.items() if peer(module) is None]
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; not installed: {', '.join(missing) or 'none'}"
    )
    for title, make in (("ranks", ranks), ("top n/10", top_weights), ("NDCG loss", graded)):
        for n in arguments.sizes:
            scores = torch.randn(n, generator=torch.Generator().manual_seed(0))

            def step(function: Function, scores: Tensor = scores) -> None:
                leaf = scores.clone().requires_grad_()
                function(leaf).square().sum().backward()

            functions = {name: lambda f=function: step(f) for name, function in make(n).items()}
            taken = rounds_of(functions, arguments.rounds, warm_up=2)
            print(f"\n{title}, n = {n:,}")
            for name, times in taken.items():
                print(f"  {name:24s} {1000 * statistics.median(times):10.3f} ms", flush=True)


if __name__ == "__main__":
    main()
