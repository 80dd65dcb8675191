"""How a sweep reports: lines for a log or a pipe, bars for a person at a terminal."""

import sys
from typing import TYPE_CHECKING, Any, TextIO

from ..describe import count, duration
from ..machine import STOPPING
from ..progress import LINE_SECONDS, Timer
from .jobs import Job

if TYPE_CHECKING:
    from .run import Counters

# Columns beside a label: a bar, the progress, the last accuracy or the time left.
_BESIDE = 44
# Running jobs that a line names.
_NAMED = 8


class Lines:
    """One line when a run starts, ends or fails, and at least every minute.

    Other listeners override what they show in another way.
    """

    def __init__(self, stream: TextIO | None = None, *, seconds: float = LINE_SECONDS) -> None:
        self._stream = stream or sys.stdout
        self._labels: dict[str, str] = {}
        self._silence = Timer(seconds)

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
        self._silence.restart()

    def sweep_started(self, counters: "Counters") -> None:
        runs = count(counters.total, "run")
        self.note(f"{runs}, {counters.finished_before} already finished" if counters.finished_before else runs)

    def time_passed(self, counters: "Counters") -> None:
        """Nothing has happened for a moment."""
        if self._silence.is_due():
            running = [f"{self._labels[name]} {100 * part:.0f} %" for name, part in counters.running.items()]
            more = [f"{len(running) - _NAMED} more"] if len(running) > _NAMED else []
            shown = f" running: {'; '.join(running[:_NAMED] + more)};" if running else ""
            self.note(f"[{counters.done}/{counters.total}]{shown} all runs: {duration(counters.seconds_left())} left")

    def job_started(self, job: Job, counters: "Counters") -> None:
        self._labels[job.name] = job.label
        self.note(f"started: {job.label}")

    def job_advanced(self, job: Job, counters: "Counters") -> None:
        pass

    def job_finished(self, job: Job, result: dict[str, Any], counters: "Counters") -> None:
        left = duration(counters.seconds_left())
        self.note(f"[{counters.done}/{counters.total}] {_ending(job, result)}; all runs: {left} left")

    def job_failed(self, job: Job, message: str, again: bool, counters: "Counters") -> None:
        """In one line; the end of the sweep repeats it in full."""
        lines = message.splitlines()
        words = ": ".join(dict.fromkeys((lines[0], lines[-1])))
        self.note(f"failed{', will be retried' if again else ''}: {job.label}: {words}")

    def sweep_stopping(self) -> None:
        self.note(STOPPING)

    def close(self) -> None:
        pass


class Bars(Lines):
    """One bar for the sweep and one for each running job, with finished runs in lines above."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__()
        self._console = Console()
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[note]}"),
            console=self._console, transient=True,
        )  # fmt: skip
        self._all = self._bars.add_task("all runs", note="")
        self._rows: dict[str, Any] = {}

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def sweep_started(self, counters: "Counters") -> None:
        super().sweep_started(counters)
        self._update(counters)
        self._bars.start()

    def time_passed(self, counters: "Counters") -> None:
        pass

    def job_started(self, job: Job, counters: "Counters") -> None:
        label = _shortened(job.label, self._console.width - _BESIDE)
        self._rows[job.name] = self._bars.add_task(label, total=1.0, note="starting")

    def job_advanced(self, job: Job, counters: "Counters") -> None:
        fraction, accuracy = counters.running[job.name], counters.accuracy.get(job.name)
        note = f"{100 * fraction:.0f} %" + ("" if accuracy is None else f", test {accuracy:.1f}")
        self._bars.update(self._rows[job.name], completed=fraction, note=note)
        self._update(counters)

    def job_finished(self, job: Job, result: dict[str, Any], counters: "Counters") -> None:
        self._remove(job)
        self.note(_ending(job, result))
        self._update(counters)

    def job_failed(self, job: Job, message: str, again: bool, counters: "Counters") -> None:
        self._remove(job)
        super().job_failed(job, message, again, counters)

    def close(self) -> None:
        self._bars.stop()

    def _remove(self, job: Job) -> None:
        row = self._rows.pop(job.name, None)
        if row is not None:
            self._bars.remove_task(row)

    def _update(self, counters: "Counters") -> None:
        note = f"{counters.done}/{counters.total}, {duration(counters.seconds_left())} left"
        done = counters.done + sum(counters.running.values())
        self._bars.update(self._all, total=counters.total, completed=done, note=note)


def _shortened(label: str, width: int) -> str:
    """A label in `width` characters that keeps its end, the seed, in which labels of a sweep differ.

    >>> _shortened("sorting n=5, softsort (stable), baseline, seed 3", 32)
    'sorting n=5, softsort (…, seed 3'
    """
    if len(label) <= width:
        return label
    start, _, end = label.rpartition(", ")
    return f"{start[: max(width - len(end) - 3, 0)]}…, {end}"


def _ending(job: Job, result: dict[str, Any]) -> str:
    figures = _figures(result["test"])
    if "averaged" in result:
        figures += f", averaged {_figures(result['averaged']['test'])}"
    return f"{job.label}: {figures}, {duration(result['seconds'])}"


def _figures(test: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in test.items())
