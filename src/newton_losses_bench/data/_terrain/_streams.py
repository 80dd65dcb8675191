"""Random integers that are the same on every machine and with every version of numpy.

Only the raw 64-bit words of a Philox generator are used: numpy promises their stream, while it may change
how `Generator` turns them into bounded integers or floats. What is made of the words here is integer
arithmetic on explicit little-endian words.
"""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def below(words: NDArray[np.uint64], bound: int) -> Integers:
    """Map 64-bit words to 0, …, bound − 1 by multiplication and shift; bound is at most 2³¹."""
    return (((words >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)


class Streams:
    """One independent stream of words for each of the maps `first`, …, `first + count − 1` of a set.

    The stream of a map depends on the seed, the set and the map's own number, and on nothing else, so that
    a longer set begins with the shorter one and maps can be drawn in chunks of any length.
    """

    def __init__(self, seed: int, set_number: int, first: int, count: int) -> None:
        self._generators = [
            np.random.Philox(key=np.array([seed, (set_number << 40) + first + offset], dtype=np.uint64))
            for offset in range(count)
        ]

    def words(self, count: int, rows: NDArray[np.intp] | None = None) -> NDArray[np.uint64]:
        """The next `count` words of the streams in `rows` (default: of all), `(len(rows), count)`."""
        chosen = range(len(self._generators)) if rows is None else rows
        words = [self._generators[row].random_raw(count) for row in chosen]
        return np.stack(words).astype(np.uint64)

    def octets(self, count: int) -> NDArray[np.uint8]:
        """The next `count` bytes of every stream, `(streams, count)`, eight from a word."""
        words = self.words(-(-count // 8))
        # Little-endian by name: the bytes must not depend on the machine's own order.
        return words.astype("<u8").view(np.uint8)[:, :count]
