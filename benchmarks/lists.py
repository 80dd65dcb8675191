"""Ranks, soft sorts, top-k, NDCG and Newton losses of lists beside peers, forward and backward, in one run.

Run as `python benchmarks/lists.py [--rounds 10] [--sizes 10 100 1000 100000] [--only ranks]`, and with
`--names laplace torchsort` for some of the candidates. All take turns in every round, so that a busy machine slows all
alike. Figures are how long a candidate takes compared with the first one, our `"laplace"`, in the same round, median
over the rounds; what that takes itself is in milliseconds. Peers that are not installed are named as such: diffsort,
difftopk, fast-soft-sort, softtorch, torchsort (which needs a compiler), allRank (which needs torchvision). A candidate
is left out at sizes that it cannot hold, or that would take minutes.
"""

import argparse
import importlib
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from newton_losses import NewtonLoss
from newton_losses.sorting import (
    NDCGLoss,
    PartialOrderLoss,
    SpearmanLoss,
    TopKLoss,
    soft_rank,
    soft_sort,
    soft_topk,
    tied_ranks,
)
from timing import rounds_of, to_first

Function = Callable[[Tensor], Tensor]
PEERS = {
    "diffsort": "diffsort",
    "difftopk": "difftopk",
    "fast-soft-sort": "fast_soft_sort",
    "torchsort": "torchsort",
    "softtorch": "softtorch",
    "allRank": "allrank.models.losses.neuralNDCG",
}
# Samples of the top-k loss, which is a loss of classifiers.
SAMPLES = 32


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


def ordered(n: int) -> dict[str, Function]:
    found: dict[str, Function] = {"ours, laplace": lambda x: soft_sort(x, "laplace", temperature=0.1)}
    if n <= 1000:
        found["ours, softsort"] = lambda x: soft_sort(x, "softsort")
    if fast := peer("fast_soft_sort.pytorch_ops"):
        found["fast-soft-sort"] = lambda x: fast.soft_sort(x[None], regularization_strength=0.1)[0]
    if torchsort := peer("torchsort"):
        found["torchsort"] = lambda x: torchsort.soft_sort(x[None], regularization_strength=0.1)[0]
    return found


def top_weights(n: int) -> dict[str, Function]:
    k = max(1, n // 10)
    found: dict[str, Function] = {"ours, laplace": lambda x: soft_topk(x, k, "laplace", temperature=0.1)}
    if n <= 1000:
        found["ours, softsort"] = lambda x: soft_topk(x, k, "softsort")
    if n <= 100 and (difftopk := peer("difftopk")):
        network = difftopk.DiffTopkNet("odd_even", n, k, sparse=False, steepness=10.0, distribution="logistic")
        found["difftopk, odd-even"] = lambda x: network(x[None])[1][0].sum(-1)
    return found


def top_losses(n: int) -> dict[str, Function]:
    """Half top-1, half top-5 accuracy of a classifier with n classes, of which the 16 largest are looked at."""
    labels = torch.arange(SAMPLES) % n
    several = {1: 0.5, 5: 0.5}
    found: dict[str, Function] = {}
    for name in ("laplace", "neuralsort", "softsort", "logistic"):
        ours = TopKLoss(several, name, preselect=16)
        found[f"ours, {name}"] = lambda x, loss=ours: loss(x, labels).mean()
    if n > 16 and (difftopk := peer("difftopk")):
        for method in ("neuralsort", "softsort", "odd_even", "bitonic__non_sparse"):
            law = None if method.endswith("sort") else "logistic"
            loss = difftopk.TopKCrossEntropyLoss(method, 10.0, [0.5, 0, 0, 0, 0.5], n, 16, law, top1_mode="sort")
            found[f"difftopk, {method}"] = lambda x, loss=loss: loss(x, labels)
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


def newton(n: int) -> dict[str, Function]:
    """What curvature costs: in closed form, and from products with 16 probes where a loss brings no closed form."""
    values = torch.randint(0, 5, (1, n), generator=torch.Generator().manual_seed(1))
    found: dict[str, Function] = {}
    bounds = tied_ranks(values)
    for name, loss, targets in (
        ("Spearman", SpearmanLoss("laplace"), (values,)),
        ("NDCG@10", NDCGLoss("laplace", k=min(10, n)), (values,)),
        ("partial order", PartialOrderLoss("laplace"), bounds),
    ):
        hessian, fisher = NewtonLoss(loss, curvature="hessian"), NewtonLoss(loss, "fisher")
        probes = NewtonLoss(
            lambda y, *t, loss=loss: loss(y, *t), exchangeable=True, matrix_free=True, curvature="hessian"
        )
        kinds = {"": loss, ", Fisher": fisher, ", Hessian": hessian, ", Hessian by probes": probes}
        for kind, one in kinds.items():
            found[f"{name}{kind}"] = lambda x, one=one, targets=targets: one(x[None], *targets).sum()
    return found


def drawn(title: str, n: int) -> Tensor:
    shape = (SAMPLES, n) if title == "top-k loss" else (n,)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


GROUPS = {
    "ranks": ranks,
    "sorted": ordered,
    "top n/10": top_weights,
    "top-k loss": top_losses,
    "NDCG loss": graded,
    "Newton loss": newton,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000, 100_000])
    parser.add_argument("--only", choices=GROUPS, nargs="+", default=list(GROUPS))
    parser.add_argument("--names", nargs="+", default=[""], help="parts of the names of the candidates to time")
    arguments = parser.parse_args()
    missing = [name for name, module in PEERS.items() if peer(module) is None]
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; not installed: {', '.join(missing) or 'none'}"
    )
    for title in arguments.only:
        for n in arguments.sizes:
            if title == "top-k loss" and n < 16:
                continue
            scores = drawn(title, n)

            def step(function: Function, scores: Tensor = scores) -> None:
                leaf = scores.clone().requires_grad_()
                function(leaf).square().sum().backward()

            functions = {
                name: lambda f=function: step(f)
                for name, function in GROUPS[title](n).items()
                if any(part in name for part in arguments.names)
            }
            if not functions:
                continue
            taken = rounds_of(functions, arguments.rounds, warm_up=2)
            base = 1000 * statistics.median(next(iter(taken.values())))
            print(f"\n{title}, n = {n:,}: {base:.3f} ms for the first")
            for name, ratio in to_first(taken).items():
                print(f"  {name:32s} {ratio:8.2f}", flush=True)


if __name__ == "__main__":
    main()
