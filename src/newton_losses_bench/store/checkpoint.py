"""The file format of a checkpoint: a header line with a checksum, then what `torch.save` writes.

It is read with `weights_only=True`, so that nothing in a file can run code. Which checkpoints a run keeps
is the business of `run_folder.py`.
"""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch

from .atomic_io import RunError, write_atomically

_MAGIC = b"newton-losses checkpoint 1"


class BadCheckpoint(RunError):
    """A checkpoint that is there but cannot be trusted."""


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a dictionary of tensors, numbers, strings, lists and dictionaries of those."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    header = b"%s sha256=%s\n" % (_MAGIC, hashlib.sha256(payload).hexdigest().encode())
    write_atomically(path, header + payload)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read what `write_checkpoint` wrote, on the CPU; `BadCheckpoint` if a single bit is not as it was."""
    try:
        header, _, payload = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise BadCheckpoint(f"{path}: could not be read ({error.strerror}).") from error
    if not header.startswith(_MAGIC):
        raise BadCheckpoint(f"{path}: this is not a checkpoint of newton-losses, or its beginning is damaged.")
    digest = header.rpartition(b"sha256=")[2].decode("ascii", errors="replace")
    if hashlib.sha256(payload).hexdigest() != digest:
        raise BadCheckpoint(f"{path}: damaged, its checksum does not match ({len(payload)} bytes).")
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadCheckpoint(f"{path}: holds more than weights and numbers, and is not loaded ({error}).") from error
    except Exception as error:
        # The sum is right, so this was made, not damaged; torch has many ways to fail at what it did not write.
        raise BadCheckpoint(f"{path}: not written by torch.save, and not loaded ({error!r}).") from error
    if not isinstance(state, dict):
        raise BadCheckpoint(f"{path}: holds a {type(state).__name__} instead of the state of a run.")
    return state
