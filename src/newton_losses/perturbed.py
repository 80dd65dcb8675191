"""Layer 3: perturbed optimizers and their Fenchel-Young losses, with gradient and Hessian.

A solver of min_w ⟨y, w⟩ (or max_w) is a black box; under noise on its costs its solution is differentiable, and so is
the loss that compares it with a wanted solution. Draws and estimators are those of `smoothing`.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, Unpack, get_args

import torch
from torch import Tensor

from ._arguments import dense_tensor, one_of
from ._tracing import is_captured, sees_operators
from ._warnings import warn
from .errors import ArgumentError, ShapeError
from .smoothing import BlackBox, EstimatedLoss, SmoothedAlgorithm, SmoothingOptions

HessianEstimator = Literal["jacobian", "optimal_value"]
# The sign of a mean is judged from so many draws, and is clear where all have it, or at so many standard errors.
ENOUGH_DRAWS, CLEAR = 8, 4.0
# On a CPU, so many calls are looked at if none before is clear.
LOOKS = 32
# A value is zero up to this share of the costs that it is the difference of: some solvers round them to whole numbers.
ROUNDING = 1e-3


class _Optimizing:
    """What the direction of a perturbed solver decides: the sign of its loss, and of the noise on its costs."""

    scale: float
    minimize: bool

    @property
    def _sign(self) -> float:
        return -1.0 if self.minimize else 1.0

    @property
    def _signed_scale(self) -> float:
        return self._sign * self.scale

    def _check_output(self, output: Tensor, shape: tuple[int, ...]) -> None:
        if output.shape != shape:
            raise ShapeError(
                f"{type(self).__name__}: the solver returned shape {tuple(output.shape)} for costs of shape {shape}, "
                f"which hold all draws of all samples as one batch. A solution w has the shape of its costs, since it "
                f"optimises ⟨costs, w⟩: return the one-hot vector or the 0/1 mask, not an index or a value."
            )

    def _wanted(self, shape: tuple[int, ...]) -> str:
        return f"one solution per row, in the shape of its costs, here {shape}"


class Perturbed(_Optimizing, SmoothedAlgorithm):
    """A solver of min_w ⟨y, w⟩ (or max_w with `minimize=False`), made differentiable by noise on its costs.

        minimising   w_σ(y) = E[argmin_w ⟨y − σz, w⟩]
        maximising   w_σ(y) = E[argmax_w ⟨y + σz, w⟩]

    estimated from `num_samples` draws of z, with the Jacobian of `SmoothedAlgorithm`. The minus comes from
    argmax_w ⟨θ + σz, w⟩ at θ = −y, so that Gumbel noise gives the softmin of y; for a symmetric distribution it makes
    no difference. `solver` maps a batch of costs `(B, *shape)` to solutions of the same shape: one-hot for an argmax,
    a 0/1 mask for a path. `nl.smoothing.Smoothed` explains all other settings.

    >>> from newton_losses.smoothing import Gumbel
    >>> def cheapest(costs):
    ...     return torch.nn.functional.one_hot(costs.argmin(-1), costs.shape[-1])
    >>> generator = torch.Generator().manual_seed(0)
    >>> layer = Perturbed(cheapest, scale=1.0, num_samples=20_000, distribution=Gumbel(), generator=generator)
    >>> costs = torch.tensor([[0.0, 1.0, 2.0]])
    >>> bool((layer(costs) - (-costs).softmax(-1)).abs().max() < 0.01)
    True
    """

    def __init__(
        self,
        solver: BlackBox,
        scale: float = 0.1,
        num_samples: int = 10,
        *,
        minimize: bool = True,
        **options: Unpack[SmoothingOptions],
    ) -> None:
        super().__init__(solver, scale, num_samples, **options)
        self.minimize = minimize

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, minimize={self.minimize}"


class FenchelYoungLoss(_Optimizing, EstimatedLoss):
    """The convex loss of costs y against a wanted solution w*, for any solver of min_w ⟨y, w⟩ (or max_w).

    With w_s the solution under draw s, costs c_s = y − σz_s when minimising and c_s = y + σz_s when maximising (see
    `Perturbed`; for a symmetric distribution there is no difference):

                  minimising (the default)            maximising
        value     (1/S) Σ_s ⟨c_s, w* − w_s⟩           (1/S) Σ_s ⟨c_s, w_s − w*⟩        (N,)
        gradient  w* − (1/S) Σ_s w_s                  (1/S) Σ_s w_s − w*               (N, m)

    The value is the expected excess cost of w* under the noise: never negative, and zero where w* solves every draw.
    Up to the constant Ω(w*) + E⟨σz, w*⟩, which does not depend on y, it is the Fenchel-Young loss
    F_σ(θ) + Ω(w*) − ⟨θ, w*⟩ at θ = ∓y. If w* is the only solution for some costs, as a path or a permutation is, that
    constant is 0 and the value is the loss itself.

    The Hessian, that of F_σ, does not depend on w*; its batch mean is positive semi-definite in expectation, not in
    every estimate. Two estimators, from the noise of the gradient:

    - `hessian="jacobian"`: the Jacobian of the mean solution, symmetrised: H = ∓(1/S) Σ_s (w_s − baseline) ∇ν(ε_s)ᵀ,
      minus for minimising. It needs one derivative of ν, so it works for any distribution.
    - `hessian="optimal_value"`: the second derivative of the smoothed optimum v = ⟨c_s, w_s⟩ by the lemma of
      `SmoothedLoss`. The noisier of the two.

    What the solver takes beside the costs, such as the capacity of each sample's knapsack, follows w*, by position or
    by name: `loss(costs, wanted, capacity)`. Tensors and arrays are repeated for the draws.

    A cost may be infinite, as a wall's: it counts where a solution enters it, and nowhere else.

    `variance_reduction` only concerns the Hessian; "value" also solves for the unperturbed costs, if a Hessian is
    wanted. The value and "optimal_value" assume that the solver optimises ⟨c, w⟩; a solver that first clamps its
    costs, say, makes them approximate. Cauchy noise has no finite value; its gradient and its "jacobian" are fine.

    In training, a mean value that is clearly negative warns once: most likely `minimize` is not what the solver does.
    The first call is looked at, and on a CPU up to 31 more until the sign is clear. On a GPU that call waits for it.

    >>> def cheapest(costs):
    ...     return torch.nn.functional.one_hot(costs.argmin(-1), costs.shape[-1])
    >>> generator = torch.Generator().manual_seed(0)
    >>> loss = FenchelYoungLoss(cheapest, scale=0.5, num_samples=1000, generator=generator)
    >>> costs = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    >>> loss(costs, torch.tensor([[0, 0, 1]])).sum().backward()
    >>> costs.grad.round()  # the third must get cheaper, the first more expensive
    tensor([[-1., -0., 1.]])
    >>> loss.expand(costs, torch.tensor([[0, 0, 1]])).curvature.dense().shape
    torch.Size([3, 3])
    """

    def __init__(
        self,
        solver: BlackBox,
        scale: float = 0.1,
        num_samples: int = 10,
        *,
        minimize: bool = True,
        hessian: HessianEstimator = "jacobian",
        **options: Unpack[SmoothingOptions],
    ) -> None:
        super().__init__(solver, scale, num_samples, **options)
        self.minimize = minimize
        self.hessian = one_of(hessian, get_args(HessianEstimator), "hessian", "FenchelYoungLoss")
        self._sign_watch = _SignWatch()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, minimize={self.minimize}, hessian={self.hessian!r}"

    def _estimate(
        self, y: Tensor, targets: Any, with_hessian: bool
    ) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
        target, sign = targets.placed[0].to(y.dtype), self._sign
        noise = self._draw(y)
        centred = self._needs_centre and with_hessian
        solutions = self._call(y, noise, centred, targets.but_the_first()).to(y.dtype)
        shape = noise.standard.shape[1:]  # (N, m)
        flat, target, solutions = y.reshape(shape), target.reshape(shape), solutions.reshape(len(solutions), *shape)
        costs = flat + noise.perturbation()
        drawn = solutions[-len(costs) :]
        walls, excess = flat.isinf(), drawn - target
        # What no solution enters costs nothing, not 0·∞. Only a CPU can be asked for walls without waiting.
        may_have_walls = flat.device.type != "cpu" or sees_operators() or bool(walls.any())
        counted = costs.masked_fill(walls & (excess == 0), 0.0) if may_have_walls else costs
        value = sign * torch.einsum("snm,snm->n", counted, excess) / len(costs)
        gradient = sign * (drawn.mean(0) - target)
        if self.training and not self._sign_watch.is_over:
            self._sign_watch.look(sign * counted * excess, self.minimize)

        def mean_hessian(keep: Tensor) -> Tensor:
            """Of the smoothed optimum E⟨c, w(c)⟩."""
            if self.hessian == "jacobian":
                jacobian = noise.mean_jacobian(self._weights(solutions, centred), keep)
                return (jacobian + jacobian.mT) / (2 * sign)
            all_costs = torch.cat([flat.unsqueeze(0), costs]) if centred else costs
            if may_have_walls:
                all_costs = all_costs.masked_fill(walls & (solutions == 0), 0.0)
            optima = torch.einsum("snm,snm->sn", all_costs, solutions)
            keep = keep & optima.isfinite().all(0)  # and not where every solution has to enter a wall
            return sign * noise.mean_hessian(self._weights(optima, centred), keep)

        return value, gradient, mean_hessian

    def doubts(self, y: Tensor, *targets: Any, **named: Any) -> list[str]:
        """As of every estimated loss; and where the target cannot be a solution, nor a mean of several."""
        given = self._checked(y, targets, named)
        target, solutions = given.placed[0], self._unmixed(y, given.but_the_first())
        if solutions is None or not bool(solutions.isfinite().all()):
            return []
        if bool((solutions == solutions[0]).all()):  # such as nothing at all, at costs that nothing is worth
            return []
        count = len(solutions)
        wanted, solutions = target.double().reshape(count, -1), solutions.reshape(count, -1)
        low, high = float(solutions.min()), float(solutions.max())
        room = 1e-3 * max(abs(low), abs(high), high - low)
        is_odd = ~((wanted >= low - room) & (wanted <= high + room)).all(1)
        sums = solutions.sum(1)
        if float(sums.max() - sums.min()) <= room:  # as of one-hot solutions
            is_odd |= (wanted.sum(1) - sums).abs() > room * solutions.shape[1]
        if 2 * int(is_odd.sum()) <= len(wanted):  # but for some, such as zeros where there is nothing to choose
            return []
        odd, sums = wanted[is_odd][0], sums[is_odd]
        return [
            f"FenchelYoungLoss: the target is no solution of the solver: that has entries from {low:.3g} to {high:.3g} "
            f"which sum up to {float(sums[0]):.3g}; a sample of the target has {float(odd.min()):.3g} to "
            f"{float(odd.max()):.3g}, and {float(odd.sum()):.3g}. The target is the wanted solution w*; of true costs "
            "it is solver(true_costs)."
        ]

    def _checked(self, y: Tensor, targets: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._check(y)
        if ("target" in named) == bool(targets):
            by_name = f" and by name {', '.join(named)}" if named else ""
            raise ArgumentError(
                f"FenchelYoungLoss: got {len(targets)} targets{by_name}. Pass one, the wanted solutions: "
                f"loss(costs, wanted), or loss(costs, target=wanted). What follows it is passed on to the solver, "
                f"with one entry per sample; bind what all samples share."
            )
        wanted, *others = targets or (named["target"],)
        named = {name: one for name, one in named.items() if name != "target"}
        if not isinstance(wanted, Tensor):
            try:
                wanted = torch.as_tensor(wanted)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ArgumentError(
                    f"FenchelYoungLoss: the target is {type(wanted).__name__}. Pass a tensor of wanted solutions."
                ) from error
        wanted = dense_tensor(wanted, "the wanted solutions", "FenchelYoungLoss")
        if wanted.shape != y.shape:
            raise ShapeError(
                f"FenchelYoungLoss: the target has shape {tuple(wanted.shape)} and the costs {tuple(y.shape)}. The "
                f"target is the wanted solution w* of each sample, in the form in which the solver returns it, so it "
                f"has the shape of the costs, here {tuple(y.shape)}. {_how_to_get(wanted, y)}"
            )
        return super()._checked(y, (wanted.to(y.device), *others), named)

    def _is_mask(self, y: Tensor, place: int, target: Any) -> bool:
        return place > 1 and super()._is_mask(y, place - 1, target)  # the solver never sees the wanted solution


def _how_to_get(wanted: Tensor, y: Tensor) -> str:
    """From a target of another shape to one of the shape of the costs."""
    if wanted.shape == y.shape[1:]:
        return f"One solution for all samples: target.expand{tuple(y.shape)}."
    if wanted.shape == y.shape[:-1]:
        return f"The indices of the choices: torch.nn.functional.one_hot(target, {y.shape[-1]})."
    if wanted.shape[:1] == y.shape[:1] and sorted(wanted.shape) == sorted(y.shape):
        return "Are its dimensions in another order? Then target.transpose or target.permute, never target.reshape."
    if wanted.shape[:1] == y.shape[:1] and wanted.numel() == y.numel():
        return f"The same entries in another shape: target.reshape{tuple(y.shape)}."
    return "Is it of another batch, or not in the solver's form?"


class _SignWatch:
    """Says once that the value is negative in the mean, which no solver that does what `minimize` says makes it.

    Such a loss falls without end, since training makes the wanted solutions the worst of all. Where the solver is
    exact, the values at the draws have one sign; where it is not, their spread says what is noise.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._looks = 0
        # Over all looks: draws below zero and above it, all of them, the sum of their values, and of the squares.
        self._sums = [0.0] * 5

    def look(self, parts: Tensor, minimize: bool) -> None:
        """At `parts` `(S, N, m)`, whose sums over m are the values at the draws. Waits for the device."""
        if sees_operators() or is_captured(parts.device):
            return
        self._looks += 1
        # No training waits for its GPU in every call.
        self.is_over = parts.device.type != "cpu" or self._looks == LOOKS
        values, size = parts.sum(-1), parts.abs().sum(-1)
        usable = values.isfinite()
        values = torch.where(usable & (values.abs() > ROUNDING * size), values, 0.0)
        new = (values < 0).sum(), (values > 0).sum(), usable.sum(), values.sum(), values.square().sum()
        self._sums = [old + one for old, one in zip(self._sums, torch.stack(new).tolist(), strict=True)]
        below, above, draws, total, squares = self._sums
        if max(below, above) < ENOUGH_DRAWS:
            return
        mean = total / draws
        error = math.sqrt(max(squares / draws - mean**2, 0.0) / draws)
        if min(below, above) > 0 and abs(mean) <= CLEAR * error:
            return
        self.is_over = True
        if mean < 0:
            does, would = ("minimises", "maximises") if minimize else ("maximises", "minimises")
            warn(
                f"FenchelYoungLoss: the mean value is {mean:.3g} ± {error:.1g}. It is never negative for a solver that "
                f"{does} ⟨costs, w⟩, as minimize={minimize} says. If the solver {would} it, pass "
                f"minimize={not minimize}: as it is, training makes the wanted solutions the worst of all, and the "
                f"loss falls without end. Otherwise, is the solver approximate (then nothing is wrong), does it change "
                f"its costs first, or can it not return some of the wanted solutions, such as zeros for padding? This "
                f"is said once."
            )
