"""Newton losses for PyTorch: train networks on losses that are hard to optimise."""

from .errors import ArgumentError as ArgumentError
from .errors import DerivativeError as DerivativeError
from .errors import NewtonLossesError as NewtonLossesError
from .errors import SeparabilityError as SeparabilityError
from .errors import ShapeError as ShapeError

__version__ = "0.1.0.dev0"
