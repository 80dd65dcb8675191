"""The smoothing of a whole loss. The smoothing of an algorithm before a loss is in `_algorithm.py`."""

from typing import Any

import torch
from torch import Tensor

from ..curvature import CurvatureKind, Expansion, empirical_fisher, full_precision, widen
from ..errors import ArgumentError, DerivativeError, ShapeError
from . import _estimators as estimators
from ._autograd import estimated
from ._draws import Noise
from ._smoothed import Smoothed, flatten_from

_NO_SECOND = (
    "{owner}: its gradient is estimated from samples and cannot be differentiated again by autograd. "
    "Its Hessian is estimated from the same samples by {owner}.expand(y, ..., curvature='hessian'), "
    "which is what NewtonLoss({owner}(...), curvature='hessian') uses."
)


class EstimatedLoss(Smoothed):
    """A smoothed black box that is a loss: a value and a gradient for each sample, a curvature for the batch.

    A subclass says how both are estimated; how they enter a graph and an `Expansion` is the same for all.
    """

    def forward(self, y: Tensor, *targets: Any) -> Tensor:
        """The estimated loss of each sample, `(N,)`; its backward gives the estimated gradient."""
        self._check(y, targets)

        def evaluate(y: Tensor) -> tuple[Tensor, ...]:
            with full_precision(y):
                value, gradient, _ = self._estimate(widen(y.detach()), targets, None)
            return value, gradient

        reason = _NO_SECOND.format(owner=type(self).__name__)
        return estimated(y, evaluate, lambda outer, gradient: outer.unsqueeze(-1) * gradient, reason)

    @torch.no_grad()
    def expand(self, y: Tensor, *targets: Any, curvature: CurvatureKind | None = "hessian") -> Expansion:
        """The expansion at y: value `(N,)`, gradient `(N, m)` and the batch's curvature, from the same noise.

        "hessian" is the mean of the samples' estimated Hessians, `(m, m)`, symmetric, in general
        indefinite; "fisher" the empirical Fisher of the estimated gradients. Samples whose value or
        gradient is not finite are left out of the curvature.
        """
        if curvature not in ("hessian", "fisher", None):
            raise ArgumentError(
                f"{type(self).__name__}: curvature is {curvature!r}; it is 'hessian', 'fisher' or None."
            )
        self._check(y, targets)
        with full_precision(y):
            return Expansion(*self._estimate(widen(y.detach()), targets, curvature))

    def _estimate(
        self, y: Tensor, targets: tuple[Any, ...], curvature: CurvatureKind | None
    ) -> tuple[Tensor, Tensor, Any]:
        raise NotImplementedError

    def _mean_hessian_of(self, weights: Tensor, noise: Noise, keep: Tensor) -> Tensor:
        """The lemma's Hessian from values, where the distribution has one."""
        first, second = noise.scores()
        if second is None:
            raise DerivativeError(
                f"{type(self).__name__}: there is no Hessian from values under {self.distribution}: its ν is "
                f"not twice differentiable, and without the point mass in ν″ the diagonal would be wrong. "
                f"Use curvature='fisher', or a smooth distribution such as Gaussian() or Logistic()."
            )
        return estimators.mean_hessian(weights, first, second, keep)


class SmoothedLoss(EstimatedLoss):
    """A black-box loss made differentiable, twice, by noise: ℓ_ε(y) = E[fn(y + ε)].

    With S draws ε of density exp(−ν) and weights w_s = fn(y + ε_s) − baseline:

        value     (1/S) Σ_s fn(y + ε_s)                            (N,)
        gradient  (1/S) Σ_s w_s ∇ν(ε_s)                            (N, m)
        Hessian   (1/(N·S)) Σ_{i,s} w_s (∇ν ∇νᵀ − ∇²ν)(ε_s)        (m, m), the mean over the batch

    `fn(inputs, *targets)` returns one value for each row of its batch; nothing else is asked of it.
    The noise of gradient and Hessian is the same. All settings are explained in `Smoothed`.

    >>> generator = torch.Generator().manual_seed(0)
    >>> def errors(outputs, labels):  # no useful derivative anywhere
    ...     return outputs.argmax(-1) != labels
    >>> loss = SmoothedLoss(errors, scale=1.0, num_samples=1000, generator=generator)
    >>> outputs = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], requires_grad=True)
    >>> labels = torch.tensor([0, 2])
    >>> loss(outputs, labels).mean().backward()
    >>> outputs.grad.sign()  # up with the labelled output, down with the others
    tensor([[-1.,  1.,  1.],
            [ 1.,  1., -1.]])
    >>> loss.expand(outputs, labels, curvature="hessian").curvature.shape
    torch.Size([3, 3])
    """

    def _estimate(
        self, y: Tensor, targets: tuple[Any, ...], curvature: CurvatureKind | None
    ) -> tuple[Tensor, Tensor, Any]:
        noise = self._draw(flatten_from(y, 1))
        values = self._call(y, noise, targets, self._needs_centre).to(y.dtype)
        value = values[-self.sampler.num_samples :].mean(0)
        weights = self._weights(values, self._needs_centre)
        gradient = estimators.gradient(weights, noise.score())
        if curvature is None:
            return value, gradient, None
        keep = estimators.finite(value, gradient)
        if curvature == "fisher":
            return value, gradient, empirical_fisher(gradient, keep)
        return value, gradient, self._mean_hessian_of(weights, noise, keep)

    def _check_output(self, output: Tensor, shape: tuple[int, ...]) -> None:
        if output.shape == shape[:1]:
            return
        hint = (
            "Did it reduce over the batch dimension?"
            if output.dim() == 0 or output.shape[0] != shape[0]
            else f"Did it forget to reduce its last {output.dim() - 1} dimension(s)?"
        )
        raise ShapeError(
            f"SmoothedLoss: fn returned shape {tuple(output.shape)} for inputs of shape {shape}, in which "
            f"all draws of all samples are one batch. It has to return one value a row, here "
            f"{shape[:1]}. {hint}"
        )
