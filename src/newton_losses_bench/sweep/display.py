"""What a sweep tells: lines for a log or a pipe, bars for a person at a terminal."""

import sys
from typing import Any, TextIO

from ..describe import duration
from ..signals import STOPPING
from .counters import Tally
from .jobs import Job

# What stands beside a label: a bar, how far it is, and the time left of all.
_BESIDE = 44


class Lines:
    """A line when a run begins, ends or fails."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def sweep_started(self, tally: Tally) -> None:
        self._say(opening(tally))

    def job_started(self, job: Job, tally: Tally) -> None:
        self._say(f"begins: {job.label}")

    def job_advanced(self, job: Job, tally: Tally) -> None:
        pass

    def job_finished(self, job: Job, result: dict[str, Any], tally: Tally) -> None:
        self._say(f"[{tally.done}/{tally.total}] {ending(job, result)}, {duration(tally.seconds_left())} left in all")

    def job_failed(self, job: Job, message: str, again: bool, tally: Tally) -> None:
        self._say(failing(job, message, again))

    def sweep_stopping(self) -> None:
        self._say(STOPPING)

    def close(self) -> None:
        pass


class Bars:
    """A bar for the sweep and one for each run at work, with lines above for what is done."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console()
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[note]}"),
            console=self._console, transient=True,
        )  # fmt: skip
        self._all = self._bars.add_task("all runs", note="")
        self._rows: dict[str, Any] = {}

    def sweep_started(self, tally: Tally) -> None:
        self._print(opening(tally))
        self._update(tally)
        self._bars.start()

    def job_started(self, job: Job, tally: Tally) -> None:
        self._rows[job.name] = self._bars.add_task(
            shortened(job.label, self._console.width - _BESIDE), total=1.0, note="starting"
        )

    def job_advanced(self, job: Job, tally: Tally) -> None:
        fraction = tally.running[job.name]
        self._bars.update(self._rows[job.name], completed=fraction, note=f"{100 * fraction:.0f} %")
        self._update(tally)

    def job_finished(self, job: Job, result: dict[str, Any], tally: Tally) -> None:
        self._remove(job)
        self._print(ending(job, result))
        self._update(tally)

    def job_failed(self, job: Job, message: str, again: bool, tally: Tally) -> None:
        self._remove(job)
        self._print(failing(job, message, again), style="red")

    def sweep_stopping(self) -> None:
        self._print(STOPPING)

    def close(self) -> None:
        self._bars.stop()

    def _print(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, markup=False, highlight=False)

    def _remove(self, job: Job) -> None:
        row = self._rows.pop(job.name, None)
        if row is not None:
            self._bars.remove_task(row)

    def _update(self, tally: Tally) -> None:
        note = f"{tally.done}/{tally.total}, {duration(tally.seconds_left())} left"
        done = tally.done + sum(tally.running.values())
        self._bars.update(self._all, total=tally.total, completed=done, note=note)


def shortened(label: str, width: int) -> str:
    """A label in so many characters, with its end, the seed, which the labels of a sweep have not in common.

    >>> shortened("sorting n=5, softsort (stable), baseline, seed 3", 32)
    'sorting n=5, softsort (…, seed 3'
    """
    if len(label) <= width:
        return label
    start, _, end = label.rpartition(", ")
    return f"{start[: max(width - len(end) - 3, 0)]}…, {end}"


def opening(tally: Tally) -> str:
    """What there is to do."""
    before = f", of which {tally.finished_before} are done already" if tally.finished_before else ""
    return f"{tally.total} {'run' if tally.total == 1 else 'runs'}{before}"


def ending(job: Job, result: dict[str, Any]) -> str:
    """The outcome of a run in a line."""
    figures = _figures(result["test"])
    if "averaged" in result:
        figures += f", averaged {_figures(result['averaged']['test'])},"
    return f"{job.label}: {figures} in {duration(result['seconds'])}"


def _figures(test: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in test.items())


def failing(job: Job, message: str, again: bool) -> str:
    """How it ended and its last words, in a line; the end of a sweep has all of it."""
    lines = message.splitlines()
    words = ": ".join(dict.fromkeys((lines[0], lines[-1])))
    return f"failed{', will be tried again' if again else ''}: {job.label}: {words}"
