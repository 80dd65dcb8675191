"""The one catalogue of losses × shapes × dtypes, and the brute force that everything is compared with.

A case is a loss that returns one value per sample; `Case.reduced` gives the same loss reduced. Brute
force differentiates one sample at a time with `torch.autograd.functional`, which shares no code with
the library.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def mse(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).reshape(len(y), -1).square().sum(1) / 2


def quartic(y: Tensor, target: Tensor) -> Tensor:
    """Convex, with a curvature that depends on the sample."""
    return (y - target).reshape(len(y), -1).pow(4).sum(1)


def ripples(y: Tensor, target: Tensor) -> Tensor:
    """Non-convex, all outputs coupled: the Hessian is dense and indefinite."""
    z = (y - target).reshape(len(y), -1)
    return torch.cos(2 * z).sum(1) + torch.sin(z.sum(1)) + 0.1 * z.square().sum(1)


def log_sum_exp(y: Tensor, target: Tensor) -> Tensor:
    """Shift-invariant like a ranking loss: the Hessian is singular along the vector of ones."""
    z = y.reshape(len(y), -1)
    return torch.logsumexp(z, 1) - (z * torch.softmax(target.reshape(len(y), -1), 1)).sum(1)


@dataclass(frozen=True)
class Case:
    loss: Callable[[Tensor, Tensor], Tensor]
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float64

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"{self.loss.__name__}-{shape}-{str(self.dtype).removeprefix('torch.')}"

    def draw(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        y, target = (torch.randn(self.shape, generator=generator, dtype=torch.float64) for _ in range(2))
        return y.to(self.dtype), target.to(self.dtype)

    def reduced(self, reduction: str) -> Callable[[Tensor, Tensor], Tensor]:
        def loss(y: Tensor, target: Tensor) -> Tensor:
            values = self.loss(y, target)
            return values if reduction == "none" else getattr(values, reduction)()

        return loss


LOSSES = (mse, quartic, ripples, log_sum_exp)
# one sample, one output, no output dimension, more samples than outputs and fewer, images
SHAPES = ((1, 1), (1, 4), (5, 1), (6,), (7, 3), (3, 7), (4, 2, 3), (2, 3, 2, 2))

EXACT = [Case(loss, shape) for loss in LOSSES for shape in SHAPES]
SINGLE = [Case(loss, shape, torch.float32) for loss in LOSSES for shape in ((7, 3), (3, 7), (2, 3, 2, 2))]


@dataclass(frozen=True)
class BruteForce:
    value: Tensor
    gradient: Tensor
    hessian: Tensor
    fisher: Tensor


def brute_force(case: Case, y: Tensor, target: Tensor) -> BruteForce:
    """Values, gradients, mean Hessian and empirical Fisher in float64, one sample after another."""
    values, gradients, hessians = [], [], []
    for one, goal in zip(y.double(), target.double(), strict=True):

        def alone(flat: Tensor, one: Tensor = one, goal: Tensor = goal) -> Tensor:
            return case.loss(flat.reshape(1, *one.shape), goal[None]).squeeze(0)

        flat = one.reshape(-1)
        values.append(alone(flat))
        gradients.append(torch.autograd.functional.jacobian(alone, flat))
        hessians.append(torch.autograd.functional.hessian(alone, flat))
    gradient = torch.stack(gradients)
    return BruteForce(
        torch.stack(values),
        gradient,
        torch.stack(hessians).mean(0),
        torch.stack([g[:, None] * g[None, :] for g in gradient]).mean(0),
    )


def brute_force_step(case: Case, y: Tensor, target: Tensor, kind: str, damping: float) -> Tensor:
    """(C + λI)⁻¹∇ℓᵢ with the explicit inverse, as the paper writes it."""
    found = brute_force(case, y, target)
    curvature = getattr(found, kind)
    inverse = torch.linalg.inv(curvature + damping * torch.eye(len(curvature), dtype=torch.float64))
    return found.gradient @ inverse


def assert_close(found: Tensor, wanted: Tensor, relative: float) -> None:
    """Norm-wise: the error of the whole against the size of the whole."""
    found, wanted = found.detach().double(), wanted.detach().double()
    assert found.shape == wanted.shape
    error, size = torch.linalg.vector_norm(found - wanted), torch.linalg.vector_norm(wanted)
    assert error <= relative * size + 1e-300, f"relative error {float(error / size):.3e} > {relative:.0e}"


class Cube(torch.autograd.Function):
    """Twice differentiable in reverse, in the old style that `torch.func` refuses: no forward rule at all."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad
