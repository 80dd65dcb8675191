"""Kernels for the networks of the experiments, used where a GPU and triton are there."""

from ._digits import digit_features as digit_features
from ._digits import has_digit_kernels as has_digit_kernels
