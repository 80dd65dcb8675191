"""The curvature of a batch that several processes share, and the two things they do together: sum, and gather rows.

    C = Σ_r n_r C_r / Σ_r n_r,   n_r the number of samples in rank r's mean C_r

The ranks must agree on what they exchange without asking, since a collective that not all of them join
never ends. So the form is chosen from what is the same everywhere: m, the kind of curvature, the
options. It does not depend on the number of samples, which may differ and may be zero. What is summed is widened first,
so that all have one dtype and a small damping survives next to large squares.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from .._tracing import inside_vmap
from ..errors import ArgumentError
from ._expansion import CurvatureKind, Expandable, Expansion, finite
from ._forms import Curvature, Dense, Exchangeable, LowRank, Masked, OwnParts, Products, widened

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def sum_over(group: "ProcessGroup", tensor: Tensor) -> Tensor:
    """The sum of every rank's `tensor`, which have one shape; one collective."""
    _refuse_vmap()
    total = tensor.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total


def any_over(group: "ProcessGroup", flag: Tensor) -> bool:
    """Whether `flag` is set on any rank: all of them get the same answer, so all go the same way."""
    return bool(sum_over(group, flag.to(torch.int32)) > 0)


def gather_numbers(group: "ProcessGroup", own: Tensor) -> list[list[int]]:
    """Every rank's whole numbers `own`, read back to the host because shapes depend on them; one collective."""
    _refuse_vmap()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    found: list[list[int]] = torch.stack(parts).tolist()
    return found


def gather_rows(group: "ProcessGroup", rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Every rank's rows `(K_r, m)`, of which there are as many as `sizes` says; one collective.

    A collective has one shape on all ranks, so shorter ones travel padded with zeros.
    """
    padded = rows.new_zeros(max(sizes), rows.shape[1])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def _refuse_vmap() -> None:
    """A collective cannot be vectorised; torch's own error would not say what to do."""
    if not torch.compiler.is_compiling() and inside_vmap():
        raise ArgumentError(
            "Under torch.func.vmap the curvature cannot be shared with other ranks. Give process_group=None "
            "for that of this process's samples."
        )


# Up to here the empirical Fisher is summed as an m×m matrix without another thought (2 MiB); above, the
# ranks first tell each other how many gradients they have, and gather those where they are fewer than m.
SUMMED_FISHER_SIZE = 512
# Up to here a Hessian is summed as a matrix (32 MiB); above, its products are.
SUMMED_HESSIAN_SIZE = 2048


@dataclass(frozen=True)
class Shared:
    """An expansion with the curvature of all ranks' samples; the `total` of these, at least 1, and the `ranks`.

    A mean over all samples is what averaging the gradients over the ranks (DDP, FSDP) makes of
    the factor ranks/total on each rank; a sum, of the factor ranks.
    """

    expansion: Expansion
    total: Tensor
    ranks: int


def share_curvature(
    expansion: Expansion, kind: CurvatureKind, group: "ProcessGroup", *, matrix_free: bool | None = None
) -> Shared:
    """The expansion of this rank's samples with the curvature of all ranks'. Every rank has to call it.

    A rank without samples, or whose samples are all non-finite, adds nothing and takes part. One
    all-reduce of m² + 2 numbers; for a Fisher with m > 512 two collectives, the first of which has
    two numbers a rank; for products one now and one with each product.
    """
    if expansion.curvature is None:
        raise ArgumentError("Sharing a curvature needs an expansion that has one.")
    samples = widened(finite(expansion).sum())
    found, total = _shared(expansion.curvature, samples, expansion.gradient, kind, group, matrix_free)
    total = total.clamp(min=1).to(expansion.gradient.dtype)
    return Shared(replace(expansion, curvature=found), total, dist.get_world_size(group))


def goes_by_products(size: int, matrix_free: bool | None) -> bool:
    """Whether ranks share a Hessian of `size`² by products: the same answer on all of them."""
    return size > SUMMED_HESSIAN_SIZE if matrix_free is None else matrix_free


def _shared(
    curvature: Curvature,
    samples: Tensor,
    gradient: Tensor,
    kind: CurvatureKind,
    group: "ProcessGroup",
    matrix_free: bool | None,
) -> tuple[Curvature, Tensor]:
    size = gradient.shape[1]
    if isinstance(curvature, Exchangeable):
        return _share_exchangeable(curvature, samples, group)
    if isinstance(curvature, Masked):
        return _share_masked(curvature, samples, group)
    if isinstance(curvature, OwnParts):
        summed = curvature.summed()
        sums = sum_over(group, torch.cat([summed, samples.reshape(1).to(summed)]))
        return replace(curvature, sums=sums[:4]), sums[4]
    if kind == "hessian" and goes_by_products(size, matrix_free):
        return _share_products(curvature, samples, gradient, group)
    if kind == "fisher" and size > SUMMED_FISHER_SIZE:
        # An empty batch has nothing to say in the choice, whatever form its zero curvature has.
        rows = len(curvature.factor) if isinstance(curvature, LowRank) else min(len(gradient), 1) * size
        said = gather_numbers(group, torch.stack([samples.new_tensor(rows), samples]).to(torch.int64))
        sizes, counts = zip(*said, strict=True)
        if sum(sizes) < size:
            total = samples.new_tensor(sum(counts))
            return _share_rows(curvature, samples, total, group, sizes), total
    return _share_matrix(curvature, samples, group, semidefinite=kind == "fisher")


def _share_exchangeable(curvature: Exchangeable, samples: Tensor, group: "ProcessGroup") -> tuple[Exchangeable, Tensor]:
    """One all-reduce of five numbers."""
    own = [curvature.among * curvature.freedom, curvature.common * curvature.lists]
    summed = sum_over(group, torch.stack([widened(x) for x in (*own, curvature.freedom, curvature.lists, samples)]))
    among, common, freedom, lists, total = summed.unbind()
    means = among / freedom.clamp(min=1), common / lists.clamp(min=1)
    return Exchangeable(*means, curvature.size, lists, freedom, curvature.mask), total


def _share_masked(curvature: Masked, samples: Tensor, group: "ProcessGroup") -> tuple[Masked, Tensor]:
    """One all-reduce of the matrix and of how many samples are behind each entry."""
    pairs, size, is_fisher = widened(curvature.pairs), curvature.size, curvature.semidefinite
    total = widened(curvature.matrix) * _behind(pairs, is_fisher)
    summed = sum_over(group, torch.cat([total.flatten(), pairs.flatten(), widened(samples).reshape(1)]))
    total, pairs = summed[:-1].reshape(2, size, size)
    return Masked(total / _behind(pairs, is_fisher).clamp(min=1), curvature.mask, pairs, is_fisher), summed[-1]


def _behind(pairs: Tensor, is_fisher: bool) -> Tensor:
    """What each entry of a masked curvature was divided by; `Masked` has the formulas."""
    exist = pairs.diagonal().sqrt()
    return torch.outer(exist, exist) if is_fisher else pairs


def _share_matrix(
    curvature: Curvature, samples: Tensor, group: "ProcessGroup", *, semidefinite: bool
) -> tuple[Dense, Tensor]:
    """One all-reduce of the matrix and both counts."""
    matrix = widened(curvature.dense())
    count = _count(curvature, samples)
    counts = torch.stack([count, samples]).to(matrix.dtype)
    summed = sum_over(group, torch.cat([_times(count, matrix).flatten(), counts]))
    mean = summed[:-2].reshape(matrix.shape) / summed[-2].clamp(min=1)
    return Dense(mean, semidefinite, summed[-1] if semidefinite else None), summed[-1]


def _share_rows(
    curvature: Curvature, samples: Tensor, total: Tensor, group: "ProcessGroup", sizes: Sequence[int]
) -> LowRank:
    """The factor of the whole is that of its parts, one below the other: √n_r A_r / √n."""
    factor = curvature.factor if isinstance(curvature, LowRank) else curvature.dense()[:0]
    parts = gather_rows(group, _times(samples.sqrt(), widened(factor)), sizes)
    scale = total.clamp(min=1).sqrt()
    known = isinstance(curvature, LowRank) and curvature.scale is not None
    return LowRank(torch.cat(parts) / scale, scale if known else None, first=sum(sizes[: dist.get_rank(group)]))


def _share_products(
    curvature: Curvature, samples: Tensor, gradient: Tensor, group: "ProcessGroup"
) -> tuple[Products, Tensor]:
    count = _count(curvature, samples)
    counts = sum_over(group, torch.stack([count, samples]))

    def product(vectors: Tensor) -> Tensor:
        if len(vectors) == 0:
            return vectors
        return sum_over(group, _times(count, curvature.product(vectors)).to(vectors.dtype)) / counts[0].clamp(min=1)

    return Products(product, gradient.shape[1], gradient, group=group), counts[1]


def _count(curvature: Curvature, samples: Tensor) -> Tensor:
    """How many samples the mean is over, where the form knows it better than by their finite gradients."""
    own = curvature.count if isinstance(curvature, Dense) else None
    return samples if own is None else own.to(samples.dtype)


def _times(count: Tensor, tensor: Tensor) -> Tensor:
    """count · tensor, and zero where there is nothing to count even if the mean of nothing was not finite."""
    return torch.where(count > 0, tensor * count, 0.0)


def agreed_form(loss: object, y: Tensor, matrix_free: bool | None) -> bool | None:
    """Products or a matrix, from what all ranks know alike. A loss with its own expansion has its own form."""
    if isinstance(loss, Expandable):
        matrix_free = None if matrix_free else matrix_free
    return True if goes_by_products(y.shape[1:].numel(), matrix_free) else matrix_free
