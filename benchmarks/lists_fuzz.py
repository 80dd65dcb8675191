"""Random lists of every kind: no value or gradient is NaN or infinite, and what is masked gets exactly nothing.

Run as `python benchmarks/lists_fuzz.py [--cases 100000] [--seed 0] [--processes 16] [--hessian 0.2]`. A case is one
list: empty, of one item, all tied, all masked, sorted the wrong way, with scores up to 10⁶ or down to 10⁻³⁰, with NaN
where nothing exists. Each batch of lists goes through every loss as it is and as a Newton loss, and through the soft
operations. The Newton loss takes the Hessian in the given share of the batches and one of the Fishers in the others;
one batch in four takes the outputs as they are stored instead of as a set. Processes share the cases, with a seed each.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from newton_losses import NewtonLoss
from newton_losses.curvature import CurvatureKind
from newton_losses.sorting import (
    LaplaceSort,
    ListNetLoss,
    NDCGLoss,
    NeuralSort,
    PairwiseLogisticLoss,
    PartialOrderLoss,
    SoftSort,
    SortingLoss,
    SortingNetwork,
    SpearmanLoss,
    TopKLoss,
    kendall,
    mean_reciprocal_rank,
    ndcg,
    soft_rank,
    soft_sort,
    soft_topk,
    spearman,
    tied_ranks,
)

LISTS = 500


def draw(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Scores with NaN in the padding, values and mask, `(LISTS, n)`."""
    n = int(torch.randint(1, 9, (), generator=generator))
    scores = torch.randn(LISTS, n, generator=generator)
    values = torch.randint(0, 5, (LISTS, n), generator=generator)
    scale = 10 ** (torch.rand(LISTS, 1, generator=generator) * 8 - 2)
    scale[::10] = 1e-30
    scores = scores * scale
    mask = torch.rand(LISTS, n, generator=generator) < torch.rand(LISTS, 1, generator=generator)
    mask[1::10] = torch.arange(n) == 0
    mask[2::10] = False
    mask[3::10] = True
    scores[4::10] = scores[4::10, :1]
    scores[5::10] = scores[5::10].round(decimals=0)
    scores[6::10] = scores[6::10].sign() * 1e6
    scores[7::10] = -1e6 * values[7::10].float()
    values[8::10] = 0
    return torch.where(mask, scores, torch.nan), values, mask


def relaxation(generator: torch.Generator) -> NeuralSort | SoftSort | LaplaceSort | SortingNetwork:
    kind = int(torch.randint(0, 5, (), generator=generator))
    sharpness = float(10 ** (torch.rand((), generator=generator) * 4 - 1))
    if kind == 0:
        return NeuralSort(1 / sharpness)
    if kind == 1:
        return SoftSort(1 / sharpness)
    if kind == 2:
        return SoftSort(1 / sharpness, p=2)
    return LaplaceSort(1 / sharpness) if kind == 3 else SortingNetwork(None, "odd_even", "cauchy", sharpness)


def losses(
    generator: torch.Generator, scores: Tensor, values: Tensor, mask: Tensor
) -> Iterator[tuple[nn.Module, tuple]]:
    """One loss of each kind, with its targets."""
    order = relaxation(generator)
    yield SortingLoss(order), (values,)
    yield SpearmanLoss(order), (values,)
    yield NDCGLoss(order, k=min(3, scores.shape[-1])), (values,)
    yield PartialOrderLoss(order, descending=True), tied_ranks(values, mask=mask)
    yield TopKLoss({1: 0.5, min(2, scores.shape[-1]): 0.5}, order), (mask.int().argmax(-1),)
    yield ListNetLoss(), (values,)
    yield PairwiseLogisticLoss(), (values,)


def problem(name: str, value: Tensor, gradient: Tensor, mask: Tensor) -> str | None:
    if not value.isfinite().all():
        return f"{name}: a value is not finite"
    if not gradient.isfinite().all():
        return f"{name}: a gradient is not finite"
    return f"{name}: padding has a gradient" if (gradient[~mask] != 0).any() else None


def check(generator: torch.Generator, hessian: float) -> list[str]:
    """What is wrong with one batch of lists through everything."""
    first, second, third = torch.rand(3, generator=generator).tolist()
    fisher: CurvatureKind = "sample" if second < 0.3 else "fisher"
    curvature = "hessian" if first < hessian else fisher
    exchangeable = None if third < 0.75 else False
    scores, values, mask = draw(generator)
    found = []
    for loss, targets in losses(generator, scores, values, mask):
        newton = NewtonLoss(loss, curvature, exchangeable=exchangeable)
        for name, function in ((str(loss), loss), (f"Newton ({curvature}, {exchangeable}) {loss}", newton)):
            leaf = scores.clone().requires_grad_()
            value = function(leaf, *targets, mask=mask)
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
            found.append(problem(name, value.detach(), gradient, mask))
        if int(newton.skipped):
            found.append(f"Newton ({curvature}, {exchangeable}) {loss}: {int(newton.skipped)} lists are skipped")
    order, k = relaxation(generator), min(2, scores.shape[-1])
    for operation in (soft_sort, soft_rank, lambda s, *args, **kwargs: soft_topk(s, k, *args, **kwargs)):
        leaf = scores.clone().requires_grad_()
        value = operation(leaf, order, mask=mask)
        (gradient,) = torch.autograd.grad(value.tanh().sum(), leaf)
        found.append(problem(f"{order}", value.detach(), gradient, mask))
    for metric in (ndcg, mean_reciprocal_rank, spearman, kendall):
        value = metric(scores.nan_to_num(), values, mask=mask)
        found.append(None if value.isfinite().all() else f"{metric.__name__}: not finite")
    return [one for one in found if one is not None]


def fuzz(cases: int, seed: int, hessian: float) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    return [one for _ in range(-(-cases // LISTS)) for one in check(generator, hessian)]


def in_processes(arguments: argparse.Namespace) -> int:
    """The same command once per process, with a share of the cases and a seed of its own; the worst exit status."""
    share = -(-arguments.cases // arguments.processes)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--cases", str(share), "--hessian", str(arguments.hessian)]
    seeds = range(arguments.seed, arguments.seed + arguments.processes)
    started = [subprocess.Popen([*command, "--seed", str(seed)], env=environment) for seed in seeds]
    return max(abs(process.wait()) for process in started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--hessian", type=float, default=0.2, help="share of batches with the Hessian")
    arguments = parser.parse_args()
    if arguments.processes > 1:
        raise SystemExit(in_processes(arguments))
    found = fuzz(arguments.cases, arguments.seed, arguments.hessian)
    print(f"seed {arguments.seed}, {arguments.cases:,} lists: {len(found)} problems", flush=True)
    for one in sorted(set(found))[:20]:
        print(f"  {one}")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
