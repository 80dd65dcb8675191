"""The store of results: a folder with run folders and packed files in it, at any depth, and no index to keep in order.

A run is finished when its folder has a `result.json`. That file is written last and in one go, and a folder is locked
while its run lasts, so any number of processes can write into one store and any of them can be killed. `pack` puts
finished runs into one file, a line of JSON per run:

    {"run": "softsort-n5-stable-fisher-100000-s0-597a912c", "configuration": {…}, "environment": {…},
     "evaluations": […], "result": {…}, "sha256": "5f1d…"}

A line holds all that `config.json`, `evaluations.jsonl` and `result.json` say; weights and checkpoints stay behind. Its
checksum is that of the line without it, so that a changed digit is never taken for a result.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from newton_losses.errors import ArgumentError, NewtonLossesError

from ..config import identity
from .atomic_io import Record, RunError, check_writable, checksum, file_checksum, read_json, write_atomically
from .run_folder import CONFIG, EVALUATIONS, RESULT

SUFFIX = ".jsonl"
_CHECKSUM = "sha256"
_PARTS = ("run", "configuration", "environment", "evaluations", "result")
# What reading JSON that anybody may have written can raise.
_UNREADABLE = (NewtonLossesError, LookupError, TypeError, ValueError, AttributeError, OverflowError, OSError)

Figures = dict[str, float]


@dataclass(frozen=True)
class RunRecord:
    """What a finished run leaves behind. Accuracies are in per cent.

    - `path`: its folder; of a packed run, the file with the run's name behind it.
    - `configuration`: every setting, resolved; `environment`: versions, commit, device, command.
    - `test`: the figures of the result.
    - `averaged`: the test figures of the averaged weights, where the run had them evaluated.
    - `curve`: all evaluations, in order.
    """

    path: Path
    configuration: dict[str, Any]
    environment: dict[str, Any]
    test: Figures
    steps: int
    seconds: float
    milliseconds_per_step: float
    curve: list[dict[str, Any]] = field(repr=False)
    identity: str = field(repr=False)
    averaged: Figures = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return int(self.configuration["seed"])


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
        for path, line in self._lines():
            try:
                record = _record(path, line)
            except RunError as error:
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
        for folder, files in walk(self.path):
            if CONFIG not in files or RESULT in files:
                continue
            try:
                configuration = read_json(folder / CONFIG)["configuration"]
                identity(configuration)
                curve = _evaluations(folder)
            except _UNREADABLE as why:
                self.notes.append(f"{folder}: left out, {why!r}")
                continue
            step = curve[-1].get("step") if curve else 0
            # Anybody may have written it; 2⁵³ is where whole numbers end to be floats.
            found.append(UnfinishedRun(folder, configuration, step if type(step) is int and abs(step) < 2**53 else 0))
        return found

    def _lines(self) -> Iterator[tuple[Path, Record | RunError]]:
        """Every folder with a result and every line of a packed file, or what is wrong with it."""
        for folder, files in walk(self.path):
            if RESULT in files:
                try:
                    yield folder, _line(folder.name, folder)
                except RunError as error:
                    yield folder, error
            for name in sorted(files):
                if name.endswith(SUFFIX) and name != EVALUATIONS:
                    yield from _packed_lines(folder / name)


def walk(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """All folders with the names of their files, in order. Hidden folders are no part of a store."""
    for parent, folders, files in os.walk(path):
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        yield Path(parent), files


# Reading a run


def read_record(folder: Path) -> RunRecord:
    """The run of a folder that has a result; a `RunError` if a file of it is damaged or makes no sense."""
    return _record(folder, _line(folder.name, folder))


def _record(path: Path, line: Record | RunError) -> RunRecord:
    try:
        if isinstance(line, RunError):
            raise line
        result = {"configuration": line["configuration"], **_object(line["result"])}
        configuration = _object(result["configuration"])
        return RunRecord(
            path=path,
            configuration=configuration,
            environment=_object(line["environment"]),
            test={name: float(value) for name, value in result["test"].items()},
            steps=int(result["steps"]),
            seconds=float(result["seconds"]),
            milliseconds_per_step=float(result["milliseconds_per_step"]),
            averaged={name: float(value) for name, value in result.get("averaged", {}).get("test", {}).items()},
            curve=[_object(one) for one in line["evaluations"]],
            identity=identity(configuration),
        )
    except KeyError as error:
        raise RunError(f"{path}: left out, its result has no {error}.") from error
    except _UNREADABLE as error:
        raise RunError(f"{path}: left out, {error}") from error


def _line(name: str, folder: Path) -> Record:
    """The line of a finished run, without its checksum; a `RunError` where a file of it is damaged."""
    result = read_json(folder / RESULT)
    files = result.get("files")
    evaluations = _evaluations(folder, files.get(EVALUATIONS) if isinstance(files, dict) else None)
    # Without its other file a run has no environment.
    stored = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    configuration = stored.get("configuration", result.get("configuration"))
    # As a rule the result repeats it.
    if result.get("configuration") == configuration:
        del result["configuration"]
    environment = stored.get("environment", {})
    return dict(zip(_PARTS, (name, configuration, environment, evaluations, result), strict=True))


def _evaluations(folder: Path, wanted: str | None = None) -> list[Record]:
    """The evaluations of a run, which are as they were when it ended; a line that a crash has torn is left out."""
    path = folder / EVALUATIONS
    if wanted is not None and file_checksum(path) != wanted:
        raise RunError(
            f"{path}: damaged, its checksum is not the one in {RESULT}. Restore it; or, while the checkpoint is there, "
            f"delete {RESULT} and rerun the command, which writes both again."
        )
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    except OSError as error:
        raise RunError(f"{path}: could not be read ({error.strerror}).") from error
    found = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def _object(found: Any) -> Record:
    if not isinstance(found, dict):
        raise ValueError(f"there is a {type(found).__name__} where an object belongs")
    return found


# Packed runs


@dataclass
class Packed:
    """What `pack` did: the names of the runs that it added and of those that were there, and what it left out."""

    added: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def pack(folders: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Packed:
    """Add every finished run in or under `folders` to the file `out`, which is made where there is none.

    A run's name in the file is its path below the folder that was given. Doing it again changes nothing. Refused, with
    `out` as it was: a damaged run, a damaged line of `out`, and a run whose name `out` has with another content. The
    folders stay; runs that are not finished are left out, and named in the notes.
    """
    target, places = Path(out), [Path(folder) for folder in folders]
    if target.suffix != SUFFIX or target.name == EVALUATIONS:
        raise ArgumentError(f"--out {target}: the name of a file of packed runs ends in {SUFFIX}.")
    packed = Packed()
    runs = _finished_runs(places, packed.notes)
    if not runs:
        raise ArgumentError(
            f"No finished run lies in {', '.join(map(str, places))}. A finished run is a folder with a {RESULT}."
        )
    known = {}
    for _, line in _packed_lines(target) if target.exists() else ():
        if isinstance(line, RunError):
            raise RunError(f"{line} Restore the file, or pack into another one. Nothing was written.")
        known[line["run"]] = checksum(line)
    content = target.read_bytes() if target.exists() else b""
    if content and not known:
        raise ArgumentError(f"--out {target}: this file exists and holds no packed runs. Choose another name.")
    for name, folder in runs.items():
        line = _line(name, folder)
        sha256 = checksum(line)
        if name not in known:
            packed.added.append(name)
            content += json.dumps({**line, _CHECKSUM: sha256}).encode() + b"\n"
        elif known[name] == sha256:
            packed.known.append(name)
        else:
            raise RunError(
                f"{target} has a run {name} with another content than {folder}. Nothing was written: pack one of the "
                "two into another file."
            )
    if packed.added:
        check_writable(target.parent)
        write_atomically(target, content)
    return packed


def _finished_runs(folders: list[Path], notes: list[str]) -> dict[str, Path]:
    """The finished runs in or under some folders by their names, which are different."""
    found: dict[str, Path] = {}
    for given in folders:
        if not given.is_dir():
            raise ArgumentError(f"{given}: there is no such folder.")
        for folder, files in walk(given):
            if RESULT in files:
                name = given.resolve().name if folder == given else folder.relative_to(given).as_posix()
                if name in found:
                    raise ArgumentError(f"{found[name]} and {folder} would both be called {name}. Pack one of them.")
                found[name] = folder
            elif CONFIG in files:
                notes.append(f"{folder}: not finished, and left out.")
    return found


def _packed_lines(path: Path) -> Iterator[tuple[Path, Record | RunError]]:
    """Each run of a packed file without its checksum, or what is wrong with its line. Empty lines are nothing."""
    try:
        texts = path.read_bytes().splitlines()
    except OSError as error:
        yield path, RunError(f"{path}: left out, {error.strerror or error}.")
        return
    lines = [(number, text) for number, text in enumerate(texts, start=1) if text.strip()]
    if _is_something_else([text for _, text in lines]):
        return
    for number, text in lines:
        place = f"{path}, line {number}"
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield path, RunError(f"{place}: left out, not JSON ({error}).")
            continue
        if not _is_packed_run(line):
            yield path, RunError(f"{place}: left out, not a packed run.")
        elif line.pop(_CHECKSUM, None) != checksum(line):
            yield path, RunError(f"{place}: left out, damaged or edited by hand: its checksum does not match.")
        else:
            yield path / str(line["run"]), line


def _is_packed_run(line: Any) -> bool:
    return isinstance(line, dict) and all(part in line for part in _PARTS)


def _is_something_else(lines: list[bytes]) -> bool:
    """Whether a file never was one of packed runs: its first line is JSON, and no line is a run."""
    for number, text in enumerate(lines):
        try:
            if _is_packed_run(json.loads(text)):
                return False
        except (ValueError, RecursionError):
            if number == 0:
                return False
    return True
