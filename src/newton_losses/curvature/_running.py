"""The unit of the default step, the size of the gradients over the run so far: who keeps it, and how a batch enters it.

    ρ² = mean over the last thousand batches of (1/(N·m)) Σ ‖gᵢ‖²

A batch that is divided by its own size solves E[g/ρ] = 0 in place of E[g] = 0, and never stops near a minimum. Divided
by a size that hardly changes from batch to batch it is the gradient in another unit, and does neither.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from .._backends import HAS_TRITON
from .._tracing import sees_operators
from ._damping import RunningDamping, whole_samples
from ._distributed import sum_over
from ._expansion import Expansion, FisherFactor, FisherMatrix, empirical_fisher, finite
from ._fisher import MOST_NUMBERS
from ._forms import Exchangeable, LowRank, Masked, OwnParts, wide_dtype, widened
from ._host import DECAY, GROWTH, LIMIT, energy_of, may_look, taken_in
from ._lists import exchangeable_fisher, masked_fisher

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# The first batch is as it is; ρ begins with no sample of more than this many times the energy that a tenth exceed.
FIRST_LIMIT = 1e4


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
        device, dtype = tensor.device, wide_dtype(tensor.device)
        # One that was made on the meta device has no numbers yet.
        state = torch.zeros(2, device=device, dtype=dtype) if state.is_meta else state.to(device, dtype=dtype)
        self.running_square = state
        return state

    def _apply(self, fn: Any, recurse: bool = True) -> "RunningScale":
        state = self.running_square
        self.running_square = None
        unmade = [name for name, buffer in self._buffers.items() if buffer is not None and buffer.is_meta]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name in unmade:  # counters: `to_empty` leaves in them what the memory held
            made = self._buffers[name]
            if made is not None and not made.is_meta:
                made.zero_()
        if state is not None:
            device = fn(torch.zeros(0)).device
            if state.device.type == "meta" and device.type != "meta":
                state = torch.zeros(2)
            self.running_square = state.to(device, dtype=wide_dtype(device))
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
    return bool(total == weight == 0 or (0 < total < math.inf and 0 < weight < math.inf))


class Settled(NamedTuple):
    """An expansion with no gradient beyond the limit, and the factor from a step in the batch's unit to the run's."""

    expansion: Expansion
    factor: Tensor | float


def settle(
    expansion: Expansion,
    kind: str,
    state: Tensor | None,
    *,
    update: bool,
    group: "ProcessGroup | None" = None,
    known: bool = False,
) -> Settled:
    """Bound the gradients of a batch by the run's, and take the batch into the run's mean square.

    Without a `state` nothing is known of other batches, and the batch's own unit stays. Nothing waits for the device.
    Where it is `known` that this is not the first batch, one kernel does it on CUDA.
    """
    gradient = expansion.gradient.detach()
    if state is None or gradient.shape[1] == 0:
        return Settled(expansion, 1.0)
    if group is None and not torch.compiler.is_compiling():
        found = _settled_on_host(expansion, state, update)
        if found is not None:
            return found
    if group is None and known and _fits_settling(expansion, state):
        from ._settle_triton import launch_settle

        value = expansion.value.detach()
        mask = getattr(expansion.curvature, "mask", None)
        bounded, factor = launch_settle(gradient, value, mask, state, update, DECAY, LIMIT, GROWTH)
        return Settled(_with_gradient(expansion, bounded, kind), factor)
    usable = finite(expansion)
    squares = torch.where(usable, widened(gradient).square().sum(1), 0.0) / gradient.shape[1]
    total, count = squares.sum(), whole_samples(expansion, usable).to(squares.dtype)
    if group is not None:
        total, count = sum_over(group, torch.stack([total, count])).unbind()
    count = torch.where(count > 0, count, 1.0)  # of lists, a part of a sample counts as such
    is_first = state[1] == 0
    old = state[0] / state[1]  # 0/0 where nothing is known yet
    limit = LIMIT * count * old
    limit = torch.where(limit > 0, limit, math.inf)
    bounded = torch.minimum(squares, limit).sum()
    if group is not None:
        bounded = sum_over(group, bounded)
    own, mean = bounded / count, total / count
    first = own
    if group is None and len(squares) > 0:
        # Most samples may have no gradient, or one that is only rounding; the few that explode are above this one.
        usual = squares.topk(min(len(squares), 1 + math.ceil(len(squares) / 10))).values[-1]
        first = torch.where(usual > 0, torch.minimum(squares, FIRST_LIMIT * usual), squares).sum() / count
    # A batch without any gradient says nothing of its size.
    enters = (mean > 0) & torch.isfinite(mean)
    weight = torch.lerp(torch.ones_like(own), state[1], DECAY)
    run = torch.minimum(torch.lerp(mean, state[0], DECAY) / weight, GROWTH * old)
    run = torch.where(is_first, first, run)
    if update:
        state.copy_(torch.where(enters, torch.stack([run * weight, weight]), state))
    factor = (own / run).sqrt().clamp(max=math.sqrt(LIMIT))
    factor = torch.where(enters & ~is_first, factor, 1.0).to(gradient.dtype)
    shares = torch.where(squares > limit, (limit / squares).sqrt(), 1.0).to(gradient.dtype)
    return Settled(_with_gradient(expansion, expansion.gradient * shares[:, None], kind), factor)


def _fits_settling(expansion: Expansion, state: Tensor) -> bool:
    gradient = expansion.gradient
    return (
        HAS_TRITON
        and gradient.device.type == "cuda"
        and 0 < gradient.numel() <= MOST_NUMBERS
        and state.dtype == torch.float64
        and not sees_operators()
    )


def _settled_on_host(expansion: Expansion, state: Tensor, update: bool) -> Settled | None:
    """The same where numbers may be looked at; `None` where a batch is beyond the limit or not finite."""
    if not may_look(expansion.gradient) or getattr(expansion.curvature, "mask", None) is not None:
        return None
    mean = energy_of(expansion.gradient.detach().double().numpy()) / expansion.gradient.numel()
    if not math.isfinite(expansion.value.detach().sum()):
        return None
    square = taken_in(state, mean, update)
    return None if square is None else Settled(expansion, math.sqrt(mean / square))


def _with_gradient(expansion: Expansion, gradient: Tensor, kind: str) -> Expansion:
    """The expansion with other gradients, and with their curvature where it is made of them."""
    curvature = expansion.curvature
    if isinstance(curvature, OwnParts):
        curvature = replace(curvature, gradient=gradient)
    elif kind == "fisher" and isinstance(curvature, (FisherMatrix, FisherFactor)):
        curvature = empirical_fisher(gradient, curvature.kept, value=curvature.value)
    elif kind == "fisher" and isinstance(curvature, Exchangeable):
        curvature = exchangeable_fisher(gradient, mask=curvature.mask, value=expansion.value.detach())
    elif kind == "fisher" and isinstance(curvature, Masked):
        curvature = masked_fisher(gradient, expansion.value.detach(), curvature.mask)
    elif type(curvature) is LowRank:  # that a loss brought, whose rows are not these gradients any more
        curvature = LowRank(curvature.factor)
    return Expansion(expansion.value, gradient, curvature)
