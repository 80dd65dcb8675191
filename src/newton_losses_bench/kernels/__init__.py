"""Kernels for the networks of the experiments, used where there is a GPU; `README.md` says what each file holds."""

from .adam import make_adam as make_adam
from .digit_layers import digit_features as digit_features
from .digit_layers import has_digit_kernels as has_digit_kernels
from .digit_layers import wide_linear as wide_linear
