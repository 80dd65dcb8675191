"""Where data lies, how it is downloaded, and how damage is found. Nothing here knows what is in the files.

A file or folder appears under its name only once all of it is there: half of one is never taken for a whole.
"""

import hashlib
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from urllib.request import urlopen

from newton_losses.errors import ArgumentError, NewtonLossesError

from ..machine import locked

ROOT_VARIABLE = "NEWTON_LOSSES_DATA"
_T = TypeVar("_T")


class DataError(NewtonLossesError, OSError):
    """A data file is damaged, or of another set; the message says which file and what to do."""


class DataNotFoundError(DataError, FileNotFoundError):
    """A data file is missing; the message says where it was looked for and how to get it."""


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
    """The options with which `newton-losses data` works in the folder `base`: none for the default folder.

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


def file_md5(path: Path) -> str:
    """The md5 sum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        # These sums find damage, not malice; the flag lets them work where md5 is barred as a safeguard.
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def verify_files(folder: Path, sums: Mapping[str, str], advice: str) -> None:
    """Compare the md5 sums of files in `folder`."""
    for name, md5 in sums.items():
        found = file_md5(folder / name)
        if found != md5:
            raise DataError(
                f"{folder / name} has the md5 sum {found}, not {md5}: it is damaged or of another set. {advice}"
            )


@contextmanager
def written_to(folder: Path) -> Iterator[None]:
    """A folder that cannot be written is an error of the data, with its name and what to do."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"{folder}: could not be written ({error.strerror or error}). Choose another folder for the data, with "
            "--data-root or the variable NEWTON_LOSSES_DATA."
        ) from error


def fetch(folder: Path, name: str, md5: str, mirrors: Sequence[str]) -> Path:
    """Return `folder/name` with the sum `md5`, downloaded from `mirror/name` where it is not there yet.

    When no mirror gives the file, the error lists what each did.
    """
    with written_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / name, folder / f"{name}.part"
    failures = []
    # Runs that start together must not write to one part; the second finds what the first one fetched.
    with written_to(folder), locked(folder):
        if target.exists() and file_md5(target) == md5:
            return target
        for url in (f"{mirror.rstrip('/')}/{name}" for mirror in mirrors):
            try:
                with urlopen(url, timeout=60) as response, part.open("wb") as file:
                    shutil.copyfileobj(response, file)
                if (found := file_md5(part)) == md5:
                    os.replace(part, target)
                    return target
                failures.append(f"{url}: gave {part.stat().st_size} bytes with the md5 sum {found} instead of {md5}")
            except (OSError, HTTPException) as error:
                failures.append(f"{url}: {type(error).__name__}: {error}".splitlines()[0][:300])
        part.unlink(missing_ok=True)
    raise DataError(f"{name} could not be downloaded to {folder}. " + "; ".join(failures) + ".")
