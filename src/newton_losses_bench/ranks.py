"""The processes that train one run together: what each of them works on, and how they come to know the same.

Every rank draws the whole batch of a step from the run's one stream, works on its own rows of it, and gets
the gradient of all of it. So the state of a run is the same on all ranks and does not know their number:
rank 0 alone opens the run's folder, evaluates and writes. One process is the case in which nothing here does
anything. The curvature of the whole batch is `NewtonLoss`'s own affair; `batch_norm.py` has the statistics
of batch normalisation.
"""

import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from newton_losses.curvature import resolve_group
from newton_losses.errors import ArgumentError, NewtonLossesError
from newton_losses.smoothing import Smoothed
from newton_losses.smoothing._draws import Sampler

from .signals import stop_requests

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")
# How long a rank waits for one that is alive and silent: rank 0 evaluates and saves alone in this time. One that has
# ended is noticed at once, because its connections close.
PATIENCE = timedelta(minutes=30)


class RankError(NewtonLossesError, RuntimeError):
    """The ranks of a run cannot go on together; the message says why and what to do."""


class EndedElsewhere(RankError):
    """Another rank has failed and says why; this one only ends as well."""


class Ranks:
    """The ranks of a run: the `number` of this one, their `count`, and what they do together. Alone by default.

    `group` is all of `torch.distributed`, which the Newton loss shares its batch with as well.

    >>> Ranks().rows(torch.arange(5)).tolist()
    [0, 1, 2, 3, 4]
    """

    def __init__(self, group: "ProcessGroup | None" = None) -> None:
        self.group = group
        self.number, self.count = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        self.is_first = self.number == 0
        self.size = 0
        self._skipped_before: Tensor | None = None
        # Words go from CPU to CPU where the group can send those.
        speaks_there = group is None or "cpu" in str(dist.get_backend_config(group))
        self._device = torch.device("cpu" if speaks_there else "cuda")

    # The rows of a batch

    def begin(self, size: int, skipped: Tensor | None) -> None:
        """The batch at hand has `size` samples over all ranks. `skipped` counts those that the loss leaves out."""
        self.size = size
        if self.count > 1:
            self._skipped_before = None if skipped is None else skipped.clone()

    def part(self) -> slice:
        """This rank's samples of the batch at hand: consecutive ones, as many as any other's give or take one."""
        return slice(self.number * self.size // self.count, (self.number + 1) * self.size // self.count)

    def rows(self, drawn: Tensor) -> Tensor:
        """This rank's rows of what was drawn for the whole batch, which has one or more rows a sample."""
        if self.count == 1:
            return drawn
        return drawn.reshape(self.size, -1, *drawn.shape[1:])[self.part()].flatten(0, 1)

    def share_noise(self, loss: object) -> None:
        """Let the smoothed parts of a loss draw the noise of the whole batch, and use that of their rows."""
        if self.count > 1 and isinstance(loss, nn.Module):
            for module in loss.modules():
                if isinstance(module, Smoothed):
                    settings = {field.name: getattr(module.sampler, field.name) for field in fields(Sampler)}
                    module.sampler = _RowsOfNoise(**settings, ranks=self)

    def keep_in_step(self, generators: Iterable[torch.Generator]) -> None:
        """Bring the generators of all ranks to the same state after a batch with fewer samples than ranks.

        A loss without samples draws nothing. The last rank always has one.
        """
        if self.size >= self.count:
            return
        for generator in generators:
            state = generator.get_state().to(self._device)
            dist.broadcast(state, self.count - 1, group=self.group)
            generator.set_state(state.cpu())

    def backward(
        self, loss: Tensor, parameters: Sequence[nn.Parameter], skipped: Tensor | None, *, is_mean_of_rows: bool
    ) -> Tensor:
        """Give all ranks the gradient and the count of the whole batch, and return its loss; one collective.

        `loss` is that of this rank's rows. A Newton loss shares its batch already and has a gradient that is
        to be averaged over the ranks; the plain mean of the rows counts by their number.
        """
        if self.count == 1:
            loss.backward()  # type: ignore[no-untyped-call]
            return loss
        rows = self.part().stop - self.part().start
        loss.backward(loss.new_tensor(rows * self.count / self.size) if is_mean_of_rows else None)  # type: ignore[no-untyped-call]
        value, left_out = loss.detach(), loss.new_zeros(())
        if skipped is not None and self._skipped_before is not None:
            left_out = (skipped - self._skipped_before).to(loss.dtype)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        # Of a rank none of whose rows count the loss is NaN, and nothing of it is to enter.
        of_kept = torch.where(left_out < rows, (rows - left_out) * value, 0.0)
        parts = [*gradients, rows * value, of_kept, left_out]
        together = torch.cat([part.to(loss.dtype).flatten() for part in parts])
        dist.all_reduce(together, group=self.group)
        *summed, of_all, of_kept, left_out = torch.split(together, [part.numel() for part in parts])
        for parameter, gradient, total in zip(parameters, gradients, summed, strict=True):
            # In place: Adam's fused kernel wants the gradient laid out as the parameter is.
            parameter.grad = gradient.copy_((total / self.count).view(gradient.shape))
        if skipped is not None and self._skipped_before is not None:
            skipped.copy_(self._skipped_before + left_out[0].round().to(skipped.dtype))
        # The mean of the samples that count, as a Newton loss says it; if none does, it says that of all.
        kept = self.size - left_out
        return torch.where(kept > 0, of_kept / kept.clamp(min=1), of_all / self.size)[0]

    # Knowing the same

    def largest(self, *numbers: int) -> list[int]:
        """The largest that any rank says, for each of the numbers."""
        if self.count == 1:
            return list(numbers)
        told = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self.group)
        found: list[int] = told.tolist()
        return found

    def on_first(self, function: Callable[[], T]) -> T:
        """What `function()` returns on rank 0, which alone calls it. Where it fails there, all ranks end."""
        if self.count == 1:
            return function()
        value: Any = None
        failure: BaseException | None = None
        if self.is_first:
            try:
                value = function()
            except BaseException as error:
                failure = error
        self._meet(failure)
        found: T = self._tell(value)
        return found

    def in_turn(self, function: Callable[[], T]) -> T:
        """`function()` on every rank, after one a machine: what that one downloads or draws the others find."""
        if self.count == 1:
            return function()
        leads = int(os.environ.get("LOCAL_RANK", self.number)) == 0
        made: list[T] = []
        for turn in (True, False):
            failure: BaseException | None = None
            if leads is turn:
                try:
                    made.append(function())
                except BaseException as error:
                    failure = error
            self._meet(failure)
        return made[0]

    def check_same(self, contents: Iterable[bytes | Tensor], complaint: str) -> None:
        """Refuse to go on where the contents are not the same to the last bit on all ranks."""
        if self.count == 1:
            return
        digest = hashlib.sha256()
        for content in contents:
            digest.update(content if isinstance(content, bytes) else _bytes_of(content))
        number = int.from_bytes(digest.digest()[:7], "big")
        high, low = self.largest(number, -number)
        if high != -low:
            raise RankError(complaint)

    def _meet(self, failure: BaseException | None) -> None:
        """Wait for all ranks. If one brings a failure, it raises that and the others end."""
        if not any(self.largest(failure is not None)):
            return
        with contextlib.suppress(RuntimeError):  # nobody leaves before all have heard
            dist.barrier(self.group)
        raise failure or EndedElsewhere("another rank has failed")

    def _tell(self, value: Any) -> Any:
        """Rank 0's value, on all ranks: numbers, strings, tensors, and lists and dictionaries of those."""
        buffer = io.BytesIO()
        torch.save(value, buffer)
        (size,) = self.largest(buffer.tell() if self.is_first else 0)
        sent = torch.zeros(size, dtype=torch.uint8)
        if self.is_first:
            sent = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        sent = sent.to(self._device)
        dist.broadcast(sent, 0, group=self.group)
        return torch.load(io.BytesIO(sent.cpu().numpy().tobytes()), map_location="cpu", weights_only=True)


@dataclass(frozen=True)
class _RowsOfNoise(Sampler):
    """The noise of the rank's own rows out of that of the whole batch."""

    ranks: Ranks

    def uniform(self, y: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
        whole = y.new_empty(self.ranks.size, 0)
        return super().uniform(whole, size, generator)[:, self.ranks.part()]


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


_CURRENT: ContextVar[Ranks] = ContextVar("ranks", default=Ranks())  # noqa: B039  nothing changes one that is alone


def current_ranks() -> Ranks:
    """The ranks of the run that this code is a part of."""
    return _CURRENT.get()


@contextlib.contextmanager
def sharing_ranks() -> Iterator[Ranks]:
    """The ranks of a run while it lasts: all of `torch.distributed` where that is initialised, else this process."""
    ranks = Ranks(resolve_group("default"))
    token = _CURRENT.set(ranks)
    try:
        yield ranks
    except RuntimeError as error:
        if ranks.count == 1 or not _is_about_others(error):
            raise
        raise RankError(
            f"rank {ranks.number}: another rank of this run has ended, or did not answer for {PATIENCE}. The same "
            "command goes on from the last checkpoint, with any number of ranks."
        ) from error
    finally:
        _CURRENT.reset(token)


def _is_about_others(error: RuntimeError) -> bool:
    # gloo has no error type of its own; its messages begin with the file of its source.
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def started_by_torchrun() -> bool:
    """Whether this process is one of several ranks that torchrun has started."""
    return dist.is_available() and dist.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", 1)) > 1


def is_first_process() -> bool:
    """Whether this process is the one to speak: rank 0 of torchrun's, or not started by it."""
    return not started_by_torchrun() or os.environ.get("RANK") == "0"


@contextlib.contextmanager
def noted_signals() -> Iterator[None]:
    """Between and after runs of several ranks a signal is only noted: torchrun sends it, and ends what stays."""
    with stop_requests() if started_by_torchrun() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def joined_ranks(device: str) -> Iterator[None]:
    """Initialise `torch.distributed` where torchrun has started several ranks: gloo, and NCCL on CUDA."""
    if not started_by_torchrun() or dist.is_initialized():
        yield
        return
    on_cuda = device.startswith("cuda")
    if on_cuda:
        _take_own_device(device)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo", timeout=PATIENCE)
    except RuntimeError as error:  # torch's errors of the network are among these
        raise RankError(
            f"the ranks of this run did not find each other ({str(error).splitlines()[0]}). One of them may have ended "
            "before it was reached. Start the same command again: the run goes on from its last checkpoint."
        ) from error
    yield
    # Not after an error: the others might not answer.
    dist.barrier()
    dist.destroy_process_group()


def _take_own_device(device: str) -> None:
    ranks, there = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if device != "cuda":
        raise ArgumentError(f"--device {device}: every rank has a GPU of its own. Give --device cuda, or leave it out.")
    if ranks > there:
        raise ArgumentError(
            f"--device cuda: {ranks} ranks on this machine and {there} GPUs. Start one rank a GPU, as by torchrun "
            f"--nproc-per-node {there}, or train with --device cpu."
        )
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
