"""Layer 1: the second-order expansion of a loss at its inputs, and solving with its curvature."""

from ._expansion import CurvatureKind as CurvatureKind
from ._expansion import Expandable as Expandable
from ._expansion import Expansion as Expansion
from ._forms import Curvature as Curvature
from ._forms import Dense as Dense
from ._forms import LowRank as LowRank
from ._forms import Products as Products
