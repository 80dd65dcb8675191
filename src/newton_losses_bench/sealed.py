"""JSON files that carry a sum of their own content, so that a changed digit is not taken for a result.

    {"test": {"exact_match": 84.0}, …, "sha256": "5f1d…"}

The sum is that of the content without it, as JSON with sorted keys: reading and writing it again does not
change it. Files of before this have none, and are read as they are.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from .files import RunError

Record = dict[str, Any]
SEAL = "sha256"


def sealed(content: Record) -> bytes:
    """The file's bytes: the content, for people too, and its sum at the end.

    >>> json.loads(sealed({"step": 1}))["sha256"][:8]
    '66acd07f'
    """
    whole = {**content, SEAL: _sum_of(content)}
    return (json.dumps(whole, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> Record:
    """A JSON object from a file, without its sum; a `RunError` that names the file if a digit is not as it was."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: could not be read as JSON ({error}). {_advice(path)}") from error
    if not isinstance(found, dict):
        raise RunError(f"{path}: holds {type(found).__name__} instead of an object. {_advice(path)}")
    wanted = found.pop(SEAL, None)
    if wanted is not None and wanted != _sum_of(found):
        raise RunError(f"{path}: damaged or changed by hand, its checksum does not match. {_advice(path)}")
    return found


def file_sum(path: Path) -> str | None:
    """The sha256 sum of a file, as `sha256sum` prints it; `None` if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _sum_of(content: Record) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _advice(path: Path) -> str:
    if path.name == "result.json":
        if (path.parent / "checkpoint.pt").exists():
            return "Restore it; or delete it and give the same command again, which makes it anew from the checkpoint."
        return "Restore it; or delete its folder and give the same command again, which makes the run anew."
    return "Restore it, or use another folder."
