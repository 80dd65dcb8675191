"""Layer 1: the second-order expansion of a loss at its inputs, and solving with its curvature."""

from ._call import Loss as Loss
from ._call import Reduction as Reduction
from ._call import flatten_outputs as flatten_outputs
from ._call import full_precision as full_precision
from ._call import resolve_reduction as resolve_reduction
from ._check import check_loss as check_loss
from ._damping import Damping as Damping
from ._damping import DampingRule as DampingRule
from ._damping import RelativeDamping as RelativeDamping
from ._damping import check_damping as check_damping
from ._expand import expand as expand
from ._expand import finite as finite
from ._expand import loss_values as loss_values
from ._expansion import CurvatureKind as CurvatureKind
from ._expansion import Expandable as Expandable
from ._expansion import Expansion as Expansion
from ._fisher import empirical_fisher as empirical_fisher
from ._forms import Curvature as Curvature
from ._forms import Dense as Dense
from ._forms import LowRank as LowRank
from ._forms import Products as Products
from ._solve import Spectrum as Spectrum
from ._solve import damped_solve as damped_solve
from ._step import Step as Step
from ._step import newton_step as newton_step
