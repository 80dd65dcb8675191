"""The store of results: a folder with run folders and packed files in it, at any depth, and no index to keep in order.

A run is finished when its folder has a `result.json`. That file is written last and in one go, and a folder is locked
while its run lasts, so any number of processes can write into one store and any of them can be killed. To add the runs
of another machine, copy their folders, or the file that they were packed into.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from newton_losses.errors import NewtonLossesError

from ..config import configuration_class, identity, run_name
from .atomic_io import read_json
from .packed import SUFFIX, read_packed
from .run_folder import AVERAGE, CHECKPOINT, CONFIG, EVALUATIONS, PREVIOUS, RESULT, WEIGHTS, RunFolder

Figures = dict[str, float]


_UNREADABLE = (NewtonLossesError, LookupError, TypeError, ValueError, AttributeError, OverflowError, OSError)


class UnreadableRecord(NewtonLossesError, ValueError):
    """A folder has a result that cannot be used; the message says why."""


@dataclass(frozen=True)
class RunRecord:
    """What a finished run leaves behind. Accuracies are in per cent.

    - `path`: its folder; of a packed run, the file with the run's name behind it.
    - `configuration`: every setting, resolved; `environment`: versions, commit, device, command.
    - `test`: the figures of the result; `reported`: the evaluation that they are of; `final`: the last one.
    - `averaged`: the test figures of the averaged weights, where the run had them evaluated.
    - `at_once`: how many runs of its process shared the device, and with it the time of a step.
    - `curve`: all evaluations, in order.
    """

    path: Path
    configuration: dict[str, Any]
    environment: dict[str, Any]
    test: Figures
    reported: dict[str, Any]
    final: dict[str, Any]
    steps: int
    seconds: float
    milliseconds_per_step: float
    curve: list[dict[str, Any]] = field(repr=False)
    identity: str = field(repr=False)
    at_once: int = 1
    averaged: Figures = field(default_factory=dict)

    @property
    def task(self) -> str:
        return str(self.configuration["task"])

    @property
    def algorithm(self) -> str:
        return str(self.configuration["algorithm"])

    @property
    def curvature(self) -> str:
        return str(self.configuration["curvature"])

    @property
    def numerics(self) -> str | None:
        """ "stable" or "reference"; only sorting has the choice."""
        return self.configuration.get("numerics")

    @property
    def seed(self) -> int:
        return int(self.configuration["seed"])


def read_record(folder: Path) -> RunRecord:
    """The run of a folder that has a result; `UnreadableRecord` if a file of it is damaged or makes no sense."""
    try:
        result = read_json(folder / RESULT)
        stored = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
        return _record(folder, result, stored.get("environment", {}), read_curve(folder))
    except KeyError as error:
        raise UnreadableRecord(f"{folder / RESULT}: it has no {error}, and is left out.") from error
    except _UNREADABLE as error:
        raise UnreadableRecord(f"{folder}: left out, {error}") from error


def unpack_record(path: Path, line: dict[str, Any]) -> RunRecord:
    """The run of a line of a packed file, with the place that it is named by."""
    try:
        result = {"configuration": line["configuration"], **_object(line["result"])}
        return _record(path, result, line["environment"], [_object(one) for one in line["evaluations"]])
    except _UNREADABLE as error:
        raise UnreadableRecord(f"{path}: left out, {error!r}") from error


def _record(path: Path, result: dict[str, Any], environment: Any, curve: list[dict[str, Any]]) -> RunRecord:
    configuration = _object(result["configuration"])
    return RunRecord(
        path=path,
        configuration=configuration,
        environment=_object(environment),
        test={name: float(value) for name, value in result["test"].items()},
        reported=_object(result["reported"]),
        final=_object(result["final"]),
        steps=int(result["steps"]),
        seconds=float(result["seconds"]),
        milliseconds_per_step=float(result["milliseconds_per_step"]),
        at_once=int(result.get("at_once", 1)),
        averaged={name: float(value) for name, value in result.get("averaged", {}).get("test", {}).items()},
        curve=curve,
        identity=identity(configuration),
    )


def read_curve(folder: Path) -> list[dict[str, Any]]:
    """The evaluations that are there; a line that a crash has torn is left out."""
    file = folder / EVALUATIONS
    if not file.exists():
        return []
    curve = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            curve.append(record)
    return curve


def _object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"there is a {type(found).__name__} where an object belongs")
    return found


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
        for record in self._all_records():
            other = found.setdefault(record.identity, record)
            if other is record:
                continue
            counts, left = (record, other) if record.averaged and not other.averaged else (other, record)
            found[record.identity] = counts
            self.notes.append(f"{left.path}: the same run as {counts.path}, which counts. This one is left out.")
        return sorted(found.values(), key=lambda record: record.path)

    def _all_records(self) -> Iterator[RunRecord]:
        """Of every folder with a result and every line of a packed file; what cannot be read is noted."""
        for folder, files in self._walk():
            try:
                if RESULT in files:
                    yield read_record(folder)
            except UnreadableRecord as error:
                self.notes.append(str(error))
            for name in sorted(files):
                if name.endswith(SUFFIX) and name != EVALUATIONS:
                    yield from self._packed_records(folder / name)

    def _packed_records(self, file: Path) -> Iterator[RunRecord]:
        try:
            for name, line in read_packed(file):
                if isinstance(line, str):
                    self.notes.append(line)
                    continue
                try:
                    yield unpack_record(file / name, line)
                except UnreadableRecord as error:
                    self.notes.append(str(error))
        except OSError as error:
            self.notes.append(f"{file}: left out, {error.strerror or error}.")

    def unfinished(self) -> list[UnfinishedRun]:
        """The runs that were begun and have no result, in the order of their paths."""
        self.notes = []
        found = []
        for folder, files in self._walk():
            if CONFIG not in files or RESULT in files:
                continue
            try:
                configuration = read_json(folder / CONFIG)["configuration"]
                identity(configuration)
                curve = read_curve(folder)
            except _UNREADABLE as why:
                self.notes.append(f"{folder}: left out, {why!r}")
                continue
            step = curve[-1].get("step") if curve else 0
            # Anybody may have written it; 2⁵³ is where whole numbers end to be floats.
            found.append(UnfinishedRun(folder, configuration, step if type(step) is int and abs(step) < 2**53 else 0))
        return found

    def folder_of(self, configuration: dict[str, Any]) -> Path:
        """Where a run with this (resolved) configuration goes, if no record of it is here under another name."""
        return self.path / run_name(configuration)

    def _walk(self) -> Iterator[tuple[Path, list[str]]]:
        """All folders with the names of their files, in order. Hidden folders are no part of the store."""
        for parent, folders, files in os.walk(self.path):
            folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
            yield Path(parent), files


def compact(folder: Path) -> None:
    """Remove checkpoints and weights of a finished run: what is left is a few kilobytes."""
    configuration = read_json(folder / CONFIG)["configuration"]
    config = configuration_class(configuration["task"]).from_dict(configuration)
    with RunFolder(folder, config) as locked:
        if locked.result is None:
            return
        for name in (CHECKPOINT, PREVIOUS, WEIGHTS, AVERAGE):
            (folder / name).unlink(missing_ok=True)
