"""The axes of a chart: from numbers to places on the paper, and the ticks between. No drawing here."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """What an axis shows: its label, its range, and whether it is logarithmic.

    >>> axis = Axis("damping λ", 0.001, 1000.0, log=True)
    >>> axis.position(1.0)
    0.5
    """

    label: str
    low: float
    high: float
    log: bool = False

    def position(self, value: float) -> float:
        """Where a value lies, from 0 at the low end to 1 at the high end; values beyond are moved to the end."""
        place = (self._of(value) - self._of(self.low)) / (self._of(self.high) - self._of(self.low))
        return min(1.0, max(0.0, place))

    def ticks(self) -> list[tuple[float, str]]:
        """Places with a label: powers of ten on a logarithmic axis, else four to seven round numbers."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [(10.0**power, _power(power)) for power in range(first, last + 1)]
        step = _round_step((self.high - self.low) / 5)
        count = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return [(step * k, number(step * k, step)) for k in count]

    def _of(self, value: float) -> float:
        return math.log10(value) if self.log else value


def around(label: str, values: list[float], *, floor: float | None = None, ceiling: float | None = None) -> Axis:
    """A linear axis that holds all values with a little room, ending on round numbers; none beyond floor and ceiling.

    >>> around("accuracy, %", [52.3, 83.9], ceiling=100.0)
    Axis(label='accuracy, %', low=50.0, high=90.0, log=False)
    """
    least, most = -math.inf if floor is None else floor, math.inf if ceiling is None else ceiling
    known = [min(max(value, least), most) for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    step = _round_step((high - low) / 5)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Axis(label, max(low, least), min(high, most))


def number(value: float, step: float) -> str:
    """A tick's number with as many decimals as the step between ticks has; thousands are parted.

    >>> number(20000.0, 5000.0), number(0.25, 0.05), number(-2.0, 1.0)
    ('20,000', '0.25', '−2')
    """
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value + 0.0:,.{decimals}f}".replace("-", "−").replace("−0", "0" if abs(value) < step / 2 else "−0")


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 5 × 10ᵏ that is not below `rough`."""
    base: float = 10.0 ** math.floor(math.log10(rough))
    return next(base * factor for factor in (1, 2, 5, 10) if base * factor >= rough * (1 - 1e-9))


def _power(power: int) -> str:
    if -3 <= power <= 3:
        return f"{10.0**power:,.{max(0, -power)}f}"
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
