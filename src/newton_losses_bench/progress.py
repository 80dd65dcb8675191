"""Who hears how a run goes: somebody at a terminal, a log, a program, TensorBoard. The sentences are in `describe.py`.

rich and tensorboard are imported when they are needed: not everybody has them, and both take their time.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .config import RunConfig
from .describe import Record, by_split, describe, duration, figures, number, outcome
from .train import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

# A log or a pipe hears at least this often that a run is alive.
LINE_SECONDS = 60.0
# Columns of a terminal that has room for the loss beside steps, pace and accuracies.
_WITH_LOSS = 72


class Together(Progress):
    """Several listeners as one: each hears every event."""

    def __init__(self, *listeners: Progress) -> None:
        for event in (name for name in vars(Progress) if not name.startswith("_")):
            setattr(self, event, partial(_tell, [getattr(one, event) for one in listeners]))


def _tell(methods: list[Callable[..., None]], *arguments: Any, **options: Any) -> None:
    for method in methods:
        method(*arguments, **options)


class Timer:
    """Whether `seconds` have passed since the last news."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        self._last = time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() - self._last >= self._seconds


class JsonLines(Progress):
    """One JSON object per line, with the field `event`, and `seed` where it is given; `advanced` once a minute."""

    def __init__(self, stream: TextIO | None = None, *, seed: int | None = None, seconds: float = LINE_SECONDS) -> None:
        self._stream = stream or sys.stdout
        self._seed = {} if seed is None else {"seed": seed}
        self._silence = Timer(seconds)

    def _emit(self, event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, **self._seed, **fields}), file=self._stream, flush=True)
        self._silence.restart()

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        self._emit("started", step=step, total=total, configuration=config.to_dict())

    def advanced(self, step: int, loss: float | None) -> None:
        if self._silence.is_due():
            self._emit("advanced", step=step, loss=loss)

    def evaluating(self, step: int, fraction: float = 0.0) -> None:
        if self._silence.is_due():
            self._emit("evaluating", step=step, fraction=round(fraction, 3))

    def evaluated(self, record: Record) -> None:
        self._emit("evaluated", **record)

    def note(self, text: str) -> None:
        self._emit("note", text=text)

    def finished(self, result: Record, *, again: bool = False) -> None:
        self._emit("finished", again=again, **result)


class _Pace:
    """How fast a run goes from a step on, evaluations apart."""

    def __init__(self, step: int) -> None:
        self._first, self._began = step, time.monotonic()
        self._evaluating_since: float | None = None
        self._evaluated_seconds = 0.0

    def evaluating(self) -> None:
        if self._evaluating_since is None:
            self._evaluating_since = time.monotonic()

    def evaluated(self) -> None:
        if self._evaluating_since is not None:
            self._evaluated_seconds += time.monotonic() - self._evaluating_since
            self._evaluating_since = None

    def at(self, step: int, total: int) -> tuple[float, str]:
        """Steps per second between evaluations, and the time left with as much evaluating as so far."""
        done, seconds = step - self._first, time.monotonic() - self._began
        rate = done / max(seconds - self._evaluated_seconds, 1e-9)
        return rate, duration((total - step) * seconds / done if done else math.nan)


class PlainLines(Progress):
    """One line per evaluation, and one at least every minute, for a log file or a pipe."""

    def __init__(self, stream: TextIO | None = None, *, seconds: float = LINE_SECONDS) -> None:
        self._stream = stream or sys.stdout
        self._total = 0
        self._pace, self._is_started_up = _Pace(0), False
        self._silence = Timer(seconds)

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
        self._silence.restart()

    def preparing(self, config: RunConfig) -> None:
        if config.data == "terrain":
            self._say("loading the maps; missing ones are drawn first, about 400 per second")

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        self._total, self._pace, self._is_started_up = total, _Pace(step), False
        self._say(f"{describe(config)}: {total} steps on {config.device}")
        if step:
            self._say(f"resuming after step {step}")

    def advanced(self, step: int, loss: float | None) -> None:
        if not self._is_started_up:  # the first steps compile and fill caches: their pace is not that of the others
            self._pace, self._is_started_up = _Pace(step), True
        self._show_step(step, loss)

    def evaluating(self, step: int, fraction: float = 0.0) -> None:
        self._pace.evaluating()
        self._show_evaluation(step, f"evaluating {100 * fraction:.0f} %")

    def evaluated(self, record: Record) -> None:
        self._pace.evaluated()
        self._show_record(record)

    # What `LiveBar` shows in another way

    def _show_step(self, step: int, loss: float | None) -> None:
        if self._silence.is_due():
            self._say(f"step {step}/{self._total}  loss {number(loss)}  {self._pace_at(step)}")

    def _show_evaluation(self, step: int, how_far: str) -> None:
        if self._silence.is_due():
            self._say(f"step {step}/{self._total}  {how_far}")

    def _show_record(self, record: Record) -> None:
        step, loss = record["step"], number(record["loss"])
        self._say(f"step {step}/{self._total}  loss {loss}  {figures(record)}  {self._pace_at(step)}")

    def _pace_at(self, step: int) -> str:
        rate, left = self._pace.at(step, self._total)
        return f"{rate:.1f} steps/s  {left} left"

    def note(self, text: str) -> None:
        self._say(text)

    def finished(self, result: Record, *, again: bool = False) -> None:
        self._say(outcome(result, again))


class LiveBar(PlainLines):
    """A bar with the steps, their rate, the time left, the loss and the last accuracies, in 80 columns.

    In fewer the bar goes first, then the loss.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.progress import TaskID

        super().__init__()
        self._console = console or Console()
        self._bar: RichProgress | None = None
        self._task = TaskID(0)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        super().started(config, step, total, evaluations)
        self._bar = _new_bar(self._console)
        last = _short(evaluations[-1]) if evaluations else ""
        self._task = self._bar.add_task("", total=total, completed=step, pace="", loss="", figures=last)
        self._bar.start()

    def _show_step(self, step: int, loss: float | None) -> None:
        self._update(step, loss=f"loss {number(loss)}")

    def _show_evaluation(self, step: int, how_far: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=step, pace=how_far, refresh=True)

    def _show_record(self, record: Record) -> None:
        self._update(record["step"], figures=_short(record))

    def _update(self, step: int, **fields: Any) -> None:
        if self._bar is not None:
            rate, left = self._pace.at(step, self._total)
            self._bar.update(self._task, completed=step, pace=f"{rate:.1f}/s, {left} left", **fields)

    def finished(self, result: Record, *, again: bool = False) -> None:
        self.close()
        super().finished(result, again=again)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class TensorBoard(Progress):
    """Writes all figures of every evaluation to the run's folder. A resumed run continues the curves."""

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = str(Path(folder) / "tensorboard")
        self._make = SummaryWriter
        self._writer: SummaryWriter | None = None

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        # The purge hides what a killed process wrote after the checkpoint that this one resumes from.
        self._writer = self._make(self._folder, purge_step=step + 1)

    def evaluated(self, record: Record) -> None:
        assert self._writer is not None
        for split, values in by_split(record).items():
            for figure, per_cent in values.items():
                self._writer.add_scalar(f"{split}/{figure}", per_cent, record["step"])
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _new_bar(console: "Console") -> "RichProgress":
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column

    columns = [
        BarColumn(bar_width=12),  # the only one that may shrink: it goes first where all is too wide
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[pace]}"),
        *([TextColumn("{task.fields[loss]}")] if console.width >= _WITH_LOSS else []),
        TextColumn("[green]{task.fields[figures]}"),
    ]
    return RichProgress(*columns, console=console, transient=True)


def _short(record: Record) -> str:
    """The accuracies of an evaluation in a few characters.

    >>> _short({"validation": {"exact_match": 81.25}, "test": {"exact_match": 80.0}})
    'val 81.2 test 80.0 %'
    """
    validation, test = (next(iter(record[split].values())) for split in ("validation", "test"))
    return f"val {validation:.1f} test {test:.1f} %"
