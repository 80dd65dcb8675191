"""The live progress bar, with rich. Only for a person at a terminal; see `progress.py` for the others."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from .config import RunConfig
from .progress import Pace, Record, Silent, delay, describe, duration, number, outcome


class LiveBar(Silent):
    """A bar with the steps, their rate, the time left, the loss and the last accuracies, in 80 columns."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._pace = Pace()
        self._total = 0

    def preparing(self, config: RunConfig) -> None:
        if patience := delay(config):
            self._console.print(patience, style="dim", markup=False, highlight=False)

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        self.close()
        self._total = total
        self._pace.start(step)
        again = f", going on after step {step}" if step else ""
        self._console.print(f"[bold]{describe(config)}[/], on {config.device}{again}", highlight=False)
        self._bar = Progress(
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            TextColumn("{task.fields[loss]}"),
            TextColumn("[green]{task.fields[figures]}"),
            console=self._console,
            transient=True,
        )
        last = _short(evaluations[-1]) if evaluations else ""
        self._task = self._bar.add_task("", total=total, completed=step, pace="", loss="", figures=last)
        self._bar.start()

    def advanced(self, step: int, loss: float | None) -> None:
        if self._bar is None:
            return
        self._pace.reach(step)
        pace = f"{self._pace.rate():.1f}/s, {duration(self._pace.left(self._total))} left"
        self._bar.update(self._task, completed=step, pace=pace, loss=f"loss {number(loss)}")

    def evaluated(self, record: Record) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=record["step"], figures=_short(record))

    def note(self, text: str) -> None:
        self._console.print(text, style="yellow", markup=False, highlight=False)

    def finished(self, result: Record, *, again: bool = False) -> None:
        self.close()
        self._console.print(outcome(result, again), markup=False, highlight=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _short(record: Record) -> str:
    """The accuracies of an evaluation in a few characters.

    >>> _short({"validation": {"exact_match": 81.25}, "test": {"exact_match": 80.0}})
    'val 81.2 test 80.0 %'
    """
    validation, test = (next(iter(record[split].values())) for split in ("validation", "test"))
    return f"val {validation:.1f} test {test:.1f} %"
