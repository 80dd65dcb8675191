"""Eigenvalues of the batch's mean Hessian and empirical Fisher, and whether single samples curve downwards."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..curvature import Curvature, Dense, Expansion, LowRank, as_curvature, empirical_fisher, finite
from ._cost import affordable, timed
from ._probe import Probe

# Below this share of the largest, an eigenvalue is taken as zero.
ZERO = 1e-9
# A larger matrix is not decomposed; a few dozen Ritz values reach the ends of its spectrum.
DENSE_SIZE = 1024
RITZ_STEPS = 48


@dataclass(frozen=True)
class Eigenvalues:
    """`values` ascending; of a large matrix the extreme ones (`complete` is false).

    `negative_share` is Σ|λ₋| / Σ|λ|, `condition` the largest |λ| over the smallest that is not zero, `rank`
    the number that is not zero.
    """

    values: tuple[float, ...]
    negative_share: float
    condition: float
    rank: int
    complete: bool = True

    @property
    def smallest(self) -> float:
        return self.values[0]

    @property
    def largest(self) -> float:
        return self.values[-1]


@dataclass(frozen=True)
class Spectra:
    """Of the Fisher, the mean Hessian and single samples' Hessians; `None` where there is no Hessian.

    `nonconvex_samples` is the share of the looked-at samples whose own Hessian has a negative eigenvalue,
    `negative_share` the mean over them of their Σ|λ₋| / Σ|λ|. `samples` is how many the Hessians are from.
    """

    fisher: Eigenvalues
    hessian: Eigenvalues | None = None
    nonconvex_samples: float | None = None
    negative_share: float | None = None
    samples: int = 0

    @property
    def convex(self) -> bool | None:
        return None if self.nonconvex_samples is None else self.nonconvex_samples == 0

    @property
    def flat(self) -> bool:
        """Whether there is a Hessian and it is zero, as of a piecewise linear loss."""
        return self.hessian is not None and self.hessian.rank == 0


def eigenvalues(curvature: Curvature, zero: float = 0.0) -> Eigenvalues:
    """Of one symmetric matrix in any form; magnitudes up to `zero` count as rounding.

    >>> found = eigenvalues(Dense(torch.diag(torch.tensor([-1.0, 0.0, 3.0]))))
    >>> found.values, found.negative_share, found.condition, found.rank
    ((-1.0, 0.0, 3.0), 0.25, 3.0, 2)
    """
    values, complete = _decompose(curvature)
    size = values.abs()
    significant = size > max(ZERO * float(size.max()), zero)
    kept = values[significant]
    total = float(kept.abs().sum())
    return Eigenvalues(
        values=tuple(values.tolist()),
        negative_share=float(kept.clamp(max=0).abs().sum()) / total if total else 0.0,
        condition=float(kept.abs().max() / kept.abs().min()) if len(kept) else float("nan"),
        rank=int(significant.sum()),
        complete=complete,
    )


def _decompose(curvature: Curvature) -> tuple[Tensor, bool]:
    if isinstance(curvature, LowRank):
        factor = curvature.factor.double()
        gram = torch.linalg.eigvalsh(factor @ factor.mT).clamp(min=0)
        return torch.cat([gram.new_zeros(factor.shape[1] - len(gram)), gram]), True
    if isinstance(curvature, Dense) and len(curvature.matrix) <= DENSE_SIZE:
        values = torch.linalg.eigvalsh(curvature.matrix.double())
        return values.clamp(min=0) if curvature.semidefinite else values, True
    return _ritz_values(curvature), False


def _ritz_values(curvature: Curvature) -> Tensor:
    """Lanczos with full orthogonalisation: values between the smallest and the largest eigenvalue."""
    example = curvature.matrix if isinstance(curvature, Dense) else curvature.example  # type: ignore[union-attr]
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(example.shape[-1], generator=generator, dtype=torch.float64).to(example.device)
    basis = [start / start.norm()]
    for _ in range(min(RITZ_STEPS, example.shape[-1]) - 1):
        following = curvature.product(basis[-1][None].to(example.dtype))[0].double()
        for _ in range(2):  # twice is enough, once is not
            for row in basis:
                following = following - (following @ row) * row
        if float(following.norm()) < 1e-10:
            break
        basis.append(following / following.norm())
    rows = torch.stack(basis)
    projected = curvature.product(rows.to(example.dtype)).double() @ rows.mT
    values: Tensor = torch.linalg.eigvalsh((projected + projected.mT) / 2)
    return values


def curvature_along(probe: Probe, count: int) -> tuple[float, float]:
    """What `sample_convexity` tells, from curvatures along a few directions only.

    Along the gradient and random directions, `count` in all, vᵀ∇²ℓᵢv by central differences of gradients: for
    Hessians that would take too long. Such a share of samples is a lower bound: other directions may curve downwards.
    """
    flat, generator = probe.flat, torch.Generator().manual_seed(0)
    move = 1e-4 * probe.spread
    directions = torch.nn.functional.normalize(probe.here.gradient, dim=1).nan_to_num()
    found: list[Tensor] = []
    for _ in range(count):
        change = probe.gradient(flat + move * directions) - probe.gradient(flat - move * directions)
        found.append((change * directions).sum(1))
        drawn = torch.randn(flat.shape, generator=generator).to(flat)
        directions = torch.nn.functional.normalize(drawn, dim=1)
    along = torch.stack(found).nan_to_num()
    size = along.abs().sum(0)
    shares = along.clamp(max=0).abs().sum(0) / size.clamp(min=torch.finfo(size.dtype).tiny)
    return float((shares > 1e-6).double().mean()), float(shares.mean())


def fisher_eigenvalues(expansion: Expansion) -> Eigenvalues:
    """Of the samples with a finite value and gradient, as a Newton loss takes them."""
    kept = expansion.gradient[finite(expansion)]
    return eigenvalues(empirical_fisher(kept)) if len(kept) else Eigenvalues((0.0,), 0.0, float("nan"), 0)


def sample_convexity(probe: Probe, zero: float, budget: float) -> tuple[float, float]:
    """(share of samples with a negative eigenvalue, mean of their negative shares), one sample at a time.

    Of as many samples as the seconds of `budget` allow, at least one.
    """

    def negative(index: int) -> float | None:
        own = probe.at(index)
        curvature = own.expand(own.flat, "hessian").curvature
        assert curvature is not None
        form = as_curvature(curvature)
        if isinstance(form, Dense) and not torch.isfinite(form.matrix).all():
            return None
        # Rounding reaches further than for the mean: steep losses cancel large terms.
        return eigenvalues(form, zero).negative_share

    first, cost = timed(lambda: negative(0), probe.y.device)
    found = [first, *map(negative, range(1, affordable(cost, budget, 1, probe.count)))]
    shares = torch.tensor([share for share in found if share is not None] or [0.0])
    return float((shares > 1e-6).double().mean()), float(shares.mean())
