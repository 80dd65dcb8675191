"""Layer 3: black boxes made differentiable by noise, with gradient, Jacobian and Hessian."""

from ._black_box import BlackBox as BlackBox
from ._black_box import Smoothed as Smoothed
from ._black_box import SmoothingOptions as SmoothingOptions
from ._distributions import Cauchy as Cauchy
from ._distributions import Distribution as Distribution
from ._distributions import Gaussian as Gaussian
from ._distributions import Gumbel as Gumbel
from ._distributions import Laplace as Laplace
from ._distributions import Logistic as Logistic
from ._distributions import StudentT as StudentT
from ._smoothed import EstimatedLoss as EstimatedLoss
from ._smoothed import SmoothedAlgorithm as SmoothedAlgorithm
from ._smoothed import SmoothedLoss as SmoothedLoss
