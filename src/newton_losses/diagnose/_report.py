"""What `diagnose` returns: the verdict and everything it was drawn from, as data, as text and as a picture."""

import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

from ..errors import ArgumentError
from ._derivatives import Derivatives, Precision
from ._descent import Candidate, Descent
from ._measurements import Gradients, Noise, Spectra
from ._verdict import HEADLINES, NOTHING_TO_MEASURE, Expected, Recommendation, Verdict

WIDTH = 100
KINDS = {"fisher": "Fisher", "hessian": "Hessian"}
# A symmetric loss is no proof that the outputs are a set: squared errors of weight and height are symmetric, too.
ORDER = (
    "does not matter to the loss. If a sample's outputs are a set, pass exchangeable=True to NewtonLoss (the default "
    "for the library's losses of lists): else its result depends on the order in which they are stored."
)


@dataclass(frozen=True)
class Report:
    """What is wrong with a loss at a user's outputs, and what a Newton loss would do there.

    - `verdict`: "fix" (something is wrong with the loss itself, or these outputs are at a minimum or on a plateau) or
      "open" (no fault found; whether a Newton loss helps, only training can tell).
    - `reasons`: sentences, the deciding one first.
    - `expected`: "helps" or "no difference", what the default should do in training; `None` if nothing says so. The
      first reason has how often such a prediction was right.
    - `recommendation`: the variant to try first if it is expected to help, else `None`.
    - The measurements: `gradients`, `precision`, `derivatives`, `noise`, `spectra`, `descent`; `None` if one was not
      possible or had no meaning. `separable` tells whether a sample's loss is independent of the other samples; `None`
      if this was not checked, or this batch could not tell. `symmetric` tells whether it stays the same when the
      outputs of a sample are permuted together with targets of their shape, `calls` how often the loss was called.

    `str(report)` is a text for people, `to_dict()` plain data for programs, `plot(path)` a picture.
    """

    loss: str
    samples: int
    outputs: int
    verdict: Verdict
    reasons: tuple[str, ...]
    expected: Expected | None = None
    recommendation: Recommendation | None = None
    separable: bool | None = None
    gradients: Gradients | None = None
    precision: Precision | None = None
    derivatives: Derivatives | None = None
    noise: Noise | None = None
    spectra: Spectra | None = None
    descent: Descent | None = None
    symmetric: bool | None = None
    calls: int = 0

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def to_dict(self) -> dict[str, Any]:
        """All of it as dictionaries, lists, numbers and strings: strict JSON. NaN and infinity become `None`."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def plot(self, path: str | PathLike[str]) -> None:
        """Write a picture of the eigenvalues, the gradient norms and the losses along lines; needs matplotlib.

        The path's ending chooses the format.
        """
        _draw(self, path)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Text ---------------------------------------------------------------------------------------------------------------


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _lines(report: Report) -> Iterator[str]:
    yield f"{report.loss} at {_counted(report.samples, 'sample')} of {_counted(report.outputs, 'output')}"
    yield _headline(report)
    for reason in report.reasons:
        yield textwrap.fill(reason, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    if report.recommendation is not None:
        own = f"{report.recommendation.damping_here:.3g}"
        yield f"  try first: {report.recommendation}  (its own λ at these outputs: {own})"
    for title, found in (("What a Newton loss would change", _effects(report)), ("Measured", _facts(report))):
        for number, (name, text) in enumerate(found):
            if number == 0:
                yield title
            yield textwrap.fill(text, WIDTH, initial_indent=f"  {name:22}", subsequent_indent=" " * 24)


def _headline(report: Report) -> str:
    """That of the verdict, unless nothing is wrong but where the loss was looked at."""
    level = report.descent is not None and math.isnan(report.descent.solved)
    return NOTHING_TO_MEASURE if level and len(report.reasons) == 1 else HEADLINES[report.verdict]


def _effects(report: Report) -> Iterator[tuple[str, str]]:
    descent = report.descent
    if report.verdict == "fix" or descent is None:
        return
    yield (
        "normalises the batch",
        f"gradient norms vary by {_number(100 * descent.batches, '.0f')}% between batches; they change by a factor of "
        f"{_number(descent.fades)} downhill and {_number(descent.grows)} uphill",
    )
    shrinks = "(how much more the largest tenth shrinks than the median)"
    decrease = "(best decrease along the line, relative to the gradient's)"
    rows: tuple[tuple[str, Callable[[Candidate], str], str], ...] = (
        ("clips samples softly", lambda one: f"×{_number(one.clipped)}", shrinks),
        ("turns directions", lambda one: f"{_number(one.turned, '.0f')}°", "(the angle between step and gradient)"),
        ("lowers the loss", lambda one: f"×{_number(descent.lead(one), '.2f')}", decrease),
    )
    for label, text, explained in rows:
        found = [f"{KINDS[one.curvature]} {text(one)}" for one in descent.candidates]
        yield label, f"{', '.join(found)} {explained}"


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    if report.separable is not None and (report.gradients is None or report.gradients.norms):
        yield "independent samples", "yes" if report.separable else "no"
    elif report.gradients is not None and report.gradients.norms:
        yield "independent samples", "not checked: this takes two samples with different outputs"
    yield from _gradient_facts(report)
    yield from _derivative_facts(report)
    yield from _curvature_facts(report)
    if report.symmetric and report.verdict != "fix":
        yield "stored order", ORDER
    if report.calls:
        yield "calls of the loss", f"{report.calls}"


def _gradient_facts(report: Report) -> Iterator[tuple[str, str]]:
    gradients, precision, noise = report.gradients, report.precision, report.noise
    if gradients is not None and not gradients.norms:
        yield "gradient norms", "not finite for any sample"
    elif gradients is not None:
        yield (
            "gradient norms",
            f"min {gradients.minimum:.2g}, median {gradients.median:.2g}, p99 {gradients.p99:.2g}, "
            f"max {gradients.maximum:.2g}; vanishing {gradients.vanishing:.0%}, exploding {gradients.exploding:.0%}",
        )
    if precision is not None:
        yield "float32", _precision(precision)
    if noise is not None:
        hessian = "–" if noise.hessian is None else f"{noise.hessian:.2g}"
        yield "noise over signal", f"gradient of a sample {noise.gradient:.2g}, mean Hessian {hessian}"


def _precision(found: Precision) -> str:
    """A median that no digit of float32 can show is rounding of zero, or a unit that a few samples have set."""
    if math.isnan(found.error):
        return "not compared: no gradient is in the range of numbers"
    if not math.isfinite(found.error):
        return f"gradient not finite for most samples that are in float64; {found.wrong:.0%} wrong"
    off = f"{found.error:.1e}" if found.error >= 1e-8 else "less than 1e-8"
    return f"gradient off by {off} (median) from float64; {found.wrong:.0%} wrong"


def _derivative_facts(report: Report) -> Iterator[tuple[str, str]]:
    found = report.derivatives
    if found is None:
        return

    def checked(state: str, error: float | None) -> str:
        if state == "missing":
            return "an operator has no rule for it"
        if error is None or state in ("unchecked", "expensive"):
            return {"expensive": "not looked at: too many outputs"}.get(state, state)
        if state == "right":
            return f"right, agrees with finite differences to {max(error, 1e-9):.0e}"
        return f"{state}, off by {error:.0%} from finite differences"

    yield "first derivative", checked(found.first, found.first_error)
    yield "second derivative", checked(found.second, found.second_error)
    if found.kinks is not None:
        jumps = "not looked for" if found.jumps is None else f"{found.jumps:.0%}"
        yield "smoothness", f"samples with a jump nearby: {jumps}, with a kink: {found.kinks:.0%}"


def _curvature_facts(report: Report) -> Iterator[tuple[str, str]]:
    if report.spectra is not None:
        for name, found in (("mean Hessian", report.spectra.hessian), ("empirical Fisher", report.spectra.fisher)):
            if found is not None:
                yield (
                    name,
                    f"eigenvalues {found.smallest:.2g} to {found.largest:.2g}, rank {found.rank}, "
                    f"condition {_number(found.condition)}, negative {found.negative_share:.0%}",
                )
    if report.descent is not None:
        yield (
            "mean loss",
            f"{report.descent.start:.4g}; after one gradient step {report.descent.gradient.best:.4g}, "
            f"at the lowest point tried {report.descent.best:.4g}",
        )


def _number(value: float, form: str = ".2g") -> str:
    return f"{value:{form}}" if math.isfinite(value) else "–"


# Picture ------------------------------------------------------------------------------------------------------------


def _draw(report: Report, path: str | PathLike[str]) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ArgumentError("Report.plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    spectrum, norms, lines = figure.subplots(1, 3)
    _draw_spectrum(report, spectrum)
    _draw_norms(report, norms)
    _draw_lines(report, lines)
    figure.suptitle(f"{report.loss}: {_headline(report)}")
    figure.savefig(path, dpi=150)


def _draw_spectrum(report: Report, axes: Any) -> None:
    axes.set(title="Eigenvalues of the curvatures", xlabel="index", ylabel="eigenvalue")
    axes.axhline(0, color="0.8", linewidth=1)
    if report.spectra is None:
        return
    shown = [("mean Hessian", report.spectra.hessian, "o"), ("empirical Fisher", report.spectra.fisher, "s")]
    for name, found, marker in shown:
        if found is not None:
            axes.plot(range(1, len(found.values) + 1), found.values, marker, markersize=4, label=name)
    largest = max(abs(v) for _, found, _ in shown if found is not None for v in found.values)
    # Both signs and several decades. Linear only around zero, up to a power of ten: below it, labels would collide.
    axes.set_yscale("symlog", linthresh=10.0 ** (math.ceil(math.log10(max(largest, 1e-300))) - 3))
    axes.yaxis.get_major_locator().set_params(numticks=8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()


def _draw_norms(report: Report, axes: Any) -> None:
    axes.set(title="Gradient norms", xlabel="sample, sorted", ylabel="norm of a sample's gradient")
    if report.gradients is None or not report.gradients.norms:
        return
    axes.plot(report.gradients.norms, ".", markersize=4)
    if report.gradients.maximum > 0:
        axes.set_yscale("log")


def _draw_lines(report: Report, axes: Any) -> None:
    axes.set(title="Loss along directions", xlabel="move, in units of the outputs", ylabel="mean loss", xscale="log")
    descent = report.descent
    if descent is None:
        return
    for line, style in zip([descent.gradient, *(c.line for c in descent.candidates)], ("-", "--", ":"), strict=False):
        axes.plot(line.moves, line.losses, style, label=KINDS.get(line.name, line.name))
    # Far along a line a loss may be astronomical; what matters is below the start.
    height = descent.start - descent.best
    if height > 0:
        axes.set_ylim(descent.best - 0.1 * height, descent.start + 0.3 * height)
    axes.axhline(descent.start, color="0.8", linewidth=1)
    axes.legend(loc="lower left")
