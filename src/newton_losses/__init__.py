"""Newton losses for PyTorch: train networks on losses that are hard to optimise."""

from . import _startup as _startup  # first: `python -m newton_losses` imports torch below

# isort: split
from . import convex as convex
from . import paths as paths
from . import perturbed as perturbed
from . import smoothing as smoothing
from . import sorting as sorting
from .curvature import Damping as Damping
from .curvature import Expandable as Expandable
from .curvature import Expansion as Expansion
from .curvature import NormalizedDamping as NormalizedDamping
from .curvature import RelativeDamping as RelativeDamping
from .curvature import check_loss as check_loss
from .curvature import expand as expand
from .diagnose import diagnose as diagnose
from .errors import ArgumentError as ArgumentError
from .errors import DerivativeError as DerivativeError
from .errors import NewtonLossesError as NewtonLossesError
from .errors import SeparabilityError as SeparabilityError
from .errors import ShapeError as ShapeError
from .inject import InjectFisher as InjectFisher
from .inject import inject_fisher as inject_fisher
from .newton import NewtonLoss as NewtonLoss
from .newton import NewtonTarget as NewtonTarget
from .newton import newton_loss as newton_loss
from .newton import newton_target as newton_target

__version__ = "0.1.0.dev0"
