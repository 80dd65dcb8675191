"""The idx files of MNIST: two zero bytes, a type, the number of axes, big-endian lengths, the values."""

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ._files import DataError

_UNSIGNED_BYTE = 8


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes; a name that ends in `.gz` is unpacked on the way."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}): it is truncated or damaged.") from error
    if len(content) < 4 or content[:3] != bytes((0, 0, _UNSIGNED_BYTE)):
        raise DataError(f"{path} does not begin like an idx file of unsigned bytes: it is damaged.")
    axes = content[3]
    begin = 4 + 4 * axes
    if len(content) < begin:
        raise DataError(f"{path} ends within its header, after {len(content)} bytes: it is truncated.")
    shape = struct.unpack(f">{axes}I", content[4:begin])
    if len(content) != begin + prod(shape):
        raise DataError(
            f"{path} has {len(content) - begin} values where its header {shape} asks for {prod(shape)}: "
            "it is truncated or damaged."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=begin).reshape(shape)
