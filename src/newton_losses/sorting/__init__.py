"""Layer 3: differentiable sorting and ranking, their losses and metrics, stable at any spread of scores."""

from ._loss import SortingLoss as SortingLoss
from ._network import SortingNetwork as SortingNetwork
from ._neuralsort import NeuralSort as NeuralSort
from ._neuralsort import neuralsort as neuralsort
from ._relaxation import Relaxation as Relaxation
from ._softsort import SoftSort as SoftSort
from ._softsort import softsort as softsort
