"""The paper's tables as data, and the runs that belong to them."""

from ..paper import paper_grid as paper_grid
from ..paper import paper_protocol as paper_protocol
from ._cells import TABLES as TABLES
from ._cells import VARIANTS as VARIANTS
from ._cells import Cell as Cell
from ._cells import cells as cells
from ._cells import matches as matches
from ._groups import TIME as TIME
from ._groups import Group as Group
from ._groups import Protocol as Protocol
from ._groups import group as group
from ._tables import comparison as comparison
