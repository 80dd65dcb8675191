"""Samples that a step leaves out: counted on the device, and looked at now and then without waiting for it.

A sample whose loss, gradient or step is not finite learns nothing, and the value of the loss need not show it. A
module counts such samples in its buffer `skipped`; its `SkipWatch` reads that buffer and says when their share is high.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ._arguments import one_of
from ._tracing import inside_transform, is_captured
from ._warnings import warn
from .errors import NonFiniteError

OnNonfinite = Literal["warn", "raise", "ignore"]
# On a device, this many calls lie between two looks at the counter; each costs one copy of a number.
BETWEEN_LOOKS = 64
# A share is judged once this many samples have been seen, and is high from here on.
ENOUGH, HIGH = 64, 0.25


def skip_counter(module: nn.Module, tensor: Tensor) -> Tensor | None:
    """The module's buffer `skipped` on the device of `tensor`, to add the samples to that are left out.

    Inside a `torch.func` transform there is nothing to add to, and `None`: a buffer outside of it must not take in the
    transform's own tensors.
    """
    if inside_transform() or tensor.is_meta:
        return None
    counter: Tensor = module.skipped  # type: ignore[assignment]
    if counter.device != tensor.device:
        # One that was made on the meta device has no number yet.
        counter = torch.zeros_like(counter, device=tensor.device) if counter.is_meta else counter.to(tensor.device)
        module.skipped = counter
    return counter


class SkipWatch:
    """Reads a counter of skipped samples, and warns once, or raises, as `on_nonfinite` says.

    On a CPU it reads the counter in every call that may have skipped a sample. On CUDA every 64th call copies it to
    pinned memory, and the 64th after that reads the copy if it has arrived: no call waits for the device.
    """

    def __init__(self, name: str, on_nonfinite: OnNonfinite) -> None:
        self.action: OnNonfinite = one_of(on_nonfinite, ("warn", "raise", "ignore"), "on_nonfinite", name)
        self.name = name
        self.seen = 0  # samples since the last judgement; callers add to it
        self._skipped = 0  # how many of them were left out
        self._total = 0  # the counter at the last look
        self._calls = 0
        self._is_silent = on_nonfinite == "ignore"
        self._is_scalar = False
        self._copy: tuple[Tensor, torch.cuda.Event, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copy": None}  # an event cannot be copied or stored

    def look(self, counter: Tensor, count: int, *, wait: bool = False, is_scalar: bool = False) -> None:
        """After a step of `count` samples that may have increased the `counter`; `wait` for a device in the first.

        `is_scalar`: the loss is one number for all samples, so that one of them alone can have made it non-finite.
        """
        if self._is_silent:
            return
        self._is_scalar = is_scalar
        self._calls += 1
        kind = counter.device.type
        if kind == "cpu" or (wait and self._calls == 1):
            self._judge(int(counter), count, self.seen)
        elif self._calls % BETWEEN_LOOKS == 0 and not is_captured(counter.device):
            if kind != "cuda":
                self._judge(int(counter), self.seen, self.seen)
                return
            self._read_copy()
            if self._copy is None:
                number = torch.empty((), dtype=counter.dtype, pin_memory=True)
                number.copy_(counter, non_blocking=True)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(counter.device))
                self._copy = number, event, self.seen

    def _read_copy(self) -> None:
        if self._copy is None:
            return
        number, event, seen = self._copy
        if event.query():  # type: ignore[no-untyped-call]
            self._copy = None
            self._judge(int(number), seen, seen)

    def _judge(self, total: int, count: int, seen: int) -> None:
        """From the counter now: of the last `count` samples, and of all `seen` since the last judgement."""
        new = max(0, total - self._total)  # a counter may be set back to zero
        self._total = total
        self._skipped += new
        if self.action == "raise" and new > 0:
            raise NonFiniteError(f"{self._sentence(new, count)} on_nonfinite='warn' goes on without them.")
        is_standstill = 0 < count <= new
        if is_standstill or (seen >= ENOUGH and self._skipped >= HIGH * seen):
            self._is_silent = True
            skipped, of = (new, count) if is_standstill else (self._skipped, seen)
            warn(
                f"{self._sentence(skipped, of)} This is said once; the buffer `skipped` counts on. "
                "on_nonfinite='raise' makes it an error, 'ignore' silences it."
            )
        if seen >= ENOUGH:
            self.seen, self._skipped = self.seen - seen, 0

    def _sentence(self, skipped: int, count: int) -> str:
        how_many = f"{skipped if skipped < count else 'all'} of the last {count} samples were skipped: their"
        if skipped >= count == 1:
            how_many = "the last sample was skipped: its"
        reason = "newton_losses.diagnose(loss, y, *targets) finds the reason."
        if self._is_scalar:
            reason = (
                "The loss returns a scalar, which one sample, with a NaN target say, spoils for its whole batch. "
                f"Return one value per sample, shape (N,), and only that sample is left out. {reason}"
            )
        return f"{self.name}: {how_many} loss, gradient or step is not finite. {reason}"
