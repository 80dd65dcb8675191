"""Several runs in one process: each does a few steps, then it is the next one's turn.

One thread does it all, so that signals, captures and compilers meet nothing that a run alone does not. On CUDA
every run has a stream of its own. The host only puts steps into the streams, and the device works on all of
them at once. What a step is, and when to give way, is in `loop.py`.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Generic, TypeVar

import torch

from .signals import Interrupted, StopRequests, name_others

Result = TypeVar("Result")
# A run in pieces. It gives way by saying how many of its turns the device may still have before it when it goes on.
Steps = Generator[int, None, Result]
# Before it waits for the device: the others go on meanwhile. After some steps: more are wanted before these are done.
WHEN_DONE, WHEN_NEARLY_DONE = 0, 1

# While the device has enough to do. Much shorter than a turn, much longer than a look.
_NAP_SECONDS = 1e-4


def take_turns(runs: Sequence[Steps[Result]], at_once: int, device: str, stop: StopRequests) -> list[Result]:
    """Bring all runs to their end, at most `at_once` of them under way, and return their results in order.

    Where one fails or is interrupted the others are asked to stop, which means that they save, and none of
    those that wait is begun. Then the first error is raised, or the first interruption; it has `others_of` it.
    """
    with _streams(min(at_once, len(runs)), device) as streams:
        turns = _Turns(runs, [_Lane(stream) for stream in streams], stop)
        try:
            while turns.are_left():
                if not turns.go_round():
                    time.sleep(_NAP_SECONDS)
        finally:
            turns.close()
        turns.raise_failure()
        return [turns.results[number] for number in range(len(runs))]


@contextlib.contextmanager
def _streams(count: int, device: str) -> Iterator[list["torch.cuda.Stream | None"]]:
    """A stream a run where several share a CUDA device; a run alone stays where it is."""
    if count == 1 or not device.startswith("cuda"):
        yield [None] * count
        return
    streams = [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]
    here = torch.cuda.current_stream(device)
    for stream in streams:
        # Whatever the caller has made for the runs is there when they begin, and theirs is when they end.
        stream.wait_stream(here)
    try:
        yield list(streams)
    finally:
        for stream in streams:
            here.wait_stream(stream)


class _Lane(Generic[Result]):
    """A place for one run after another, and the stream on which all of a run happens.

    All: then memory that a tensor leaves is used again only after what was under way with it.
    """

    def __init__(self, stream: "torch.cuda.Stream | None") -> None:
        self.number = -1
        self.turns = 0
        self._steps: Steps[Result] | None = None
        self._stream = stream
        self._under_way: deque[torch.cuda.Event] = deque()
        self._may_be_left = 0

    @property
    def is_free(self) -> bool:
        return self._steps is None

    def take(self, number: int, steps: Steps[Result]) -> None:
        self.number, self._steps, self.turns, self._may_be_left = number, steps, 0, WHEN_DONE

    def is_ready(self) -> bool:
        """Whether the device has so little left of this run that it is worth going on with it."""
        while self._under_way and self._under_way[0].query():  # type: ignore[no-untyped-call]
            self._under_way.popleft()
        return len(self._under_way) <= self._may_be_left

    def go_on(self) -> None:
        """Take a turn. At its end the run raises, as a generator does."""
        assert self._steps is not None
        self.turns += 1
        with self._on_stream():
            self._may_be_left = next(self._steps)
            if self._stream is not None:
                end = torch.cuda.Event()  # type: ignore[no-untyped-call]
                end.record()
                self._under_way.append(end)

    def close(self) -> None:
        """Be free again. A run that is not at its end gives back its folder and does nothing else."""
        if self._steps is not None:
            with self._on_stream():
                self._steps.close()
            self._steps = None

    def _on_stream(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


class _Turns(Generic[Result]):
    """Who is under way, who waits, and what became of the others."""

    def __init__(self, runs: Sequence[Steps[Result]], lanes: list[_Lane[Result]], stop: StopRequests) -> None:
        self.results: dict[int, Result] = {}
        self._waiting = deque(enumerate(runs))
        self._lanes = lanes
        self._stop = stop
        self._failures: list[Exception] = []

    def are_left(self) -> bool:
        return bool(self._waiting) or any(not lane.is_free for lane in self._lanes)

    def go_round(self) -> bool:
        """Give everyone a turn who can use it; whether anyone could."""
        could = [self._turn(lane) for lane in self._lanes]
        return any(could)

    def _turn(self, lane: _Lane[Result]) -> bool:
        if lane.is_free and self._waiting:
            lane.take(*self._waiting.popleft())
        if lane.is_free:
            return False
        try:
            if not lane.is_ready():
                return False
            lane.go_on()
        except StopIteration as end:
            self.results[lane.number] = end.value
            lane.close()
        except Exception as error:
            self._failures.append(error)
            lane.close()
            self._stop_others()
        return True

    def _stop_others(self) -> None:
        self._stop.request()
        self._waiting.clear()
        for lane in self._lanes:
            # In the first turn a run gets ready: there is nothing to save yet.
            if lane.turns == 1:
                lane.close()

    def raise_failure(self) -> None:
        if not self._failures:
            return
        errors = [failure for failure in self._failures if not isinstance(failure, Interrupted)]
        for other in errors[1:]:
            errors[0].add_note(f"Then another run failed as well: {other}")
        # One that was just about to begin says 0, which is no news where others have steps behind them.
        interruptions = sorted(
            (failure for failure in self._failures if isinstance(failure, Interrupted)),
            key=lambda interruption: interruption.step or math.inf,
        )
        first = errors[0] if errors else interruptions.pop(0)
        name_others(first, interruptions)
        raise first

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
