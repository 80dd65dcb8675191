"""The module that keeps the unit of the default step: the size of the gradients over the run so far.

    ρ² = mean over the last thousand batches of (1/(N·m)) Σ ‖gᵢ‖²

A batch that is divided by its own size solves E[g/ρ] = 0 in place of E[g] = 0, and never stops near a minimum. Divided
by a size that hardly changes from batch to batch it is the gradient in another unit, and does neither. How a batch
changes what is kept here is `settle` in `_step.py`.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ._damping import RunningDamping


class RunningScale(nn.Module):
    """A module that keeps the mean square of the gradients it has seen, as the default damping needs it.

    The buffer `running_square` `(2,)` holds a sum of mean squares that decays, and the sum of their weights: ρ² is
    their ratio. It is saved with the module, moves with it and keeps its precision in a module of half precision.
    A state without it, such as one of a module with another damping, loads all the same and leaves it as it is.
    """

    running_square: Tensor | None
    _is_known = False  # whether a batch has certainly been taken in

    def _keep_scale(self, damping: object) -> None:
        is_kept = isinstance(damping, RunningDamping)
        self.register_buffer("running_square", torch.zeros(2, dtype=torch.float64) if is_kept else None)

    def _scale_on(self, tensor: Tensor) -> Tensor | None:
        """The buffer on the device of `tensor`."""
        state = self.running_square
        if state is None or not isinstance(tensor, Tensor) or tensor.is_meta or state.device == tensor.device:
            return state
        device, dtype = tensor.device, _dtype(tensor.device)
        # One that was made on the meta device has no numbers yet.
        state = torch.zeros(2, device=device, dtype=dtype) if state.is_meta else state.to(device, dtype=dtype)
        self.running_square = state
        return state

    def _apply(self, fn: Any, recurse: bool = True) -> "RunningScale":
        state = self.running_square
        self.running_square = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if state is not None:
            device = fn(torch.zeros(0)).device
            if state.device.type == "meta" and device.type != "meta":
                state = torch.zeros(2)
            self.running_square = state.to(device, dtype=_dtype(device))
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        name = prefix + "running_square"
        if self.running_square is None:
            state_dict.pop(name, None)
        elif name not in state_dict:
            state_dict[name] = self.running_square
        elif not _is_scale(state_dict[name]):
            others[-1].append(  # torch raises these as one error
                f"{name} is {state_dict[name].tolist()}, which no training leaves behind: a sum of squares and that of "
                "their weights are positive and finite, or both zero. Is the file damaged? Without this entry the rest "
                "can be loaded, and the unit of the step is found anew."
            )
            state_dict = {**state_dict, name: self.running_square}
        super()._load_from_state_dict(state_dict, prefix, *others)


def _is_scale(state: Any) -> bool:
    """Whether it can be a `running_square`; what has another type or shape, torch itself refuses."""
    if not isinstance(state, Tensor) or state.shape != (2,) or state.is_meta:
        return True
    total, weight = state.tolist()
    return (total == weight == 0) or (0 < total < math.inf and 0 < weight < math.inf)


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
