"""Writing files so that a crash at any moment leaves the old content or the new one, never half of one."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from newton_losses.errors import NewtonLossesError


class RunError(NewtonLossesError, RuntimeError):
    """A run folder cannot be used or written; the message says why and what to do."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at `path` by `content`: written beside it, brought to the disk, then renamed over it."""
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


def append_line(path: Path, line: bytes) -> None:
    """Add one line to the end of a file and bring it to the disk. A crash can leave a torn last line."""
    try:
        with open(path, "ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
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
    """Make a folder where there is none, and refuse one that files cannot be put into."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise write_error(folder, error) from error


def write_error(path: Path, error: OSError) -> RunError:
    """What to tell a person whose disk said no."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "The disk or your quota is full. Free some space and give the same command again"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "The folder cannot be written. Change its permissions, or choose another (--out, of a sweep --results)"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR):
        blocking = next((place for place in (path, *path.parents) if place.is_file()), path)
        hint = f"{blocking} is a file. Choose another folder and give the same command again"
    else:
        hint = "Look into the cause and give the same command again"
    return RunError(
        f"{path}: could not be written ({error.strerror or error}). {hint}. Nothing that was there has "
        "been lost, and a run goes on from its last checkpoint."
    )
