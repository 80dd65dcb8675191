"""Are a few samples, with the targets that were picked for them, what they are within the batch?

Every other measurement takes it for granted.
"""

import torch
from torch import Tensor

from ..curvature import check_loss
from ..errors import ArgumentError
from ._cost import timed
from ._probe import Probe, can_be_called, is_reduced, owned_generators

# Samples whose values are compared, or half of the batch.
COMPARED = 4
# Seconds for one value of the whole batch.
WHOLE_BUDGET = 0.25
DIFFERS = "has other values than within it"


def check_parts(probe: Probe) -> None:
    """Raise where they are not: something that all samples share has been cut, or something of each has not.

    They are compared with the whole batch, so that errors of the loss name the shapes that the caller knows; where
    that would take too long, with twice as many.
    """
    batch = probe if _is_quick(probe) else probe.part(2 * COMPARED)
    whole = batch.values(batch.flat)
    samples = min(COMPARED, batch.count // 2)
    if samples == 0:
        return
    fault = _fault(batch, whole, samples)
    if fault is None or (fault == DIFFERS and _draws_noise(batch)):
        return
    if can_be_called(probe.loss):  # a loss that mixes its samples, or does without them, has another fault
        check_loss(probe.loss, batch.y, *batch.targets, reduction=probe.reduction)
    if fault == DIFFERS and _is_rounding(batch, samples):
        return
    raise ArgumentError(
        f"diagnose asks for fewer samples than the batch of {probe.count}, and for {samples} of them the loss {fault}: "
        "a target has one entry per sample (a tensor, an array or a list, also within dicts and tuples), and what all "
        "samples share, as a table of prototypes or a sum over the batch, belongs into the loss: a closure or a module."
    )


def _is_quick(probe: Probe) -> bool:
    """Whether the whole batch can be asked, by what a few samples take; one that cannot be cut has to be."""
    few = probe.part(2 * COMPARED)
    try:
        _, taken = timed(lambda: few.values(few.flat), probe.y.device)
    except Exception:  # the loss is the caller's, and says it again in the shapes of the whole batch
        return True
    return taken * probe.count / few.count <= WHOLE_BUDGET


def _fault(probe: Probe, whole: Tensor, samples: int) -> str | None:
    """What is wrong with the loss of a few samples alone; of a reduced one only that it fails."""
    part = probe.part(samples)
    try:
        alone = part.values(part.flat)
    except Exception as error:  # the loss is the caller's, and may raise anything
        return f"fails ({type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')})"
    if is_reduced(whole):
        return None
    size = whole[torch.isfinite(whole)].abs()
    tolerance = float(size.amax()) * torch.finfo(whole.dtype).eps ** 0.5 if len(size) else 0.0
    same = torch.allclose(whole[probe.places(samples)], alone, rtol=0.0, atol=tolerance, equal_nan=True)
    return None if same else DIFFERS


def _draws_noise(probe: Probe) -> bool:
    """Whether a call takes random numbers, of torch's or its own; or gives another answer, with those of others."""

    def states() -> list[Tensor]:
        own = [generator.get_state() for generator in owned_generators(probe.loss)]
        device = [torch.cuda.get_rng_state(probe.y.device)] if probe.y.is_cuda else []
        return [torch.get_rng_state(), *device, *own]

    before, first, second = states(), probe.here, probe.expand(probe.flat, None)
    if not all(map(torch.equal, before, states())):
        return True
    return not (_same(first.value, second.value) and _same(first.gradient, second.gradient))


def _same(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.nan_to_num(), second.nan_to_num())


def _is_rounding(probe: Probe, samples: int) -> bool:
    """Whether the values agree in float64."""
    try:
        wide = probe.to(torch.float64)
        return wide is not probe and _fault(wide, wide.values(wide.flat), samples) is None
    except Exception:  # a loss that holds float32 tensors
        return False
