"""Evaluating the network of a run: as it was trained, and, where the run keeps them, with its averaged weights.

When that is done, and what is saved then, is in `loop.py`.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .tasks import Figures, Task
from .train_step import Trainer

Record = dict[str, Any]


def evaluate(trainer: Trainer) -> Record:
    """The figures of each split; those of averaged weights, on the same sets, are under `averaged`."""
    if trainer.average is None:
        return {**_figures(trainer.task)}
    with trainer.average.in_place(), _drawn_again(trainer.task):
        averaged = _figures(trainer.task)
    return {**_figures(trainer.task), "averaged": averaged}


def averaged_evaluations(evaluations: list[Record]) -> list[Record]:
    """The evaluations of the averaged weights, as if they were those of a run of their own."""
    return [{"step": record["step"], **record["averaged"]} for record in evaluations]


def _figures(task: Task) -> Figures:
    task.model.eval()
    with torch.no_grad():
        figures = task.evaluate()
    task.model.train()
    return figures


@contextlib.contextmanager
def _drawn_again(task: Task) -> Iterator[None]:
    """What is drawn in here is drawn once more afterwards."""
    states = {name: generator.get_state() for name, generator in task.generators.items()}
    yield
    for name, generator in task.generators.items():
        generator.set_state(states[name])
