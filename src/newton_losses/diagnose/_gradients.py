"""The norms of the samples' gradients: do some vanish, do some explode?"""

from dataclasses import dataclass

import torch
from torch import Tensor

# A hundredth of the typical norm adds nothing to a batch's gradient; a hundredfold leaves nothing to the others.
EXTREME = 100.0
LOSS_TO_BLAME = "look for a logarithm or a division at zero"
GRADIENT_TO_BLAME = (
    "their losses are finite: look for a root, a norm or a logarithm at zero, also in a branch not taken"
)
OUTPUTS_TO_BLAME = "look at the network that made their outputs, or the batch it was given: these are not finite"


@dataclass(frozen=True)
class Gradients:
    """Norms ‖∇ℓᵢ‖ over the batch, `norms` ascending and finite only.

    `vanishing` and `exploding` are the shares of samples a hundred times below and above `typical`, the
    median of the norms that are not zero; `ratio` is the 99th percentile over it. `nonfinite` is the
    share of samples without a finite value or gradient.
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


def measure_gradients(value: Tensor, gradient: Tensor) -> Gradients:
    """From values `(N,)` and gradients `(N, m)`.

    >>> found = measure_gradients(torch.zeros(3), torch.tensor([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]))
    >>> found.norms, found.typical, found.vanishing
    ((0.0, 5.0, 10.0), 5.0, 0.3333333333333333)
    """
    finite = torch.isfinite(value) & torch.isfinite(gradient).all(1)
    norms = torch.linalg.vector_norm(gradient[finite].double(), dim=1).sort().values
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
        nonfinite=float((~finite).double().mean()),
    )


def nothing_finite(outputs: Tensor, value: Tensor) -> str:
    """Why no sample has a finite value and gradient: because of the outputs `(N, m)`, the values `(N,)`, or itself."""
    if not torch.isfinite(outputs).all(1).any():
        return "No sample's outputs are finite: look at the network that made them, or the batch it was given."
    if not torch.isfinite(value).any():
        return (
            "The loss is not finite at any of these outputs: each value is NaN or infinite. Look for a logarithm or a "
            "division at zero, a root of something negative, or NaN in the targets."
        )
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
