"""Who is told how a run goes: a person at a terminal, lines for a pipe, JSON for a program. The words are in
`words.py`, the live bar in `live.py`."""

import json
import sys
import time
from typing import Any, Protocol, TextIO

from .config import RunConfig
from .describe import delay, describe, describe_setting, duration, figures, number, outcome

Record = dict[str, Any]


class Progress(Protocol):
    """The events of a run. Nothing is computed for them: what costs a wait for the device comes seldom."""

    def preparing(self, config: RunConfig) -> None: ...
    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None: ...
    def advanced(self, step: int, loss: float | None) -> None: ...
    def evaluating(self, step: int) -> None: ...
    def evaluated(self, record: Record) -> None: ...
    def note(self, text: str) -> None: ...
    def finished(self, result: Record, *, again: bool = False) -> None: ...
    def close(self) -> None: ...


class Silent:
    """Tells nothing; also what the others start from."""

    def preparing(self, config: RunConfig) -> None:
        pass

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        pass

    def advanced(self, step: int, loss: float | None) -> None:
        pass

    def evaluating(self, step: int) -> None:
        pass

    def evaluated(self, record: Record) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def finished(self, result: Record, *, again: bool = False) -> None:
        pass

    def close(self) -> None:
        pass


class Together(Silent):
    """Several listeners as one."""

    def __init__(self, *listeners: Progress) -> None:
        self.listeners = listeners

    def preparing(self, config: RunConfig) -> None:
        for listener in self.listeners:
            listener.preparing(config)

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        for listener in self.listeners:
            listener.started(config, step, total, evaluations)

    def advanced(self, step: int, loss: float | None) -> None:
        for listener in self.listeners:
            listener.advanced(step, loss)

    def evaluating(self, step: int) -> None:
        for listener in self.listeners:
            listener.evaluating(step)

    def evaluated(self, record: Record) -> None:
        for listener in self.listeners:
            listener.evaluated(record)

    def note(self, text: str) -> None:
        for listener in self.listeners:
            listener.note(text)

    def finished(self, result: Record, *, again: bool = False) -> None:
        for listener in self.listeners:
            listener.finished(result, again=again)

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


class JsonLines(Silent):
    """One JSON object a line, with the field `event`, and `seed` where it is given: whose event it is."""

    def __init__(self, stream: TextIO | None = None, *, seed: int | None = None) -> None:
        self._stream = stream or sys.stdout
        self._whose = {} if seed is None else {"seed": seed}

    def _emit(self, event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, **self._whose, **fields}), file=self._stream, flush=True)

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        self._emit("started", step=step, total=total, configuration=config.to_dict())

    def evaluated(self, record: Record) -> None:
        self._emit("evaluated", **record)

    def note(self, text: str) -> None:
        self._emit("note", text=text)

    def finished(self, result: Record, *, again: bool = False) -> None:
        self._emit("finished", again=again, **result)


class PlainLines(Silent):
    """A line an evaluation, for a log file or a pipe. Where `seed` is given every line begins with it."""

    def __init__(self, stream: TextIO | None = None, *, seed: int | None = None) -> None:
        self._stream = stream or sys.stdout
        self._describe = describe if seed is None else describe_setting
        self._prefix = "" if seed is None else f"seed {seed}: "
        self._pace = Pace()
        self._total = 0

    def _say(self, text: str) -> None:
        print(self._prefix + text, file=self._stream, flush=True)

    def preparing(self, config: RunConfig) -> None:
        if patience := delay(config):
            self._say(patience)

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        self._total = total
        self._pace.start(step)
        self._say(f"{self._describe(config)}: {total} steps on {config.device}")
        if step:
            self._say(f"going on after step {step}")

    def evaluated(self, record: Record) -> None:
        self._pace.reach(record["step"])
        left = self._pace.left(self._total)
        self._say(
            f"step {record['step']}/{self._total}  loss {number(record['loss'])}  {figures(record)}  "
            f"{self._pace.rate():.1f} steps/s  {duration(left)} left"
        )

    def note(self, text: str) -> None:
        self._say(text)

    def finished(self, result: Record, *, again: bool = False) -> None:
        self._say(outcome(result, again))


class Pace:
    """Steps a second since the start of this process, and the time that is left at that pace."""

    def __init__(self) -> None:
        self.start(0)

    def start(self, step: int) -> None:
        self._first = self._step = step
        self._began = self._now = time.monotonic()

    def reach(self, step: int) -> None:
        self._step, self._now = step, time.monotonic()

    def rate(self) -> float:
        return (self._step - self._first) / max(self._now - self._began, 1e-9)

    def left(self, total: int) -> float:
        return (total - self._step) / self.rate() if self._step > self._first else float("nan")
