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


class Together(Progress):
    """Several listeners as one: each hears every event."""

    def __init__(self, *listeners: Progress) -> None:
        for event in (name for name in vars(Progress) if not name.startswith("_")):
            setattr(self, event, partial(_tell, [getattr(one, event) for one in listeners]))


def _tell(methods: list[Callable[..., None]], *arguments: Any, **options: Any) -> None:
    for method in methods:
        method(*arguments, **options)


class JsonLines(Progress):
    """One JSON object per line, with the field `event`, and `seed` where it is given."""

    def __init__(self, stream: TextIO | None = None, *, seed: int | None = None) -> None:
        self._stream = stream or sys.stdout
        self._seed = {} if seed is None else {"seed": seed}

    def _emit(self, event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, **self._seed, **fields}), file=self._stream, flush=True)

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        self._emit("started", step=step, total=total, configuration=config.to_dict())

    def evaluated(self, record: Record) -> None:
        self._emit("evaluated", **record)

    def note(self, text: str) -> None:
        self._emit("note", text=text)

    def finished(self, result: Record, *, again: bool = False) -> None:
        self._emit("finished", again=again, **result)


class PlainLines(Progress):
    """One line per evaluation, for a log file or a pipe."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._first = self._total = 0
        self._began = 0.0

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def preparing(self, config: RunConfig) -> None:
        if config.data == "terrain":
            self._say("loading the maps; missing ones are drawn first, about 400 per second")

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        self._first, self._total, self._began = step, total, time.monotonic()
        self._say(f"{describe(config)}: {total} steps on {config.device}")
        if step:
            self._say(f"resuming after step {step}")

    def evaluated(self, record: Record) -> None:
        rate, left = self._pace(record["step"])
        self._say(
            f"step {record['step']}/{self._total}  loss {number(record['loss'])}  {figures(record)}  "
            f"{rate:.1f} steps/s  {left} left"
        )

    def _pace(self, step: int) -> tuple[float, str]:
        """Steps per second since the start of this process, and the time left at that pace."""
        rate = (step - self._first) / max(time.monotonic() - self._began, 1e-9)
        return rate, duration((self._total - step) / rate if rate else math.nan)

    def note(self, text: str) -> None:
        self._say(text)

    def finished(self, result: Record, *, again: bool = False) -> None:
        self._say(outcome(result, again))


class LiveBar(PlainLines):
    """A bar with the steps, their rate, the time left, the loss and the last accuracies, in 80 columns."""

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

    def advanced(self, step: int, loss: float | None) -> None:
        self._update(step, loss=f"loss {number(loss)}")

    def evaluating(self, step: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=step, pace="evaluating", refresh=True)

    def evaluated(self, record: Record) -> None:
        self._update(record["step"], figures=_short(record))

    def _update(self, step: int, **fields: Any) -> None:
        if self._bar is not None:
            rate, left = self._pace(step)
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

    return RichProgress(
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
        TextColumn("{task.fields[loss]}"),
        TextColumn("[green]{task.fields[figures]}"),
        console=console,
        transient=True,
    )


def _short(record: Record) -> str:
    """The accuracies of an evaluation in a few characters.

    >>> _short({"validation": {"exact_match": 81.25}, "test": {"exact_match": 80.0}})
    'val 81.2 test 80.0 %'
    """
    validation, test = (next(iter(record[split].values())) for split in ("validation", "test"))
    return f"val {validation:.1f} test {test:.1f} %"
