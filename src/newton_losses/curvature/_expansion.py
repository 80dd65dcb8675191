"""What an expansion of a loss is. How one is made by automatic differentiation is in `_expand.py`."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from ._forms import Curvature

CurvatureKind = Literal["hessian", "fisher"]


@dataclass(frozen=True)
class Expansion:
    """The second-order Taylor expansion of a batch of losses at the outputs ȳ.

    With N samples of m outputs each and ℓᵢ the loss of sample i:

    - `value` is `(N,)`: ℓᵢ(ȳᵢ).
    - `gradient` is `(N, m)`: ∇ℓᵢ(ȳᵢ), of the sample's own loss, without any factor 1/N.
    - `curvature` is one curvature for the batch, with the factor 1/N: the mean Hessian
      (1/N) Σ ∇²ℓᵢ(ȳᵢ) or the empirical Fisher (1/N) Σ ∇ℓᵢ ∇ℓᵢᵀ. An `(m, m)` tensor, or one of the
      forms in `newton_losses.curvature` (`LowRank`, `Products`) that stand for such a matrix
      without storing it. `None` where it was not asked for.
    """

    value: Tensor
    gradient: Tensor
    curvature: "Tensor | Curvature | None" = None


@runtime_checkable
class Expandable(Protocol):
    """A loss that brings its own expansion. This one method is the whole plug-in protocol."""

    def expand(self, y: Tensor, *targets: Any, curvature: CurvatureKind | None) -> Expansion: ...
