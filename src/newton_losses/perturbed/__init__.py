"""Layer 3: perturbed optimizers and their Fenchel-Young losses, with gradient and Hessian."""

from ._fenchel_young import FenchelYoungLoss as FenchelYoungLoss
from ._perturbed import Perturbed as Perturbed
