"""The Fenchel-Young loss of a perturbed optimizer, with two estimators of its Hessian."""

from typing import Any, Literal, Unpack, get_args

import torch
from torch import Tensor

from ..curvature import CurvatureKind, empirical_fisher
from ..errors import ArgumentError, ShapeError
from ..smoothing import SmoothingOptions
from ..smoothing import _estimators as estimators
from ..smoothing._draws import Noise
from ..smoothing._loss import EstimatedLoss
from ..smoothing._smoothed import BlackBox, flatten_from
from ._perturbed import Optimizing, check_solution

HessianEstimator = Literal["jacobian", "optimal_value"]


class FenchelYoungLoss(Optimizing, EstimatedLoss):
    """The convex loss of costs y against a wanted solution w*, for any solver of min_w ⟨y, w⟩ (or max_w).

    With w_s the solution under draw s, costs c_s = y − σz_s when minimising and c_s = y + σz_s when
    maximising (see `Perturbed`; a symmetric distribution makes no difference between the two):

                  minimising (the default)            maximising
        value     (1/S) Σ_s ⟨c_s, w* − w_s⟩           (1/S) Σ_s ⟨c_s, w_s − w*⟩        (N,)
        gradient  w* − (1/S) Σ_s w_s                  (1/S) Σ_s w_s − w*               (N, m)

    The value is the expected excess cost of w* under the noise: never negative, and zero where every
    draw is solved by w*. Up to the constant Ω(w*) + E⟨σz, w*⟩, which does not depend on y, it is the
    Fenchel-Young loss F_σ(θ) + Ω(w*) − ⟨θ, w*⟩ at θ = ∓y; if w* is the only solution for some costs, as
    a path or a permutation is, that constant is 0 and the value is the loss itself.

    The Hessian, that of F_σ, does not depend on w*; its batch mean is positive semi-definite in
    expectation, not in every estimate. Two estimators, from the noise of the gradient:

    - `hessian="jacobian"`: the Jacobian of the mean solution, symmetrised. H = ∓(1/S) Σ_s (w_s −
      baseline) ∇ν(ε_s)ᵀ, minus for minimising. Needs one derivative of ν, so any distribution serves.
    - `hessian="optimal_value"`: the second derivative of the smoothed optimum v = ⟨c_s, w_s⟩ by the
      lemma of `SmoothedLoss`. The noisier of the two.

    `variance_reduction` only concerns the Hessian; "value" solves for the unperturbed costs as well, if
    a Hessian is asked for. The value and "optimal_value" take the solver at its word that it
    optimises ⟨c, w⟩; a solver that first clamps its costs, say, makes them approximate. Cauchy
    noise has no finite value; its gradient and its "jacobian" are fine.

    >>> def cheapest(costs):
    ...     return torch.nn.functional.one_hot(costs.argmin(-1), costs.shape[-1])
    >>> generator = torch.Generator().manual_seed(0)
    >>> loss = FenchelYoungLoss(cheapest, scale=0.5, num_samples=1000, generator=generator)
    >>> costs = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    >>> loss(costs, torch.tensor([[0, 0, 1]])).sum().backward()
    >>> costs.grad.round()  # the third has to get cheaper, the first dearer
    tensor([[-1., -0., 1.]])
    >>> loss.expand(costs, torch.tensor([[0, 0, 1]])).curvature.shape
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
        if hessian not in get_args(HessianEstimator):
            raise ArgumentError(f"FenchelYoungLoss: hessian is {hessian!r}; it is one of 'jacobian', 'optimal_value'.")
        self.minimize = minimize
        self.hessian = hessian

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, minimize={self.minimize}, hessian={self.hessian!r}"

    def _estimate(
        self, y: Tensor, targets: tuple[Any, ...], curvature: CurvatureKind | None
    ) -> tuple[Tensor, Tensor, Any]:
        target = self._flat_target(y, targets)
        flat = flatten_from(y, 1)
        noise = self._draw(flat)
        centred = self._needs_centre and curvature == "hessian"
        solutions = flatten_from(self._call(y, noise, (), centred), 2).to(y.dtype)
        drawn = solutions[-self.sampler.num_samples :]
        sign = self._sign
        costs = flat + noise.perturbation()
        value = sign * torch.einsum("snm,snm->n", costs, drawn - target) / drawn.shape[0]
        gradient = sign * (drawn.mean(0) - target)
        if curvature is None:
            return value, gradient, None
        keep = estimators.finite(value, gradient)
        if curvature == "fisher":
            return value, gradient, empirical_fisher(gradient, keep)
        if centred:
            costs = torch.cat([flat.unsqueeze(0), costs])
        return value, gradient, sign * self._mean_hessian(solutions, costs, noise, centred, keep)

    def _mean_hessian(self, solutions: Tensor, costs: Tensor, noise: Noise, centred: bool, keep: Tensor) -> Tensor:
        """The mean Hessian of the smoothed optimum E⟨c, w(c)⟩ from solutions and costs `(S or 1+S, N, m)`."""
        if self.hessian == "jacobian":
            weights = self._weights(solutions, centred)
            return estimators.symmetric(estimators.mean_jacobian(weights, noise.score(), keep))
        optima = torch.einsum("snm,snm->sn", costs, solutions)
        return self._mean_hessian_of(self._weights(optima, centred), noise, keep)

    def _flat_target(self, y: Tensor, targets: tuple[Any, ...]) -> Tensor:
        if len(targets) != 1:
            raise ArgumentError(f"FenchelYoungLoss: got {len(targets)} targets; it takes one, the wanted solutions.")
        try:
            target = torch.as_tensor(targets[0], device=y.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(
                f"FenchelYoungLoss: the target is {type(targets[0]).__name__}; it is a tensor of wanted solutions."
            ) from error
        if target.shape != y.shape:
            raise ShapeError(
                f"FenchelYoungLoss: the target has shape {tuple(target.shape)} and the costs "
                f"{tuple(y.shape)}. The target is the wanted solution itself, "
                f"in the form that the solver returns it."
            )
        return flatten_from(target, 1).to(y.dtype)

    def _check_output(self, output: Tensor, shape: tuple[int, ...]) -> None:
        check_solution("FenchelYoungLoss", output, shape)
