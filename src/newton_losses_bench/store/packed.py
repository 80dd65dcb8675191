"""Many finished runs in one file: a line of JSON per run, written by `pack` from run folders.

    {"run": "softsort-n5-stable-fisher-100000-s0-597a912c", "configuration": {…}, "environment": {…},
     "evaluations": […], "result": {…}, "sha256": "5f1d…"}

A line holds all that `config.json`, `evaluations.jsonl` and `result.json` say; weights and checkpoints stay behind. Its
checksum is that of the line without it, so that a changed digit is never taken for a result.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from newton_losses.errors import ArgumentError

from .atomic_io import RunError, check_writable, checksum, file_checksum, read_json, sync_folder, write_error
from .run_folder import CONFIG, EVALUATIONS, RESULT, is_in_use

SUFFIX = ".jsonl"
_CHECKSUM = "sha256"
_PARTS = ("run", "configuration", "environment", "evaluations", "result")


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
    target, folders = Path(out), list(folders)
    if target.suffix != SUFFIX or target.name == EVALUATIONS:
        raise ArgumentError(f"--out {target}: the name of a file of packed runs ends in {SUFFIX}.")
    found = Packed()
    runs = dict(_runs(folders, found.notes))
    if not runs:
        raise ArgumentError(
            f"No finished run lies in {', '.join(map(str, folders))}. A finished run is a folder with a {RESULT}."
        )
    known = {line["run"]: line[_CHECKSUM] for _, line in _lines(target)} if target.exists() else {}
    before = file_checksum(target)
    if target.exists() and target.stat().st_size and not known:
        raise ArgumentError(f"--out {target}: there is such a file, and it holds no packed runs. Choose another name.")
    check_writable(target.parent)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if known:
                with target.open("rb") as earlier:
                    shutil.copyfileobj(earlier, file)
            for name, folder in runs.items():
                line = packed_run(name, folder)
                if name not in known:
                    found.added.append(name)
                    file.write(json.dumps(line).encode() + b"\n")
                elif known[name] == line[_CHECKSUM]:
                    found.known.append(name)
                else:
                    raise RunError(
                        f"{target} has a run {name} with another content than {folder}. Nothing was written: pack one "
                        "of the two into another file."
                    )
            file.flush()
            os.fsync(file.fileno())
        # What is not readable now would be lost with the folders.
        written = [line["run"] for _, line in _lines(temporary)]
        if written != [*known, *found.added]:
            raise RunError(f"{target}: what was written does not read back as the runs that were packed. Pack again.")
        if file_checksum(target) != before:
            raise RunError(f"{target}: another process has changed it meanwhile. Nothing was written: pack again.")
        if found.added:
            os.replace(temporary, target)
            sync_folder(target.parent)
    except OSError as error:
        raise write_error(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    return found


def packed_run(name: str, folder: Path) -> dict[str, Any]:
    """The line of a finished run; a `RunError` where a file of it is damaged."""
    result = read_json(folder / RESULT)
    evaluations = _evaluations(folder, result.get("files", {}).get(EVALUATIONS))
    # Without its other file a run has no environment.
    stored = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    configuration = stored.pop("configuration", result.get("configuration"))
    # As a rule the result repeats it.
    if result.get("configuration") == configuration:
        del result["configuration"]
    line = {
        "run": name,
        "configuration": configuration,
        "environment": stored.pop("environment", {}),
        "evaluations": evaluations,
        "result": result,
    }
    if stored:
        raise RunError(f"{folder / CONFIG}: holds {', '.join(stored)}, for which a packed run has no place.")
    return {**line, _CHECKSUM: checksum(line)}


def read_packed(path: Path) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Each run of a file: its name, and its line, or, where the line is damaged, what is wrong with it.

    A file whose first line is whole, and is no packed run, holds something else: it has none.
    """
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            name = f"line {number}"
            try:
                line = json.loads(text)
            except (ValueError, RecursionError) as error:
                yield name, f"{path}, {name}: left out, no JSON ({error})."
                continue
            if not isinstance(line, dict) or any(part not in line for part in _PARTS):
                if number == 1:
                    return
                yield name, f"{path}, {name}: left out, no packed run."
            elif line.get(_CHECKSUM) != checksum({part: value for part, value in line.items() if part != _CHECKSUM}):
                yield name, f"{path}, {name}: left out, damaged or edited by hand: its checksum does not match."
            else:
                yield str(line["run"]), line


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """As `read_packed`, with damage as an error."""
    for name, line in read_packed(path):
        if isinstance(line, str):
            raise RunError(f"{line} Restore the file, or pack into another one. Nothing was written.")
        yield name, line


def _runs(folders: Iterable[str | os.PathLike[str]], notes: list[str]) -> Iterator[tuple[str, Path]]:
    """The finished runs in or under some folders by their names, which are different."""
    seen: dict[str, Path] = {}
    for given in map(Path, folders):
        if not given.is_dir():
            raise ArgumentError(f"{given}: there is no such folder.")
        for parent, below, files in os.walk(given):
            below[:] = sorted(folder for folder in below if not folder.startswith("."))
            folder = Path(parent)
            if CONFIG not in files and RESULT not in files:
                continue
            if RESULT not in files or is_in_use(folder):
                notes.append(f"{folder}: not finished, and left out.")
                continue
            name = given.resolve().name if folder == given else folder.relative_to(given).as_posix()
            if name in seen:
                raise ArgumentError(f"{seen[name]} and {folder} would both be called {name}. Pack them one by one.")
            seen[name] = folder
            yield name, folder


def _evaluations(folder: Path, wanted: str | None) -> list[dict[str, Any]]:
    """All evaluations of a run, which are as they were when it ended."""
    path = folder / EVALUATIONS
    if wanted is not None and file_checksum(path) != wanted:
        raise RunError(f"{path}: damaged, its checksum is not the one in {RESULT}. Restore it before packing.")
    try:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: could not be read ({error}). Restore it before packing.") from error
    if not all(isinstance(one, dict) for one in found):
        raise RunError(f"{path}: a line of it is no JSON object. Restore it before packing.")
    return found
