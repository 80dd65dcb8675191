"""Differentiable sorting and ranking: relaxations, soft operations, losses and metrics, stable at any spread."""

from ._hard_ranks import target_matrix as target_matrix
from ._lists import pad_lists as pad_lists
from ._metrics import element_wise_match as element_wise_match
from ._metrics import exact_match as exact_match
from ._network import SortingNetwork as SortingNetwork
from ._neuralsort import NeuralSort as NeuralSort
from ._neuralsort import neuralsort as neuralsort
from ._ranking_losses import SpearmanLoss as SpearmanLoss
from ._ranking_losses import TopKLoss as TopKLoss
from ._relaxation import Relaxation as Relaxation
from ._soft_ops import soft_rank as soft_rank
from ._soft_ops import soft_sort as soft_sort
from ._soft_ops import soft_topk as soft_topk
from ._softsort import SoftSort as SoftSort
from ._softsort import softsort as softsort
from ._sorting_loss import SortingLoss as SortingLoss
