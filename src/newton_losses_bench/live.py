"""The live progress bar, of one run or of several at once, with rich. Only for a person at a terminal; see
`progress.py` for the others."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from .config import RunConfig
from .describe import delay, describe, describe_setting, duration, number, outcome
from .progress import Pace, Record, Silent


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
        self._bar = _new_bar(self._console)
        last = _short(evaluations[-1]) if evaluations else ""
        self._task = self._bar.add_task("", total=total, completed=step, pace="", loss="", figures=last)
        self._bar.start()

    def advanced(self, step: int, loss: float | None) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=step, pace=self._reach(step), loss=f"loss {number(loss)}")

    def evaluating(self, step: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=step, pace="evaluating", refresh=True)

    def evaluated(self, record: Record) -> None:
        if self._bar is not None:
            step = record["step"]
            self._bar.update(self._task, completed=step, pace=self._reach(step), figures=_short(record))

    def _reach(self, step: int) -> str:
        self._pace.reach(step)
        return f"{self._pace.rate():.1f}/s, {duration(self._pace.left(self._total))} left"

    def note(self, text: str) -> None:
        self._console.print(text, style="yellow", markup=False, highlight=False)

    def finished(self, result: Record, *, again: bool = False) -> None:
        self.close()
        self._console.print(outcome(result, again), markup=False, highlight=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class LiveBarOfSeveral:
    """One bar over the steps of runs that differ in nothing but their `seeds`; each of them tells `of(seed)`."""

    def __init__(self, seeds: list[int], console: Console | None = None) -> None:
        self.console = console or Console()
        self._done = dict.fromkeys(seeds, 0)
        self._accuracies: dict[int, float] = {}
        self._total = 0
        self._made = 0
        self._pace = Pace()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def of(self, seed: int) -> "OneOfSeveral":
        """What the run of this seed tells."""
        return OneOfSeveral(self, seed)

    def begin(self, config: RunConfig, step: int, total: int) -> None:
        if not self._total:
            seeds = ", ".join(map(str, self._done))
            self.say(f"{describe_setting(config)}, on {config.device}, seeds {seeds}", "bold")
            self._pace.start(0)
        self._total = total
        # What another process has done is no sign of the pace of this one.
        self._done[config.seed] = step
        if self._bar is None:
            self._bar = _new_bar(self.console)
            self._task = self._bar.add_task("", total=None, pace="", loss="", figures="")
            self._bar.start()
        self._show()

    def reach(self, seed: int, step: int) -> None:
        self._made += step - self._done[seed]
        self._done[seed] = step
        self._show()

    def evaluating(self, seed: int, step: int) -> None:
        """In the place of the pace, until the next news: there are none of the other runs meanwhile."""
        self.reach(seed, step)
        if self._bar is not None:
            self._bar.update(self._task, pace=f"evaluating seed {seed}", refresh=True)

    def evaluated(self, seed: int, record: Record) -> None:
        self._accuracies[seed] = next(iter(record["test"].values()))
        self.reach(seed, record["step"])

    def end(self, seed: int, steps: int) -> None:
        """A run has its result: it counts as done, and its accuracy has been said for good."""
        self._done[seed] = steps
        self._accuracies.pop(seed, None)
        self._show()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, markup=False, highlight=False)

    def _show(self) -> None:
        if self._bar is None:
            return
        done, total = sum(self._done.values()), self._total * len(self._done)
        self._pace.reach(self._made)
        pace = f"{self._pace.rate():.1f}/s, {duration(self._pace.left(self._made + total - done))} left"
        figures = _range([self._accuracies[seed] for seed in sorted(self._accuracies)])
        self._bar.update(self._task, completed=done, total=total, pace=pace, figures=figures)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class OneOfSeveral(Silent):
    """The part of one run in a bar of several."""

    def __init__(self, bar: LiveBarOfSeveral, seed: int) -> None:
        self._bar = bar
        self._seed = seed

    def preparing(self, config: RunConfig) -> None:
        if patience := delay(config):
            self._bar.say(f"seed {self._seed}: {patience}", "dim")

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        if step:
            self.note(f"going on after step {step}")
        self._bar.begin(config, step, total)
        if evaluations:
            self._bar.evaluated(self._seed, {**evaluations[-1], "step": step})

    def advanced(self, step: int, loss: float | None) -> None:
        self._bar.reach(self._seed, step)

    def evaluating(self, step: int) -> None:
        self._bar.evaluating(self._seed, step)

    def evaluated(self, record: Record) -> None:
        self._bar.evaluated(self._seed, record)

    def note(self, text: str) -> None:
        self._bar.say(f"seed {self._seed}: {text}", "yellow")

    def finished(self, result: Record, *, again: bool = False) -> None:
        self._bar.end(self._seed, result["steps"])
        self._bar.say(f"seed {self._seed}: {outcome(result, again)}")

    def close(self) -> None:
        self._bar.close()


def _new_bar(console: Console) -> Progress:
    return Progress(
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
        TextColumn("{task.fields[loss]}"),
        TextColumn("[green]{task.fields[figures]}"),
        console=console,
        transient=True,
    )


def _range(accuracies: list[float]) -> str:
    """The test accuracies of a few runs, or the least and the largest of many.

    >>> _range([71.25, 70.0]), _range([71.25, 70.0, 69.5, 72.5, 70.5])
    ('test 71.2 70.0 %', 'test 69.5 to 72.5 %')
    """
    if not accuracies:
        return ""
    if len(accuracies) > 4:
        return f"test {min(accuracies):.1f} to {max(accuracies):.1f} %"
    return f"test {' '.join(f'{accuracy:.1f}' for accuracy in accuracies)} %"


def _short(record: Record) -> str:
    """The accuracies of an evaluation in a few characters.

    >>> _short({"validation": {"exact_match": 81.25}, "test": {"exact_match": 80.0}})
    'val 81.2 test 80.0 %'
    """
    validation, test = (next(iter(record[split].values())) for split in ("validation", "test"))
    return f"val {validation:.1f} test {test:.1f} %"
