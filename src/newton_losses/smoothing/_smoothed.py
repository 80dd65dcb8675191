"""Smoothed losses and smoothed algorithms: how values and derivatives come from the draws of one call."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._arguments import names_mask
from ..curvature import CurvatureKind, Expansion, OwnParts, empirical_fisher, full_precision, widen
from ..errors import ArgumentError, ShapeError
from ._black_box import Smoothed, Targets, estimated, flatten_from
from ._draws import Noise

_LOSS_ONCE = (
    "{owner}: its gradient is estimated from draws, and autograd cannot differentiate it again. "
    "{owner}.expand(y, ..., curvature='hessian') estimates its Hessian from the same draws; "
    "NewtonLoss({owner}(...), curvature='hessian') uses that. Inside another function, use curvature='fisher'."
)
_ALGORITHM_ONCE = (
    "{owner}: its Jacobian is estimated from draws, and cannot be differentiated again: the second derivative of k "
    "outputs by m inputs has k·m² entries, too many to estimate. Use curvature='fisher' for a loss of its output, or "
    "smooth the whole loss with SmoothedLoss, which has a Hessian."
)

MeanHessian = Callable[[Tensor], Tensor]


class EstimatedLoss(Smoothed):
    """A smoothed black box that is a loss: a value and a gradient for each sample, a curvature for the batch.

    A subclass says how they are estimated; how they enter a graph and an `Expansion` is the same for all.
    """

    def forward(self, y: Tensor, *targets: Any, **named: Any) -> Tensor:
        """The estimated loss of each sample, `(N,)`; its backward gives the estimated gradient.

        Targets may come by name, as `fn` calls them.
        """
        given = self._checked(y, targets, named)

        def evaluate(y: Tensor) -> tuple[Tensor, ...]:
            with full_precision(y):
                return self._estimate(widen(y.detach()), given, False)[:2]

        reason = _LOSS_ONCE.format(owner=type(self).__name__)
        return estimated(y, evaluate, lambda outer, gradient: outer.unsqueeze(-1) * gradient, reason)

    @torch.no_grad()
    def expand(self, y: Tensor, *targets: Any, curvature: CurvatureKind | None = "hessian", **named: Any) -> Expansion:
        """The expansion at y: value `(N,)`, gradient `(N, m)` and the batch's curvature, all from the same draws.

        "hessian" is the mean of the samples' estimated Hessians, symmetric and in general indefinite; "fisher" is the
        empirical Fisher of the estimated gradients, "sample" each sample's own part of it. `curvature.dense()` is the
        `(m, m)` matrix. Samples whose value or gradient is not finite are left out of it: one bad sample must not
        spoil the batch.
        """
        if curvature not in ("hessian", "fisher", "sample", None):
            raise ArgumentError(
                f"{type(self).__name__}: curvature is {curvature!r}. Choose 'hessian', 'fisher', 'sample' or None."
            )
        if "mask" in named or any(self._is_mask(y, place, one) for place, one in enumerate(targets, 1)):
            # A Newton loss would take it for a mask of outputs, and believe that the derivatives kept to it.
            raise ArgumentError(
                f"The loss {type(self).__name__} brings its own derivatives, and its method expand takes no mask: the "
                f"noise would reach the padded outputs. Give the Newton loss a function of (y, ..., mask) that calls "
                f"this loss with y.masked_fill(~mask, 0.0) and the mask as a target."
            )
        given = self._checked(y, targets, named)
        with full_precision(y):
            value, gradient, mean_hessian = self._estimate(widen(y.detach()), given, curvature == "hessian")
            if curvature == "hessian":
                # Of NaN, every comparison is false; `isfinite` would be twice as many kernels.
                keep = (value.abs() < torch.inf) & (gradient.abs() < torch.inf).all(-1)
                return Expansion(value, gradient, mean_hessian(keep))
            if curvature == "sample":
                return Expansion(value, gradient, OwnParts(gradient, value))
            return Expansion(value, gradient, empirical_fisher(gradient, value=value) if curvature else None)

    def doubts(self, y: Tensor, *targets: Any, **named: Any) -> list[str]:
        """What a Newton loss warns of in its first call; an error if fn mixes the samples."""
        self._unmixed(y, self._checked(y, targets, named))
        return []

    def _is_mask(self, y: Tensor, place: int, target: Any) -> bool:
        """Whether `fn` calls this target, counted from 1, a mask, and it could be one of the outputs."""
        return getattr(target, "dtype", None) is torch.bool and target.shape == y.shape and names_mask(self.fn, place)

    def _checked(self, y: Tensor, targets: tuple[Any, ...], named: dict[str, Any]) -> Targets:
        """The targets of outputs that can be differentiated at, if they can be repeated for the draws."""
        return self._given(y, targets, named)

    def _estimate(self, y: Tensor, targets: Targets, with_hessian: bool) -> tuple[Tensor, Tensor, MeanHessian]:
        """Value `(N,)`, gradient `(N, m)`, and a function from a mask `(N,)` to the mean Hessian of the samples in it.

        The last is only called if `with_hessian`.
        """
        raise NotImplementedError


class SmoothedLoss(EstimatedLoss):
    """A black-box loss made differentiable, twice, by noise: ℓ_ε(y) = E[fn(y + ε)].

    With S draws ε of density exp(−ν) and weights w_s = fn(y + ε_s) − baseline:

        value     (1/S) Σ_s fn(y + ε_s)                            (N,)
        gradient  (1/S) Σ_s w_s ∇ν(ε_s)                            (N, m)
        Hessian   (1/(N·S)) Σ_{i,s} w_s (∇ν ∇νᵀ − ∇²ν)(ε_s)        (m, m), the mean over the batch

    `fn(inputs, *targets)` returns one value for each row of its batch; nothing else is asked of it. Gradient and
    Hessian share their noise. `Smoothed` explains all settings. With the default baseline and Gaussian noise of scale
    σ the gradient is Σ_s (fn(y + ε_s) − mean of all)·ε_s / ((S−1)σ²).

    >>> generator = torch.Generator().manual_seed(0)
    >>> def errors(outputs, labels):  # no useful derivative anywhere
    ...     return outputs.argmax(-1) != labels
    >>> loss = SmoothedLoss(errors, scale=1.0, num_samples=1000, generator=generator)
    >>> outputs = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], requires_grad=True)
    >>> labels = torch.tensor([0, 2])
    >>> loss(outputs, labels).mean().backward()
    >>> outputs.grad.sign()  # raise the labelled output, lower the others
    tensor([[-1.,  1.,  1.],
            [ 1.,  1., -1.]])
    >>> loss.expand(outputs, labels, curvature="hessian").curvature.dense().shape
    torch.Size([3, 3])
    """

    def _estimate(self, y: Tensor, targets: Targets, with_hessian: bool) -> tuple[Tensor, Tensor, MeanHessian]:
        noise = self._draw(y)
        values = _exact(self._call(y, noise, self._needs_centre, targets), y.dtype)
        value = values[-self.sampler.num_samples :].mean(0).to(y.dtype)
        weights = self._weights(values, self._needs_centre).to(y.dtype)
        return value, noise.gradient(weights), lambda keep: noise.mean_hessian(weights, keep)

    def _check_output(self, output: Tensor, shape: tuple[int, ...]) -> None:
        if output.shape == shape[:1]:
            return
        batch = shape[0] // (self.sampler.num_samples + self._needs_centre)
        if output.shape == (batch,):
            hint = (
                f"Did it loop over a list of {batch} targets? Only tensors and arrays are repeated for the draws: pass "
                f"torch.arange({batch}), and look the others up."
            )
        elif output.dim() == 0 or output.shape[0] != shape[0]:
            hint = "Did it reduce over the batch dimension?"
        else:
            hint = f"Did it forget to reduce its last {output.dim() - 1} dimension(s)?"
        raise ShapeError(
            f"{type(self).__name__}: fn returned shape {tuple(output.shape)} for inputs of shape {shape}, which hold "
            f"all draws of all samples as one batch. It must return {self._wanted(shape)}. {hint}"
        )

    def _wanted(self, shape: tuple[int, ...]) -> str:
        return f"one value per row, here {shape[:1]}"


def _exact(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of at least this dtype without their last digits lost, which may be all that is left of a difference.

    float32 has no room for a cost of billions, as a solver counts in cents or milliseconds.
    """
    is_wide = values.dtype in (torch.int32, torch.int64, torch.float64)
    return values.to(torch.float64 if is_wide and values.device.type != "mps" else dtype)


class SmoothedAlgorithm(Smoothed):
    """A black-box algorithm made differentiable by noise: w_ε(y) = E[fn(y + ε)].

    With S draws ε of density exp(−ν), and w_s = fn(y + ε_s) − baseline:

        output    (1/S) Σ_s fn(y + ε_s)           (N, *outputs)
        Jacobian  (1/S) Σ_s w_s ∇ν(ε_s)ᵀ          (N, *outputs, *inputs)
        backward  (1/S) Σ_s ⟨w_s, g⟩ ∇ν(ε_s)      the same Jacobian times g, without forming it

    `fn` maps a batch `(B, *inputs)` to `(B, *outputs)`. `Smoothed` explains all settings. There is no second
    derivative; asking for one raises a `DerivativeError`.

    >>> def ranks(scores):
    ...     return scores.argsort(-1).argsort(-1)
    >>> generator = torch.Generator().manual_seed(0)
    >>> algorithm = SmoothedAlgorithm(ranks, scale=0.5, num_samples=2000, generator=generator)
    >>> scores = torch.tensor([[0.3, 0.1, 0.2]], requires_grad=True)
    >>> loss = (algorithm(scores) - torch.tensor([[0.0, 1.0, 2.0]])).square().sum()
    >>> loss.backward()
    >>> scores.grad.sign()  # lower the first, raise the last
    tensor([[ 1., -1., -1.]])
    """

    def forward(self, y: Tensor, *targets: Any, **named: Any) -> Tensor:
        """The estimated E[fn(y + ε)], `(N, *outputs)`, in float32 at least.

        What `fn` takes beside y follows it, by position or by name, with one entry per sample.
        """
        given = self._given(y, targets, named)
        scale = self._signed_scale  # that of this forward, even if it is changed before the backward

        def evaluate(y: Tensor) -> tuple[Tensor, ...]:
            with full_precision(y):
                y = widen(y.detach())
                noise = self._draw(y)
                outputs = self._call(y, noise, self._needs_centre, given)
                if y.device.type == "cpu":
                    # The backward pass needs them, and a solver may write its next solution into the same memory: that
                    # of an array, which has no count of changes, also where `torch.from_numpy` made a tensor of it.
                    outputs = outputs.to(y.dtype, copy=True)
                mean = outputs[-self.sampler.num_samples :].to(y.dtype).mean(0)
            return mean, outputs, noise.standard

        def pull_back(outer: Tensor, outputs: Tensor, standard: Tensor) -> Tensor:
            return self._pull_back(outer, outputs, Noise(standard, scale, self.distribution))

        return estimated(y, evaluate, pull_back, _ALGORITHM_ONCE.format(owner=type(self).__name__))

    def _pull_back(self, outer: Tensor, outputs: Tensor, noise: Noise) -> Tensor:
        with full_precision(outer):
            # Project first: then every draw is one number, and the Jacobian is never formed.
            projected = torch.einsum(
                "snk,nk->sn",
                flatten_from(outputs, 2).to(noise.standard.dtype),
                flatten_from(outer, 1).to(noise.standard.dtype),
            )
            return noise.gradient(self._weights(projected, self._needs_centre))

    @torch.no_grad()
    def jacobian(self, y: Tensor, *targets: Any, **named: Any) -> Tensor:
        """The estimated Jacobian of each sample, `(N, *outputs, *inputs)`, from fresh draws.

        >>> generator = torch.Generator().manual_seed(0)
        >>> double = SmoothedAlgorithm(lambda y: 2 * y, num_samples=4096, quasi=True, generator=generator)
        >>> bool((double.jacobian(torch.zeros(1, 2)) - 2 * torch.eye(2)).abs().max() < 0.02)
        True
        """
        given = self._given(y, targets, named)
        with full_precision(y):
            work = widen(y.detach())
            noise = self._draw(work)
            outputs = self._call(work, noise, self._needs_centre, given)
            weights = self._weights(flatten_from(outputs, 2).to(work.dtype), self._needs_centre)
            matrix = noise.jacobian(weights)
        return matrix.reshape(y.shape[0], *outputs.shape[2:], *y.shape[1:])

    def _check_output(self, output: Tensor, shape: tuple[int, ...]) -> None:
        if output.dim() == 0 or output.shape[0] != shape[0]:
            raise ShapeError(
                f"{type(self).__name__}: fn returned shape {tuple(output.shape)} for inputs of shape {shape}, which "
                f"hold all draws of all samples as one batch. It must return {self._wanted(shape)}. "
                f"Did it drop or reduce the batch dimension?"
            )

    def _wanted(self, shape: tuple[int, ...]) -> str:
        return f"one result per row, ({shape[0]}, ...)"
