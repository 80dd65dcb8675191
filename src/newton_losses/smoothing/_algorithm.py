"""The smoothing of an algorithm with many outputs, to be followed by any differentiable loss."""

import torch
from torch import Tensor

from ..curvature import full_precision, widen
from ..errors import ShapeError
from . import _estimators as estimators
from ._autograd import estimated
from ._draws import Noise
from ._smoothed import Smoothed, flatten_from

_NO_SECOND = (
    "{owner}: its Jacobian is estimated from samples and cannot be differentiated again: the second "
    "derivative of k outputs by m inputs has k·m² entries, too many to estimate. Use curvature='fisher' "
    "for a loss of its output, or smooth the loss as a whole with SmoothedLoss, which has a Hessian."
)


class SmoothedAlgorithm(Smoothed):
    """A black-box algorithm made differentiable by noise: w_ε(y) = E[fn(y + ε)].

    With S draws ε of density exp(−ν), and w_s = fn(y + ε_s) − baseline:

        output    (1/S) Σ_s fn(y + ε_s)           (N, *outputs)
        Jacobian  (1/S) Σ_s w_s ∇ν(ε_s)ᵀ          (N, *outputs, *inputs)
        backward  (1/S) Σ_s ⟨w_s, g⟩ ∇ν(ε_s)      the same Jacobian times g, without forming it

    `fn` maps a batch `(B, *inputs)` to `(B, *outputs)`. All settings are explained in `Smoothed`. There
    is no second derivative; asking for one raises a `DerivativeError`.

    >>> def ranks(scores):
    ...     return scores.argsort(-1).argsort(-1)
    >>> generator = torch.Generator().manual_seed(0)
    >>> algorithm = SmoothedAlgorithm(ranks, scale=0.5, num_samples=2000, generator=generator)
    >>> scores = torch.tensor([[0.3, 0.1, 0.2]], requires_grad=True)
    >>> loss = (algorithm(scores) - torch.tensor([[0.0, 1.0, 2.0]])).square().sum()
    >>> loss.backward()
    >>> scores.grad.sign()  # down with the first, up with the last
    tensor([[ 1., -1., -1.]])
    """

    def forward(self, y: Tensor) -> Tensor:
        """The estimated E[fn(y + ε)], `(N, *outputs)`, in float32 at least."""
        self._check(y)
        scale = self._signed_scale  # that of this forward, even if it is changed before the backward

        def evaluate(y: Tensor) -> tuple[Tensor, ...]:
            with full_precision(y):
                y = widen(y.detach())
                noise = self._draw(flatten_from(y, 1))
                outputs = self._call(y, noise, (), self._needs_centre)
                mean = outputs[-self.sampler.num_samples :].to(y.dtype).mean(0)
            return mean, outputs, noise.standard

        def pull_back(outer: Tensor, outputs: Tensor, standard: Tensor) -> Tensor:
            return self._pull_back(outer, outputs, Noise(standard, scale, self.distribution))

        reason = _NO_SECOND.format(owner=type(self).__name__)
        return estimated(y, evaluate, pull_back, reason)

    def _pull_back(self, outer: Tensor, outputs: Tensor, noise: Noise) -> Tensor:
        with full_precision(outer):
            # Project first: then every draw is one number, and the Jacobian is never formed.
            projected = torch.einsum(
                "snk,nk->sn",
                flatten_from(outputs, 2).to(noise.standard.dtype),
                flatten_from(outer, 1).to(noise.standard.dtype),
            )
            return estimators.gradient(self._weights(projected, self._needs_centre), noise.score())

    @torch.no_grad()
    def jacobian(self, y: Tensor) -> Tensor:
        """The estimated Jacobian of each sample, `(N, *outputs, *inputs)`, from fresh draws.

        >>> generator = torch.Generator().manual_seed(0)
        >>> double = SmoothedAlgorithm(lambda y: 2 * y, num_samples=4096, quasi=True, generator=generator)
        >>> bool((double.jacobian(torch.zeros(1, 2)) - 2 * torch.eye(2)).abs().max() < 0.02)
        True
        """
        self._check(y)
        with full_precision(y):
            work = widen(y.detach())
            noise = self._draw(flatten_from(work, 1))
            outputs = self._call(work, noise, (), self._needs_centre)
            weights = self._weights(flatten_from(outputs, 2).to(work.dtype), self._needs_centre)
            matrix = estimators.jacobian(weights, noise.score())
        return matrix.reshape(y.shape[0], *outputs.shape[2:], *y.shape[1:])

    def _check_output(self, output: Tensor, shape: tuple[int, ...]) -> None:
        if output.dim() == 0 or output.shape[0] != shape[0]:
            raise ShapeError(
                f"{type(self).__name__}: fn returned shape {tuple(output.shape)} for inputs of shape "
                f"{shape}, in which all draws of all samples are one batch. It has to return one result "
                f"a row, ({shape[0]}, ...). Did it drop or reduce the batch dimension?"
            )
