"""Downloading a file with a known md5 sum from the first of several mirrors that gives it.

The file grows under the name `<name>.part` beside its final place, to which it only moves once its sum is
right. A part that an interrupted download left is continued where the mirror can do that.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from newton_losses.errors import ArgumentError

from ._files import DataError, file_md5

Progress = Callable[[str, int, int], None]
_LOCAL_TROUBLE = {errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT, errno.EISDIR}


def fetch(folder: Path, name: str, md5: str, mirrors: Sequence[str], progress: Progress | None = None) -> Path:
    """Return `folder/name` with the sum `md5`, downloaded from `mirror/name` where it is not there yet.

    `progress(name, done, total)` counts bytes. When no mirror gives the file, the error lists what each did.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _one_process_at_a_time(folder):
        return _fetch(folder, name, md5, mirrors, progress)


def _fetch(folder: Path, name: str, md5: str, mirrors: Sequence[str], progress: Progress | None) -> Path:
    target = folder / name
    if target.exists() and file_md5(target) == md5:
        return target
    part = folder / f"{name}.part"
    failures = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{name}"
        # A part may come from another file or be damaged: if continuing it fails, this mirror starts afresh.
        for resume in (True, False) if part.exists() else (False,):
            failure = _attempt(url, part, md5, resume, progress)
            if failure is None:
                os.replace(part, target)
                return target
            failures.append(f"{url}: {failure}")
    raise DataError(f"{name} could not be downloaded to {folder}. " + "; ".join(failures) + ".")


@contextmanager
def _one_process_at_a_time(folder: Path) -> Iterator[None]:
    """Runs that start together must not write to one part; the second finds what the first one fetched."""
    try:
        import fcntl
    except ImportError:  # on Windows, where the sums alone have to keep damage out
        yield
        return
    # The folder itself is locked, so that no lock file is left behind.
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems have no locks: there too, only the sums keep damage out.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _attempt(url: str, part: Path, md5: str, resume: bool, progress: Progress | None) -> str | None:
    """Download to `part`, and say what went wrong, or None. A part with a wrong sum is removed."""
    downloader = _downloader()
    there = part.stat().st_size if resume else 0
    # The sum is that of the packed file: no server may unpack it on the way.
    headers = {"Accept-Encoding": "identity"}
    if there:
        headers["Range"] = f"bytes={there}-"
    bar = _Bar(part.name.removesuffix(".part"), there, progress)
    try:
        with part.open("ab" if resume else "wb") as file:
            downloader(progressbar=bar, chunk_size=1 << 16, headers=headers)(url, file, None)
    except OSError as error:
        # Errors of the network are OSErrors as well; trouble with the own disk is not the mirror's fault.
        if error.errno in _LOCAL_TROUBLE:
            raise
        return _one_line(error)
    found = file_md5(part)
    if found == md5:
        return None
    size = part.stat().st_size
    part.unlink()
    return f"gave {size} bytes with the md5 sum {found} instead of {md5}"


def _downloader() -> Any:
    try:
        from pooch import HTTPDownloader
    except ImportError as error:
        raise ArgumentError(
            "Downloading needs the package pooch: install newton-losses[bench], or copy the files by hand."
        ) from error
    return HTTPDownloader


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


class _Bar:
    """What pooch takes for a progress bar, as a callback."""

    def __init__(self, name: str, there: int, progress: Progress | None) -> None:
        self.name, self.there, self.progress = name, there, progress
        self.total = 0
        self.done = 0

    def update(self, count: int) -> None:
        # pooch reports whole chunks, also for the last one, which is smaller.
        self.done = min(self.done + count, self.total) if self.total else self.done + count
        if self.progress is not None:
            self.progress(self.name, self.there + self.done, self.there + self.total)

    def reset(self) -> None:
        """At the end pooch goes back to zero and then reports the total."""
        self.done = 0

    def close(self) -> None:
        """Nothing to close."""
