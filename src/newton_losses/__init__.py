"""Newton losses for PyTorch: train networks on losses that are hard to optimise."""

from . import _startup as _startup  # first: `python -m newton_losses` imports torch below

# isort: split
import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .curvature import Damping as Damping
from .curvature import Expandable as Expandable
from .curvature import Expansion as Expansion
from .curvature import NormalizedDamping as NormalizedDamping
from .curvature import RelativeDamping as RelativeDamping
from .curvature import RunningDamping as RunningDamping
from .curvature import check_loss as check_loss
from .curvature import expand as expand
from .errors import ArgumentError as ArgumentError
from .errors import DerivativeError as DerivativeError
from .errors import NewtonLossesError as NewtonLossesError
from .errors import NonFiniteError as NonFiniteError
from .errors import SeparabilityError as SeparabilityError
from .errors import ShapeError as ShapeError
from .functional import NewtonTarget as NewtonTarget
from .functional import newton_loss as newton_loss
from .functional import newton_target as newton_target
from .inject import InjectFisher as InjectFisher
from .inject import inject_fisher as inject_fisher
from .newton import NewtonLoss as NewtonLoss

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import convex as convex
    from . import paths as paths
    from . import perturbed as perturbed
    from . import smoothing as smoothing
    from . import sorting as sorting
    from .diagnose import diagnose as diagnose

# Imported where they are first used: together they take longer than everything else here.
_LATER = ("convex", "diagnose", "paths", "perturbed", "smoothing", "sorting")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module(f".{name}", __name__)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


class _Package(ModuleType):
    """`diagnose` is the function of that name, also after its package has been imported."""

    def __setattr__(self, name: str, thing: object) -> None:
        is_package = name == "diagnose" and isinstance(thing, ModuleType)
        super().__setattr__(name, thing.diagnose if is_package else thing)  # type: ignore[attr-defined]


sys.modules[__name__].__class__ = _Package
