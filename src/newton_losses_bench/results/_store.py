"""The store of results: a folder with run folders in it, at any depth, and nothing else to keep in order.

A record is a folder with a `result.json`. That file is written last and at once, and a folder is locked while
its run goes on, so that any number of processes can write into one store and any of them can be killed. Runs
of another machine are added by copying their folders.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from newton_losses.errors import NewtonLossesError

from ..config import configuration_class, identity, run_name
from ..store import AVERAGE, CHECKPOINT, CONFIG, PREVIOUS, RESULT, WEIGHTS, RunFolder, read_json
from ._record import RunRecord, UnreadableRecord, read_curve, read_record


@dataclass(frozen=True)
class UnfinishedRun:
    """A run that was begun: its folder, its configuration, and the step of its last evaluation (0 before it)."""

    path: Path
    configuration: dict[str, Any]
    step: int


class Store:
    """The runs under `path`, which need not exist yet.

    `notes` says what was left out by the last `records()` or `unfinished()`, and why.

    >>> store = Store("no/such/folder")
    >>> store.records(), store.unfinished(), store.notes
    ([], [], [])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.notes: list[str] = []

    def records(self) -> list[RunRecord]:
        """All finished runs in the order of their paths, each once.

        Of several records of one run the first counts, or the first with averaged weights.
        """
        self.notes = []
        found: dict[str, RunRecord] = {}
        for folder in self._folders(RESULT):
            try:
                record = read_record(folder)
            except UnreadableRecord as error:
                self.notes.append(str(error))
                continue
            other = found.setdefault(record.identity, record)
            if other is record:
                continue
            counts, left = (record, other) if record.averaged and not other.averaged else (other, record)
            found[record.identity] = counts
            self.notes.append(f"{left.path}: the same run as {counts.path}, which counts. This one is left out.")
        return sorted(found.values(), key=lambda record: record.path)

    def unfinished(self) -> list[UnfinishedRun]:
        """The runs that were begun and have no result, in the order of their paths."""
        self.notes = []
        found = []
        for folder in self._folders(CONFIG):
            if (folder / RESULT).exists():
                continue
            try:
                configuration = read_json(folder / CONFIG)["configuration"]
                identity(configuration)
                curve = read_curve(folder)
            except (NewtonLossesError, KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as why:
                self.notes.append(f"{folder}: left out, {why!r}")
                continue
            step = curve[-1].get("step") if curve else 0
            # Anybody may have written it; 2⁵³ is where whole numbers end to be floats.
            found.append(UnfinishedRun(folder, configuration, step if type(step) is int and abs(step) < 2**53 else 0))
        return found

    def folder_of(self, configuration: dict[str, Any]) -> Path:
        """Where a run with this (resolved) configuration goes, if no record of it is here under another name."""
        return self.path / run_name(configuration)

    def _folders(self, name: str) -> Iterator[Path]:
        """The folders that hold a file of this name. Hidden folders are no part of the store."""
        for parent, folders, files in os.walk(self.path):
            folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
            if name in files:
                yield Path(parent)


def compact(folder: Path) -> None:
    """Remove checkpoints and weights of a finished run: what is left is a few kilobytes."""
    configuration = read_json(folder / CONFIG)["configuration"]
    config = configuration_class(configuration["task"]).from_dict(configuration)
    with RunFolder(folder, config) as locked:
        if locked.result is None:
            return
        for name in (CHECKPOINT, PREVIOUS, WEIGHTS, AVERAGE):
            (folder / name).unlink(missing_ok=True)
