"""Where data lies, how files are written so that half of one is never taken for a whole, and checked.

Nothing here knows what is in the files.
"""

import hashlib
import json
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from newton_losses.errors import ArgumentError, NewtonLossesError

ROOT_VARIABLE = "NEWTON_LOSSES_DATA"
_STAMP = ".checked.json"
_T = TypeVar("_T")


class DataError(NewtonLossesError, OSError):
    """A data file is there but not what it has to be; the message says which file and what to do."""


class DataNotFoundError(DataError, FileNotFoundError):
    """A data file is not there; the message says where it was looked for and how to get it."""


class Splits(NamedTuple, Generic[_T]):
    """The three parts of a data set."""

    train: _T
    val: _T
    test: _T


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder under which all data lies; it need not exist.

    `root` where given, else the environment variable `NEWTON_LOSSES_DATA`, else the user's cache folder.

    >>> data_root("data").as_posix()
    'data'
    """
    if root is not None:
        return Path(root).expanduser()
    named = os.environ.get(ROOT_VARIABLE)
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "newton-losses"


def root_options(base: Path) -> list[str]:
    """What `newton-losses data` has to be told to work in the folder `base`: nothing where it does so by itself.

    >>> root_options(Path("my data"))
    ["--root 'my data'"]
    """
    return [] if base == data_root() else [f"--root {shlex.quote(str(base))}"]


def known_split(split: str) -> str:
    """`split` itself if it is the name of one."""
    if split not in Splits._fields:
        raise ArgumentError(f"split={split!r} is not known; it is one of 'train', 'val', 'test'.")
    return split


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to fill; at the end it takes the place of `path`, on an error it vanishes."""
    beside = f"{path.name}.{secrets.token_hex(4)}"
    temporary, replaced = path.with_name(f"{beside}.part"), path.with_name(f"{beside}.old")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if path.exists():
            path.rename(replaced)
        try:
            temporary.rename(path)
        except OSError:
            if replaced.exists():
                replaced.rename(path)
            raise
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to; it becomes `path` at the end, and vanishes on an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    temporary.touch(exist_ok=False)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def file_md5(path: Path) -> str:
    """The md5 sum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        # These sums find damage, not malice; the flag lets them work where md5 is barred as a safeguard.
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def stamps(places: Iterable[Path]) -> tuple[tuple[str | int, ...], ...]:
    """What differs when a file was changed or replaced: of each that is there, its place, size, times and number.

    A folder stands for the files in it. Hidden ones do not count: they are notes of our own.
    """
    found = []
    for place in places:
        files = [place]
        # Another process may put a new folder or file in the place of one at any time.
        with suppress(FileNotFoundError, NotADirectoryError):
            files = sorted(place.iterdir())
        for file in files:
            with suppress(FileNotFoundError):
                facts = file.stat()
                if not file.name.startswith("."):
                    found.append((str(file), facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino))
    return tuple(found)


def verify_files(folder: Path, sums: Mapping[str, str], advice: str, again: bool = False) -> None:
    """Compare the md5 sums of files in `folder`; those that passed and did not change are not read again.

    What passed is remembered in a hidden file beside them, where the folder can be written to. With `again`,
    all files are read whatever is remembered.
    """
    try:
        passed = dict(json.loads((folder / _STAMP).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        passed = {}
    for name, md5 in sums.items():
        path = folder / name
        facts = path.stat()
        # The time of modification can be set to anything, as copying does; that of change is the system's own.
        stamp = [md5, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]
        if passed.get(name) == stamp and not again:
            continue
        found = file_md5(path)
        if found != md5:
            raise DataError(f"{path} has the md5 sum {found}, not {md5}: it is damaged or of another set. {advice}")
        passed[name] = stamp
    with suppress(OSError), atomic_path(folder / _STAMP) as temporary:
        temporary.write_text(json.dumps(passed), encoding="utf-8")
