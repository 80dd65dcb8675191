"""What a run tells while it trains: a live bar for a person, plain lines for a pipe, JSON for a program."""

import json
import sys
import time
from typing import Any, Protocol, TextIO

from .config import RunConfig

Record = dict[str, Any]


class Progress(Protocol):
    """The events of a run. Nothing is computed for them: what costs a wait for the device comes seldom."""

    def preparing(self, config: RunConfig) -> None: ...
    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None: ...
    def advanced(self, step: int, loss: float | None) -> None: ...
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


def delay(config: RunConfig) -> str | None:
    """What to say before a wait that a person would wonder about."""
    if config.data == "terrain":
        return "getting the maps ready; those that are not there yet are drawn, 400 or so a second"
    return None


def describe(config: RunConfig) -> str:
    """A run in a few words.

    >>> from newton_losses.bench.config import SortingConfig
    >>> describe(SortingConfig(algorithm="softsort", curvature="fisher", device="cpu").resolved())
    'sorting n=5, softsort (stable), fisher λ=10, seed 0'
    """
    return f"{describe_setting(config)}, seed {config.seed}"


def describe_setting(config: RunConfig) -> str:
    """What runs that differ in nothing but their seed have in common."""
    details = {"sorting": f" n={getattr(config, 'n', '')}"}.get(config.task, "")
    numerics = getattr(config, "numerics", None)
    algorithm = f"{config.algorithm} ({numerics})" if numerics else config.algorithm
    if config.curvature == "none":
        arm = "baseline"
    elif config.relative_damping is not None:
        arm = f"{config.curvature} λ={config.relative_damping:g}·scale"
    elif isinstance(config.damping, str):
        arm = f"{config.curvature} λ={config.damping}"
    else:
        arm = f"{config.curvature} λ={config.damping:g}"
    return f"{config.task}{details}, {algorithm}, {arm}"


def figures(record: Record) -> str:
    """The accuracies of an evaluation.

    >>> figures({"validation": {"exact_match": 81.25}, "test": {"exact_match": 80.0}})
    'validation exact match 81.25 %  test exact match 80.00 %'
    """
    parts = []
    for split in ("validation", "test"):
        for name, value in list(record.get(split, {}).items())[:1]:
            parts.append(f"{split} {name.replace('_', ' ')} {value:.2f} %")
    return "  ".join(parts)


def outcome(result: Record, again: bool) -> str:
    """The last line about a run."""
    values = ", ".join(f"{name.replace('_', ' ')} {value:.2f} %" for name, value in result["test"].items())
    start = "this run is finished" if again else "finished"
    shared = f" with {result['at_once']} runs at once" if result.get("at_once", 1) > 1 else ""
    return (
        f"{start}: test {values} (evaluation after step {result['reported']['step']} of {result['steps']}), "
        f"{duration(result['seconds'])}, {result['milliseconds_per_step']:.2f} ms a step{shared}"
    )


def number(value: float | None) -> str:
    """A loss for people; one that is not finite was stored as `None`."""
    return "not finite" if value is None else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> duration(3723)
    '1:02:03'
    """
    if seconds != seconds:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
