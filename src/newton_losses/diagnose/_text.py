"""A report as text."""

import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._report import Report

HEADLINES = {
    "yes": "Worth trying: a Newton loss.",
    "no": "No: a Newton loss has nothing to repair here.",
    "fix": "Mend the loss first.",
}
NOTHING_TO_MEASURE = "Nothing to measure here: take other outputs."
WIDTH = 100


def as_text(report: "Report") -> str:
    title = f"{report.loss} at {report.samples} samples of {report.outputs} outputs"
    reasons = [
        textwrap.fill(reason, WIDTH, initial_indent="  - ", subsequent_indent="    ") for reason in report.reasons
    ]
    lines = [title, _headline(report), *reasons]
    if report.recommendation is not None:
        chosen = report.recommendation
        here = f"λ = {chosen.damping_here:.3g} at these outputs"
        damping = f"the default damping: {here}" if chosen.is_default else f"{here}; the default damping does worse"
        lines += [f"  {chosen}", f"  ({damping})"]
    facts = list(_facts(report))
    if facts:
        lines += ["Measured", *(f"  {name:20} {text}" for name, text in facts)]
    return "\n".join(lines)


def _headline(report: "Report") -> str:
    """That of the verdict, unless nothing is wrong but where the loss was looked at."""
    level = report.descent is not None and math.isnan(report.descent.solved)
    return NOTHING_TO_MEASURE if level and len(report.reasons) == 1 else HEADLINES[report.verdict]


def _facts(report: "Report") -> Iterator[tuple[str, str]]:
    if report.gradients is None or report.gradients.norms:
        yield "samples apart", "yes" if report.separable else "no"
    yield from _gradient_facts(report)
    yield from _derivative_facts(report)
    yield from _curvature_facts(report)
    cost = report.cost
    if cost is not None:
        hessian = "–" if cost.hessian is None else f"{cost.hessian / cost.value:.0f}"
        yield (
            "cost",
            (
                f"loss {1e3 * cost.value:.2g} ms; with gradient {cost.gradient / cost.value:.1f} times that, "
                f"with Fisher {cost.fisher / cost.value:.1f}, with Hessian {hessian}"
            ),
        )


def _gradient_facts(report: "Report") -> Iterator[tuple[str, str]]:
    gradients, precision, noise = report.gradients, report.precision, report.noise
    if gradients is not None and not gradients.norms:
        yield "gradient norms", "of no sample finite"
    elif gradients is not None:
        yield (
            "gradient norms",
            (
                f"min {gradients.minimum:.2g}, median {gradients.median:.2g}, p99 {gradients.p99:.2g}, "
                f"max {gradients.maximum:.2g}; vanishing {gradients.vanishing:.0%}, exploding {gradients.exploding:.0%}"
            ),
        )
    if precision is not None:
        yield "float32", f"gradient off by {precision.error:.1e} (median) from float64; {precision.wrong:.0%} wrong"
    if noise is not None:
        hessian = "–" if noise.hessian is None else f"{noise.hessian:.2g}"
        yield "noise over signal", f"gradient of a sample {noise.gradient:.2g}, mean Hessian {hessian}"


def _derivative_facts(report: "Report") -> Iterator[tuple[str, str]]:
    found = report.derivatives
    if found is None:
        return

    def checked(state: str, error: float | None) -> str:
        if error is None or state == "unchecked":
            return state
        if state == "wrong":
            return f"wrong, off by {error:.0%} from finite differences"
        return f"{state}, agrees with finite differences to {max(error, 1e-9):.0e}"

    yield "first derivative", checked(found.first, found.first_error)
    yield "second derivative", checked(found.second, found.second_error)
    if found.forward is not None:
        yield "forward mode", "works" if found.forward else f"stopped by {found.operator or 'an operator'}"


def _curvature_facts(report: "Report") -> Iterator[tuple[str, str]]:
    if report.spectra is not None:
        for name, found in (("mean Hessian", report.spectra.hessian), ("empirical Fisher", report.spectra.fisher)):
            if found is not None:
                yield (
                    name,
                    (
                        f"eigenvalues {found.smallest:.2g} to {found.largest:.2g}, rank {found.rank}, "
                        f"condition {_number(found.condition)}, negative {found.negative_share:.0%}"
                    ),
                )
    if report.descent is not None:
        yield (
            "mean loss",
            (
                f"{report.descent.start:.4g}; after one gradient step {report.descent.gradient.best:.4g}, "
                f"at the lowest point of all that was tried {report.descent.best:.4g}"
            ),
        )


def _number(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "–"
