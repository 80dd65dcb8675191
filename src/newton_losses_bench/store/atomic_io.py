"""Files that survive a crash and show damage.

A file is replaced as a whole or not at all, whatever ends the process. JSON files carry a checksum of their own
content, so that a changed digit is never taken for a result:

    {"test": {"exact_match": 84.0}, …, "sha256": "5f1d…"}

The checksum is that of the content without it, as JSON with sorted keys: reading a file and writing it again does not
change it. Files of early versions have none and are read as they are. A checkpoint is a header line with a checksum,
then what `torch.save` writes; it is read with `weights_only=True`, so that nothing in a file can run code.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch

from newton_losses.errors import NewtonLossesError

Record = dict[str, Any]
_CHECKSUM = "sha256"
_CHECKPOINT_HEADER = b"newton-losses checkpoint 1"


class RunError(NewtonLossesError, RuntimeError):
    """A run folder cannot be used or written; the message says why and what to do."""


class BadCheckpoint(RunError):
    """A checkpoint that is there but cannot be trusted."""


# Writing


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at `path` by `content`: write it beside the old one, flush it to the disk, rename it."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise write_error(path, error) from error


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder durable, on systems that can open a folder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_writable(folder: Path) -> None:
    """Create a folder if there is none, and refuse one that cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise write_error(folder, error) from error


def write_error(path: Path, error: OSError) -> RunError:
    """The error to raise when the disk refused to write `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "The disk or your quota is full. Free some space and rerun the command"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "The folder is not writable. Change its permissions, or choose another (--out; for a sweep, --results)"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR):
        blocking = next((place for place in (path, *path.parents) if place.is_file()), path)
        hint = f"{blocking} is a file. Choose another folder"
    else:
        hint = "Find the cause and rerun the command"
    return RunError(f"{path}: could not be written ({error.strerror or error}). {hint}. What was saved before is kept.")


# Checksummed JSON


def checksummed_json(content: Record) -> bytes:
    """The bytes of a JSON file: the content, indented, with its checksum at the end.

    >>> json.loads(checksummed_json({"step": 1}))["sha256"][:8]
    '66acd07f'
    """
    whole = {**content, _CHECKSUM: checksum(content)}
    return (json.dumps(whole, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> Record:
    """A JSON object from a file, without its checksum; a `RunError` names the file if it was damaged or changed."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: could not be read as JSON ({error}). {_advice(path)}") from error
    if not isinstance(found, dict):
        raise RunError(f"{path}: holds {type(found).__name__} instead of an object. {_advice(path)}")
    expected = found.pop(_CHECKSUM, None)
    if expected is not None and expected != checksum(found):
        raise RunError(f"{path}: damaged or edited by hand, its checksum does not match. {_advice(path)}")
    return found


def file_checksum(path: Path) -> str | None:
    """The sha256 of a file, as `sha256sum` prints it; `None` if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def checksum(content: Record) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _advice(path: Path) -> str:
    if path.name == "result.json":
        if (path.parent / "checkpoint.pt").exists():
            return "Restore it; or delete it and rerun the command, which writes it again from the checkpoint."
        return "Restore it; or delete its folder and rerun the command, which repeats the run."
    return "Restore it, or use another folder."


# Checkpoints


def write_checkpoint(path: Path, state: Record) -> None:
    """Write a dictionary of tensors, numbers, strings, lists and dictionaries of those."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    header = b"%s sha256=%s\n" % (_CHECKPOINT_HEADER, hashlib.sha256(payload).hexdigest().encode())
    write_atomically(path, header + payload)


def read_checkpoint(path: Path) -> Record:
    """Read what `write_checkpoint` wrote, on the CPU; `BadCheckpoint` if a single bit has changed."""
    try:
        header, _, payload = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise BadCheckpoint(f"{path}: could not be read ({error.strerror}).") from error
    if not header.startswith(_CHECKPOINT_HEADER):
        raise BadCheckpoint(f"{path}: not a checkpoint of newton-losses, or its beginning is damaged.")
    digest = header.rpartition(b"sha256=")[2].decode("ascii", errors="replace")
    if hashlib.sha256(payload).hexdigest() != digest:
        raise BadCheckpoint(f"{path}: damaged, its checksum does not match ({len(payload)} bytes).")
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadCheckpoint(f"{path}: holds more than weights and numbers, and is not loaded ({error}).") from error
    except Exception as error:
        # The checksum is right, so this was made, not damaged; torch has many ways to fail at what it did not write.
        raise BadCheckpoint(f"{path}: not written by torch.save, and not loaded ({error!r}).") from error
    if not isinstance(state, dict):
        raise BadCheckpoint(f"{path}: holds a {type(state).__name__} instead of the state of a run.")
    return state
