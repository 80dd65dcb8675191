"""The memory that a Newton loss with the Hessian takes at most, for a loss that compares all pairs of its outputs.

    PYTHONPATH=src python benchmarks/hessian_memory.py             # 32 samples of 150 outputs
    PYTHONPATH=src python benchmarks/hessian_memory.py 100 200

The peak of this process, with torch itself in it (the first figure). Every size is a process of its own: a peak never
goes back.
"""

import argparse
import resource

import torch
from torch import Tensor
from torch.nn import functional

from newton_losses import NewtonLoss


def pairwise(scores: Tensor, relevance: Tensor) -> Tensor:
    """The mean logistic loss of all pairs: N·m² numbers of N·m scores."""
    wanted = (relevance[:, :, None] > relevance[:, None, :]).to(scores.dtype)
    losses = functional.softplus(scores[:, None, :] - scores[:, :, None])
    return (wanted * losses).sum((1, 2)) / wanted.sum((1, 2))


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=int, nargs="?", default=32)
    parser.add_argument("outputs", type=int, nargs="?", default=150)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    shape = (options.samples, options.outputs)
    scores, relevance = torch.randn(shape, generator=generator).requires_grad_(), torch.rand(shape, generator=generator)
    before = peak()
    NewtonLoss(pairwise, "hessian")(scores, relevance).backward()
    print(f"{options.samples} samples of {options.outputs} outputs: {before:.2f} GiB before, {peak():.2f} at most")


if __name__ == "__main__":
    main()
