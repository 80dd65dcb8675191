"""From measurements to what is said about them: faults, reasons, and what to expect of a Newton loss.

Only judging happens here. What is expected follows `benchmarks/catalogue.py`, where small networks were trained.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ..curvature import CurvatureKind
from ._derivatives import Derivatives, Precision
from ._measurements import NOISE, Noise

if TYPE_CHECKING:
    from ._report import Report

Verdict = Literal["open", "fix"]
Expected = Literal["helps", "no difference"]

HEADLINES: dict[Verdict, str] = {
    "open": "No fault found. Whether a Newton loss helps, only training can tell.",
    "fix": "Fix the loss first.",
}
NOTHING_TO_MEASURE = "Nothing to measure here: take other outputs."

# One gradient step counts as solving the loss if it takes this share of the possible decrease.
SOLVED = 0.95
# The default is expected to help where gradients grow with the error by this factor, or the Fisher's direction leads
# this much further down than the gradient. `benchmarks/catalogue.py table` finds both from all of its problems, and
# leaves each out in turn to count what became of those that were predicted so: (helped, no difference, harmed).
GROWS, LEADS = 3.0, 1.1
LEFT_OUT = {"helps": (9, 6, 1), "no difference": (2, 31, 0)}
# Shares of samples that are worth a word.
SOME = 0.05

_ONE_OUTPUT = (
    "With one output per sample, the curvature of a batch is one number: by default, the Fisher and the Hessian only "
    "rescale the gradient. curvature='sample' clips large samples; a number as damping makes the length of the step "
    "depend on the curvature."
)
SUM = (
    "The loss returns a scalar that doubles when every sample is given twice: a sum over the batch, taken for a mean. "
    "Pass reduction='sum' here and to NewtonLoss, or return one value per sample."
)
CHANGING = (
    "The loss changes its targets, so that each call sees others: nothing was measured. Let it work on a copy: "
    "target.clone(), dict(batch)."
)
MASKED = (
    "Outputs that the mask leaves out were measured like the others, as constants that the loss does not depend on. A "
    "Newton loss that gets the mask leaves them out; for its figures, diagnose lists of one length."
)
# Adam's eps is 1e-8, and a normalised gradient is about 1.
QUIET = 1e-7
_STABLE = 'Use numerics="stable", the same loss in log space.'


@dataclass(frozen=True)
class Recommendation:
    """Arguments for `NewtonLoss`; `damping_here` is the λ of its default damping at the diagnosed outputs."""

    curvature: CurvatureKind
    damping_here: float

    def __str__(self) -> str:
        return f'nl.NewtonLoss(loss, curvature="{self.curvature}")'


def judge(facts: "Report", where_to_look: str, *, reference_numerics: bool) -> "Report":
    """The measurements with verdict, reasons, what to expect and recommendation; the first reason decided.

    `where_to_look` is for samples that are not finite.
    """
    faults = tuple(_faults(facts, where_to_look, reference_numerics))
    if faults:
        return replace(facts, verdict="fix", reasons=faults)
    first, expected, chosen = _expectation(facts)
    reasons = (*first, *_criteria(facts), *_remarks(facts))
    return replace(facts, verdict="open", reasons=reasons, expected=expected, recommendation=chosen)


def _expectation(facts: "Report") -> tuple[tuple[str, ...], Expected | None, Recommendation | None]:
    """What the default should do in training, how often that was right, and what to try first if it should help."""
    descent = facts.descent
    if descent is None:
        return (), None, None
    if facts.derivatives is not None and facts.derivatives.first == "detached":
        return (_detached(facts.derivatives),), None, None
    if facts.outputs == 1:
        return (_ONE_OUTPUT,), None, None
    fisher = descent.candidates[0]
    grows, leads = descent.grows >= GROWS, descent.lead(fisher) >= LEADS
    expected: Expected = "helps" if grows or leads else "no difference"
    growing = f"the loss's gradients {'grow' if grows else 'do not grow'} with the error"
    leading = f"the Fisher's direction leads {'further' if leads else 'no further'} down than the gradient"
    if grows == leads:
        because = f"{growing}, and {leading}"
    else:  # one of them is the reason
        because = f"{growing} ({leading})" if grows else f"{leading} ({growing})"
    should = "help" if expected == "helps" else "make no difference"
    sentence = f"The default should {should}: {because}. {_track_record(expected)}"
    recommended = Recommendation(fisher.curvature, fisher.damping) if expected == "helps" else None
    return (sentence,), expected, recommended


def _track_record(expected: Expected) -> str:
    """How often such a prediction was right, and what the default did otherwise."""
    outcomes = ("helped", "made no difference", "harmed")
    right = 0 if expected == "helps" else 1
    counts = LEFT_OUT[expected]
    others = [f"{what} on {n}" for i, (n, what) in enumerate(zip(counts, outcomes, strict=True)) if n and i != right]
    right_of = f"{counts[right]} of {sum(counts)}"
    return f"This held for {right_of} small training problems; the default {' and '.join(others)}."


# Faults -------------------------------------------------------------------------------------------------------------


def _faults(facts: "Report", where_to_look: str, reference_numerics: bool) -> Iterator[str]:
    """What has to be fixed before anything else means something."""
    if facts.precision is not None and facts.precision.broken:
        yield _broken_numerics(facts.precision, reference_numerics)
    elif facts.derivatives is not None and facts.derivatives.first == "wrong":
        yield _wrong_gradient(facts.derivatives, reference_numerics)
    if facts.gradients is not None and facts.gradients.nonfinite > 0.01:
        yield (
            f"{facts.gradients.nonfinite:.0%} of the samples have no finite loss or gradient. A Newton loss leaves "
            f"them out, so nothing is learned from them; {where_to_look}."
        )
    batch = facts.samples if facts.gradients is None else round(facts.samples * (1 - facts.gradients.nonfinite))
    # Independent noise of N samples falls by √N, and many small steps average the rest.
    if facts.noise is not None and facts.noise.gradient >= NOISE * math.sqrt(max(batch, 1)):
        averaged = "in a batch of one sample" if batch == 1 else f"averaged over {batch} samples"
        yield (
            f"The estimate is noise: between two calls a sample's gradient differs by {_times(facts.noise.gradient)} "
            f"its own size, and {averaged} less than half of a step would be signal. "
            f"{_more(facts.noise.gradient)}"
        )
    if facts.descent is not None and math.isnan(facts.descent.solved):
        yield (
            "No step lowers the loss: these outputs are at a minimum or on a plateau where all gradients vanish. "
            "Diagnose at other outputs, early in training say; a higher temperature or wider noise shrinks a plateau."
        )


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 1e4 else "far more than"


def _more(ratio: float) -> str:
    many = f"About {max(Noise.more_samples(ratio), 2):.0f} times" if ratio < 1e4 else "Many times"
    return f"{many} as many draws (num_samples) would make the noise half as large as the signal."


def _wrong_gradient(found: Derivatives, reference: bool) -> str:
    differs = f"differs from finite differences of the loss by {found.first_error:.0%} in float64"
    if reference:
        return (
            f"The numerics are broken: the gradient {differs}, since torch's cross-entropy of probabilities cuts its "
            f"logarithm off at -100 in the value and not in the gradient. {_STABLE}"
        )
    share = found.wrong_samples
    of = f" for {share:.{0 if share >= 0.01 else 1}%} of the samples" if 0 < share < 0.5 else ""
    cut = f" {_listed(found.cuts)} is used in it as well, which has the same effect." if found.cuts else ""
    blame = (
        f"the custom backward of {_listed(found.operators)} is the likely reason" if found.operators
        else "no custom operator is involved, so a value that leaves the graph is the likely reason"
    )  # fmt: skip
    return (
        f"The gradient is wrong{of}: it {differs}, also a little beside these outputs, so it is not a kink. "
        f"No error is raised; {blame}.{cut} Check it with torch.autograd.gradcheck."
    )


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(names)


def _broken_numerics(precision: Precision, reference: bool) -> str:
    cure = (
        _STABLE
        if reference
        else "Compute it in log space (log_softmax, logsigmoid, logaddexp; cross-entropy on logits), or in float64."
    )
    return (
        f"The numerics are broken: in float32 {precision.wrong:.0%} of the samples have a gradient that is off by more "
        f"than a tenth ({_percentiles(precision)}). What looks like a hard loss is rounding or overflow. {cure}"
    )


def _percentiles(precision: Precision) -> str:
    if math.isnan(precision.p99_float32):
        return f"no norm is finite in float32; the 99th percentile is {precision.p99_float64:.2g} in float64"
    return (
        f"99th percentile of the finite norms: {precision.p99_float32:.2g} in float32, "
        f"{precision.p99_float64:.2g} in float64"
    )


# What is no fault, and worth knowing --------------------------------------------------------------------------------


def _criteria(facts: "Report") -> Iterator[str]:
    """The paper's three: is it solved by one gradient step, is it convex, is it smooth?"""
    if facts.descent is not None:
        solves = "solves it" if facts.descent.solved >= SOLVED else "does not solve it"
        yield (
            f"One gradient step on the outputs {solves}: the best one takes {_share(facts.descent.solved)} of the "
            "decrease that is possible."
        )
    spectra = facts.spectra
    assert spectra is not None
    if spectra.flat:
        if _has_breaks(facts.derivatives):
            yield "It is not smooth: it is piecewise linear, and its Hessian is zero wherever there is one."
        else:
            yield "It is linear near these outputs: its Hessian is zero, and no kink or jump was found."
    elif spectra.convex is None and spectra.hessian is not None:
        yield f"Of the curvature of its mean Hessian, {spectra.hessian.negative_share:.0%} is negative."
    elif spectra.convex is not None and spectra.convex:
        found = "the one sample does not curve"
        if spectra.samples > 1:
            found = f"none of the {spectra.samples} samples examined curves"
        yield f"It is convex at these outputs: {found} downwards."
    elif spectra.convex is not None:
        yield (
            f"It is non-convex: {spectra.nonconvex_samples:.0%} of the samples' losses curve downwards in some "
            f"direction, with {spectra.negative_share:.0%} of all their curvature."
        )
    if spectra.hessian is not None and spectra.hessian.rank == 0 and not spectra.flat:
        yield "The samples' curvatures cancel: their mean Hessian is zero, so only curvature='fisher' was followed."


def _has_breaks(found: Derivatives | None) -> bool:
    """Whether the losses have kinks or jumps near the outputs, or that is not known."""
    if found is None or found.kinks is None:
        return True
    return max(found.kinks, found.at_kinks, found.jumps or 0.0) > 0


def _share(solved: float) -> str:
    """In percent, with as many decimals as show on which side of the threshold it is."""
    for digits in range(4):
        if (round(solved, 2 + digits) >= SOLVED) == (solved >= SOLVED):
            break
    return f"{solved:.{digits}%}"


def _remarks(facts: "Report") -> Iterator[str]:
    if facts.derivatives is not None:
        yield from _derivative_remarks(facts.derivatives, flat=facts.spectra is not None and facts.spectra.flat)
    gradients, noise = facts.gradients, facts.noise
    if noise is not None and noise.gradient >= NOISE:
        yield (
            f"A single sample's gradient is mostly noise: between two calls it differs by {_times(noise.gradient)} "
            f"its own size. The mean of the batch and many small steps average that. {_more(noise.gradient)}"
        )
    if noise is not None and noise.hessian is not None and noise.hessian >= NOISE:
        yield (
            f"The Hessian estimate is noise: {_times(noise.hessian)} its own size from call to call, so only "
            f"curvature='fisher' was followed. {_more(noise.hessian)}"
        )
    if gradients is not None and 0 < gradients.quietest < QUIET:
        yield (
            f"The outputs have gradients of very different size: that of one is {gradients.quietest:.1g} of all. A "
            "Newton loss makes the whole about 1, and Adam's eps of 1e-8 then holds this one back. Put the outputs in "
            "comparable units, or pass Adam eps=1e-15."
        )
    if gradients is not None and gradients.vanishing + gradients.exploding > SOME:
        yield (
            f"The gradients are uneven: {gradients.vanishing:.0%} of the samples are a hundred times below the typical "
            f"norm, {gradients.exploding:.0%} a hundred times above."
        )


def _detached(found: Derivatives) -> str:
    return (
        f"The gradient is not that of the value: they differ by {found.first_error:.0%}, and {_listed(found.cuts)} "
        "takes a part of the loss out of the graph. If that is intended, as it is for the weights of a LambdaLoss, "
        "nothing is wrong. But what follows is measured by values, and then says little about training."
    )


def _derivative_remarks(found: Derivatives, *, flat: bool) -> Iterator[str]:
    if found.jumps is not None and found.jumps > SOME:
        yield (
            f"It is not smooth: the losses of {found.jumps:.0%} of the samples jump near these outputs. No gradient "
            "sees a jump; newton_losses.smoothing makes one that does."
        )
    elif found.kinks is not None and max(found.kinks, found.at_kinks) > SOME and not flat:
        at = f" ({found.at_kinks:.0%} right at them, at a tie for example)" if found.at_kinks > SOME else ""
        yield (
            f"It is not smooth: the losses of {max(found.kinks, found.at_kinks):.0%} of the samples have a kink near "
            f"these outputs{at}. A Hessian sees nothing of a kink."
        )
    if found.second == "wrong":
        of = f" of {_listed(found.operators)}" if found.operators else ""
        yield (
            f"The second derivative{of} is silently wrong: it differs from finite differences of the gradient by "
            f"{found.second_error:.0%}. Use curvature='fisher', which does without it."
        )
    if found.second == "missing":
        yield _missing(found.obstacle or "")
    if found.second == "expensive":
        yield "It has too many outputs for a Hessian here, so only curvature='fisher' was followed."


def _missing(obstacle: str) -> str:
    """Torch names the operator that it has no rule for; the loss itself may well have a second derivative."""
    named = re.search(r"derivative for (?:'|aten::)(\w+?)(?:_backward)?'? is not implemented", obstacle)
    if named is None:
        return f"There is no second derivative. {obstacle}"
    operator = named.group(1).strip("_")
    other = ' torch.cdist has one with compute_mode="use_mm_for_euclid_dist".' if operator == "cdist" else ""
    return (
        f"torch has no rule for the second derivative of {operator}, whatever the loss itself has. Use "
        f"curvature='fisher', which does without it.{other}"
    )
