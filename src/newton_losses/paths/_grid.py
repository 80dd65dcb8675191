"""The grid as a graph: who is whose neighbour and how long a best path can be. No path is searched here."""

from typing import Final, Literal

Neighbors = Literal[4, 8]

# Row by row. Every back end looks for a vertex's predecessor in this order, so that ties fall alike.
OFFSETS: Final[dict[int, tuple[tuple[int, int], ...]]] = {
    4: ((-1, 0), (0, -1), (0, 1), (1, 0)),
    8: ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)),
}


def longest_path(height: int, width: int, neighbors: int) -> int:
    """The most vertices that a best path with the fewest vertices can have on this grid.

    Such a path has no chord: two of its vertices that touch are consecutive, for otherwise the part
    between them could be left out at no cost. Of the four vertices of a 2×2 block it therefore holds at
    most two where diagonals touch (a third would close a triangle), and at most three where they do not.
    """
    blocks = ((height + 1) // 2) * ((width + 1) // 2)
    return min(blocks * (2 if neighbors == 8 else 3), height * width)
