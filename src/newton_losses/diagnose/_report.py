"""What `diagnose` returns: the verdict and everything it was drawn from."""

import math
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

from ._cost import Cost
from ._derivatives import Derivatives
from ._descent import Descent
from ._gradients import Gradients
from ._noise import Noise
from ._precision import Precision
from ._spectrum import Spectra
from ._verdict import Recommendation, Verdict


@dataclass(frozen=True)
class Report:
    """The verdict on a loss at a user's outputs.

    - `verdict`: "yes" (a Newton loss is worth trying), "no" (nothing for it to repair) or "fix" (something is
      wrong with the loss itself: mend that and diagnose again; or these outputs are at a minimum or on a plateau).
    - `reasons`: sentences, the deciding one first.
    - `recommendation`: arguments for `NewtonLoss` where the verdict is "yes".
    - The measurements: `gradients`, `precision`, `derivatives`, `noise`, `spectra`, `descent`, `cost`; `None`
      where one was not possible or had no meaning, and `separable` tells whether the samples stay apart.

    `str(report)` is a text for people, `to_dict()` plain data for programs, `plot(path)` a picture.
    """

    loss: str
    samples: int
    outputs: int
    verdict: Verdict
    reasons: tuple[str, ...]
    recommendation: Recommendation | None = None
    separable: bool = True
    gradients: Gradients | None = None
    precision: Precision | None = None
    derivatives: Derivatives | None = None
    noise: Noise | None = None
    spectra: Spectra | None = None
    descent: Descent | None = None
    cost: Cost | None = None

    def __str__(self) -> str:
        from ._text import as_text

        return as_text(self)

    def to_dict(self) -> dict[str, Any]:
        """All of it as dictionaries, lists, numbers and strings; what is not finite becomes `None`."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def plot(self, path: str | PathLike[str]) -> None:
        """Write a picture (of the type of the path's ending) of spectrum, gradient norms and losses along lines."""
        from ._picture import draw

        draw(self, path)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
