"""What is measured at the outputs themselves: gradient norms, noise, eigenvalues, and whether samples are convex."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..curvature import Curvature, CurvatureKind, Dense, Expandable, Expansion, LowRank, empirical_fisher, finite
from ._probe import Probe, curvature_of

# A hundredth of the typical norm adds nothing to a batch's gradient; a hundredfold leaves nothing to the others.
EXTREME = 100.0
# Estimates of a loss that draws noise. At a ratio of one, half of what is seen is noise.
REPEATS, NOISE = 12, 1.0
# Below this share of the largest, an eigenvalue is taken as zero.
ZERO = 1e-9
# A larger matrix is not decomposed; a few dozen Ritz values reach the ends of its spectrum.
DENSE_SIZE, RITZ_STEPS = 1024, 48
# Samples whose own Hessians are looked at, and directions that stand for them where there are no Hessians.
SAMPLES_ALONE, DIRECTIONS_ALONE = 12, 6

LOSS_TO_BLAME = "look for a logarithm or a division at zero, or NaN in their targets"
GRADIENT_TO_BLAME = (
    "their losses are finite: look for a root, a norm or a logarithm at zero, also in a branch not taken"
)
OUTPUTS_TO_BLAME = "look at the network that made their outputs, or the batch it was given: these are not finite"


# Gradients ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gradients:
    """Norms ‖∇ℓᵢ‖ over the batch, `norms` ascending and finite only.

    `vanishing` and `exploding` are the shares of samples a hundred times below and above `typical`, the
    median of the norms that are not zero; `ratio` is the 99th percentile over it. `nonfinite` is the
    share of samples without a finite value or gradient. `quietest` is the root mean square of the output whose
    gradients are smallest, of those that have any, relative to that of all outputs.
    """

    norms: tuple[float, ...]
    minimum: float
    median: float
    typical: float
    p99: float
    maximum: float
    ratio: float
    vanishing: float
    exploding: float
    nonfinite: float
    quietest: float = 1.0


def measure_gradients(value: Tensor, gradient: Tensor) -> Gradients:
    """From values `(N,)` and gradients `(N, m)`.

    >>> found = measure_gradients(torch.zeros(3), torch.tensor([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]))
    >>> found.norms, found.typical, found.vanishing
    ((0.0, 5.0, 10.0), 5.0, 0.3333333333333333)
    """
    kept = torch.isfinite(value) & torch.isfinite(gradient).all(1)
    norms = torch.linalg.vector_norm(gradient[kept].double(), dim=1).sort().values
    if len(norms) == 0:
        return Gradients((), *(float("nan"),) * 6, vanishing=0.0, exploding=0.0, nonfinite=1.0)
    nonzero = norms[norms > 0]
    typical = float(nonzero.median()) if len(nonzero) else 0.0
    p99 = float(norms.quantile(0.99))
    return Gradients(
        norms=tuple(norms.tolist()),
        minimum=float(norms[0]),
        median=float(norms.median()),
        typical=typical,
        p99=p99,
        maximum=float(norms[-1]),
        ratio=p99 / typical if typical else float("nan"),
        vanishing=float((norms <= typical / EXTREME).double().mean()),
        exploding=float((norms > typical * EXTREME).double().mean()),
        nonfinite=float((~kept).double().mean()),
        quietest=_quietest(gradient[kept].double()),
    )


def _quietest(gradient: Tensor) -> float:
    largest = gradient.abs().amax()
    sizes = (gradient / largest).square().mean(0) if float(largest) > 0 else gradient.new_zeros(1)
    own = sizes[sizes > 0]
    return math.sqrt(float(own.min() / sizes.mean())) if len(own) else 1.0


def nothing_finite(outputs: Tensor, value: Tensor) -> str:
    """Why no sample has a finite value and gradient: because of the outputs `(N, m)`, the values `(N,)`, or itself."""
    if not torch.isfinite(outputs).all(1).any():
        return "No sample's outputs are finite: look at the network that made them, or the batch it was given."
    if not torch.isfinite(value).any():
        found = "The loss is not finite at any of these outputs: each value is NaN or infinite."
        if len(value) > 1 and value.stride() == (0,):  # one number, seen N times
            found = (
                "The loss is not finite: it returns one number for all samples, which one of them is enough to spoil. "
                "Return one value per sample, shape (N,), to see which it is."
            )
        places = "a logarithm or a division at zero, a root of something negative, or NaN in the targets"
        return f"{found} Look for {places}."
    return (
        "The gradient is not finite at any of these outputs, although values of the loss are. Look for a root, a norm "
        "or a logarithm at zero, also in the branch that a torch.where does not take."
    )


def where_to_look(outputs: Tensor, value: Tensor, gradient: Tensor) -> str:
    """Why some samples have no finite value and gradient, from outputs `(N, m)`, values `(N,)` and gradients `(N, m)`.

    >>> where_to_look(torch.tensor([[1.0], [torch.nan]]), torch.tensor([1.0, torch.nan]), torch.ones(2, 1))
    'look at the network that made their outputs, or the batch it was given: these are not finite'
    """
    outputs_fail = ~torch.isfinite(outputs).all(1)
    value_fails = ~torch.isfinite(value) & ~outputs_fail
    gradient_fails = ~torch.isfinite(gradient).all(1) & ~value_fails & ~outputs_fail
    causes = ((OUTPUTS_TO_BLAME, outputs_fail), (LOSS_TO_BLAME, value_fails), (GRADIENT_TO_BLAME, gradient_fails))
    found = [(int(fails.sum()), cause) for cause, fails in causes if bool(fails.any())]
    if len(found) == 1:
        return found[0][1]
    return "; ".join(f"for {count} of them, {cause}" for count, cause in found)


# Noise --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """Noise over signal of one estimate: the standard deviation over repeats by the norm of the mean.

    `gradient` is that of a sample's gradient (root mean square over the batch), `hessian` that of the
    batch's mean Hessian, `None` where the loss estimates no Hessian. Both fall with the root of the number
    of draws: `more_samples(ratio)` says how many times as many make the ratio a half.
    """

    gradient: float
    hessian: float | None

    @staticmethod
    def more_samples(ratio: float) -> float:
        return (2 * ratio) ** 2


def measure_noise(probe: Probe) -> tuple[Noise, Expansion]:
    """Of a loss that draws noise: how much there is, and the mean over repeats."""
    estimates_hessian = isinstance(probe.loss, Expandable)
    kind: CurvatureKind | None = "hessian" if estimates_hessian else None
    runs = [replace(probe, seed=seed).expand(probe.flat, kind) for seed in range(REPEATS)]
    value, gradient = torch.stack([r.value for r in runs]), torch.stack([r.gradient for r in runs])
    hessian = None
    if estimates_hessian:
        hessian = torch.stack([curvature_of(run).dense() for run in runs])
    noise = Noise(noise_ratio(gradient), None if hessian is None else noise_ratio(hessian))
    return noise, Expansion(value.mean(0), gradient.mean(0), None if hessian is None else Dense(hessian.mean(0)))


def noise_ratio(repeats: Tensor) -> float:
    """Noise over signal of `(R, ...)` estimates of one quantity; the signal is freed of the mean's own noise."""
    repeats = repeats.double().nan_to_num(posinf=0.0, neginf=0.0)
    variance = float(repeats.var(0, correction=1).sum())
    signal = float(repeats.mean(0).square().sum()) - variance / len(repeats)
    return (variance / signal) ** 0.5 if signal > 0 else float("inf")


# Spectra ------------------------------------------------------------------------------------------------------------


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
    `negative_share` the mean over them of their Σ|λ₋| / Σ|λ|. `samples` is how many samples these are from.
    `curved_samples` is the share of them whose own Hessian is not zero, which that of all together may be.
    """

    fisher: Eigenvalues
    hessian: Eigenvalues | None = None
    nonconvex_samples: float | None = None
    negative_share: float | None = None
    samples: int = 0
    curved_samples: float | None = None

    @property
    def convex(self) -> bool | None:
        return None if self.nonconvex_samples is None else self.nonconvex_samples == 0

    @property
    def flat(self) -> bool:
        """Whether there is a Hessian and it is zero for every sample, as of a piecewise linear loss."""
        return self.hessian is not None and self.hessian.rank == 0 and not self.curved_samples


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


def measure_spectra(fisher: Eigenvalues, part: Probe, hessian: Expansion | None) -> Spectra:
    """With the mean Hessian of the part, or without one from curvatures along a few directions only."""
    if hessian is None:
        nonconvex, negative = _curvature_along(part)
        return Spectra(fisher, None, nonconvex, negative, part.count)
    # Curvature is gradient per move; this share of it is rounding of float64 sums.
    rounding = 1e-12 * float((hessian.gradient.double() / part.scale.double()).norm(dim=1).nanmedian())
    found = eigenvalues(curvature_of(hessian), rounding)
    alone = part.part(SAMPLES_ALONE)
    if part.count == 1:
        nonconvex, negative, curved = float(found.negative_share > 0), found.negative_share, float(found.rank > 0)
    else:
        nonconvex, negative, curved = _sample_convexity(alone, rounding)
    return Spectra(fisher, found, nonconvex, negative, alone.count, curved)


def fisher_eigenvalues(expansion: Expansion) -> Eigenvalues:
    """Of the samples with a finite value and gradient, as a Newton loss takes them."""
    kept = expansion.gradient[finite(expansion)]
    return eigenvalues(empirical_fisher(kept)) if len(kept) else Eigenvalues((0.0,), 0.0, float("nan"), 0)


def _sample_convexity(probe: Probe, zero: float) -> tuple[float, float, float]:
    """Of one sample at a time: the share with a negative eigenvalue, the mean negative share, the share that curves."""

    def own(index: int) -> Eigenvalues | None:
        alone = probe.at(index)
        form = curvature_of(alone.expand(alone.flat, "hessian"))
        if isinstance(form, Dense) and not torch.isfinite(form.matrix).all():
            return None
        # Rounding reaches further than for the mean: steep losses cancel large terms.
        return eigenvalues(form, zero)

    found = [one for one in map(own, range(probe.count)) if one is not None]
    shares = torch.tensor([one.negative_share for one in found] or [0.0])
    curved = sum(one.rank > 0 for one in found) / max(1, len(found))
    return float((shares > 1e-6).double().mean()), float(shares.mean()), curved


def _curvature_along(probe: Probe) -> tuple[float, float]:
    """The first two that `_sample_convexity` returns, from curvatures along the gradient and a few random directions.

    vᵀ∇²ℓᵢv by central differences of gradients: for Hessians that are too large, or that an operator has no rule for.
    Such a share of samples is a lower bound: other directions may curve downwards.
    """
    flat, generator = probe.flat, torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(probe.here.gradient * probe.scale, dim=1).nan_to_num()
    found: list[Tensor] = []
    for _ in range(DIRECTIONS_ALONE):
        along = directions * probe.scale
        change = probe.gradient(flat + 1e-4 * along) - probe.gradient(flat - 1e-4 * along)
        found.append((change * along).sum(1))
        drawn = torch.randn(flat.shape, generator=generator).to(flat)
        directions = torch.nn.functional.normalize(drawn, dim=1)
    bent = torch.stack(found).nan_to_num()
    size = bent.abs().sum(0)
    shares = bent.clamp(max=0).abs().sum(0) / size.clamp(min=torch.finfo(size.dtype).tiny)
    return float((shares > 1e-6).double().mean()), float(shares.mean())
