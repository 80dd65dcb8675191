"""Does a loss keep the contract? These checks read results back to the host: made once, not per step."""

from typing import Any

import torch
from torch import Tensor

from .._random import seeded
from ..errors import SeparabilityError
from ._autodiff import no_dependence
from ._call import Loss, Reduction, flatten_outputs, full_precision, make_total, name_of, resolve_reduction
from ._inference import outside_inference_mode


@outside_inference_mode
def check_loss(loss: Loss, y: Tensor, *targets: Any, reduction: Reduction | None = None) -> None:
    """Raise where `loss` does not depend on `y` or mixes the samples of the batch.

    The second half of the batch is replaced by other samples' outputs. A separable loss keeps the
    values and gradients of the first half; batch statistics, a ranking across the batch or a
    reduction over the wrong dimension do not. A loss that draws noise from a generator of its own gives
    other numbers each time it is called; of such a loss only the dependence is checked.

    >>> check_loss(lambda y: (y - y.mean(0)).square().sum(1), torch.tensor([[1.0], [2.0], [4.0], [8.0]]))
    Traceback (most recent call last):
    newton_losses.errors.SeparabilityError: The loss <lambda> mixes the samples of the batch: ...
    """
    flat = flatten_outputs(y)
    if flat.numel() == 0:
        return
    total = make_total(loss, y.shape, targets, resolve_reduction(loss, reduction))
    half = (len(flat) + 1) // 2
    other = torch.cat([flat[:half], flat[half - 1 : -1]])
    before, again, after = (_first_half(total, outputs, half, loss) for outputs in (flat, flat, other))
    if not all(torch.allclose(first, second, equal_nan=True) for first, second in zip(before, again, strict=True)):
        return
    for first, second in zip(before, after, strict=True):
        # The loss is the same function of the same numbers; only summation order may differ.
        scale = first[torch.isfinite(first)].abs().amax() if torch.isfinite(first).any() else first.new_zeros(())
        tolerance = float(scale) * torch.finfo(flat.dtype).eps ** 0.5
        if not torch.allclose(first, second, rtol=0.0, atol=tolerance, equal_nan=True):
            raise SeparabilityError(
                f"The loss {name_of(loss)} mixes the samples of the batch: the loss of the first "
                f"{half} samples changed when the others did. A Newton loss needs one loss per sample. Does "
                "it use batch statistics, compare samples or reduce over the batch dimension? If the items "
                "that it compares belong together, make them one sample: outputs of shape (1, N)."
            )


def _first_half(total: Any, flat: Tensor, half: int, loss: object) -> tuple[Tensor, Tensor]:
    # Seeded, so that a loss that draws noise draws the same each time.
    with torch.enable_grad(), full_precision(flat), seeded(0, flat.device):
        leaf = flat.clone().requires_grad_()
        summed, value = total(leaf)
        (gradient,) = torch.autograd.grad(summed, leaf, allow_unused=True) if summed.requires_grad else (None,)
    if gradient is None:
        raise no_dependence(loss)
    # A reduced loss gives no per-sample values, and its mean changes with any sample: gradients tell.
    values = value[:half].detach() if value.stride() != (0,) else value.new_zeros(1)
    return values, gradient[:half]
