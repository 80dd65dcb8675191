"""Kernels for the networks of the experiments, used where a GPU and triton are there."""

from ._adam import make_adam as make_adam
from ._digits import digit_features as digit_features
from ._digits import has_digit_kernels as has_digit_kernels
from ._digits import wide_linear as wide_linear
