"""Layer 3: black boxes made differentiable by noise, with gradient, Jacobian and Hessian."""

from ._algorithm import SmoothedAlgorithm as SmoothedAlgorithm
from ._distributions import Cauchy as Cauchy
from ._distributions import Distribution as Distribution
from ._distributions import Gaussian as Gaussian
from ._distributions import Gumbel as Gumbel
from ._distributions import Laplace as Laplace
from ._distributions import Logistic as Logistic
from ._distributions import StudentT as StudentT
from ._loss import SmoothedLoss as SmoothedLoss
from ._smoothed import Smoothed as Smoothed
from ._smoothed import SmoothingOptions as SmoothingOptions
