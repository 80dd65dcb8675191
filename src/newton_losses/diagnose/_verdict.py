"""From measurements to a verdict in plain words, a variant and a damping. Only judging happens here."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..curvature import CurvatureKind, NormalizedDamping
from ._derivatives import Derivatives
from ._descent import Candidate, Descent
from ._gradients import LOSS_TO_BLAME, Gradients
from ._noise import NOISE, Noise
from ._precision import Precision
from ._spectrum import Spectra

Verdict = Literal["yes", "no", "fix"]

# One gradient step counts as solving the loss when it takes this share of the decrease that is to be had.
SOLVED = 0.95
# Directions whose decrease differs by less than this are equal; the simpler then is recommended.
TIE = 0.05
# Samples from which a damping other than the default is believed, and how many will do where they are the whole batch.
ENOUGH, ENOUGH_OF_ALL = 16, 8

_STABLE = 'Use numerics="stable", the same loss in log space.'


@dataclass(frozen=True)
class Recommendation:
    """Arguments for `NewtonLoss`; `damping_here` is the λ that the rule gives at the diagnosed outputs."""

    curvature: CurvatureKind
    damping: NormalizedDamping
    damping_here: float

    @property
    def is_default(self) -> bool:
        """Whether the damping is the one of `NewtonLoss` without any: it is, unless another direction leads lower."""
        return self.damping == NormalizedDamping()

    def __str__(self) -> str:
        rule = "" if self.is_default else f", damping=nl.NormalizedDamping({self.damping.factor:g})"
        return f'nl.NewtonLoss(loss, curvature="{self.curvature}"{rule})'


@dataclass(frozen=True)
class Facts:
    """Everything measured, or `None` where it could not be; `batch` is how many finite samples were given."""

    batch: int = ENOUGH
    reference_numerics: bool = False
    where_to_look: str = LOSS_TO_BLAME
    gradients: Gradients | None = None
    precision: Precision | None = None
    derivatives: Derivatives | None = None
    noise: Noise | None = None
    spectra: Spectra | None = None
    descent: Descent | None = None


def judge(facts: Facts) -> tuple[Verdict, tuple[str, ...], Recommendation | None]:
    """(verdict, reasons, recommendation); the first reason is the one that decided."""
    faults = tuple(_faults(facts))
    if faults:
        return "fix", faults, None
    solved = facts.descent is not None and facts.descent.solved >= SOLVED
    chosen = None if solved else recommend(facts)
    return "no" if solved else "yes", (*_criteria(facts), *_remarks(facts, chosen)), chosen


def _faults(facts: Facts) -> Iterator[str]:
    """What has to be mended before anything else means something."""
    if facts.precision is not None and facts.precision.broken:
        yield _broken_numerics(facts.precision, facts.reference_numerics)
    elif facts.derivatives is not None and facts.derivatives.first == "wrong":
        yield _wrong_gradient(facts.derivatives, facts.reference_numerics)
    if facts.gradients is not None and facts.gradients.nonfinite > 0.01:
        yield (
            f"{facts.gradients.nonfinite:.0%} of the samples have no finite loss or gradient. A Newton loss leaves "
            f"them out, so they teach nothing; {facts.where_to_look}."
        )
    if facts.noise is not None and facts.noise.gradient >= _averaged_out(facts):
        yield (
            f"The estimate is noise: between two calls a sample's gradient differs by {facts.noise.gradient:.1f} times "
            f"its own size, and {_averages(facts.batch)} not even half of a step would be signal. "
            f"{_more(facts.noise.gradient)} would bring that to a half of the gradient."
        )
    if facts.descent is not None and math.isnan(facts.descent.solved):
        yield (
            "No step lowers the loss: these outputs are at a minimum or on a plateau where all gradients vanish. "
            "Diagnose at other outputs, early in training say; a higher temperature or wider noise shrinks a plateau."
        )


def _averaged_out(facts: Facts) -> float:
    """Up to which noise over signal of one sample a batch's mean has more signal than noise.

    Independent noise of N samples falls by √N, and many small steps average the rest.
    """
    return NOISE * math.sqrt(max(facts.batch, 1))


def _averages(batch: int) -> str:
    return "in one of a single sample" if batch == 1 else f"averaged over {batch} samples"


def _more(ratio: float) -> str:
    return f"About {max(Noise.more_samples(ratio), 2):.0f} times the samples" if ratio < 1e4 else "Many more samples"


def _wrong_gradient(derivatives: Derivatives, reference: bool) -> str:
    differs = f"differs from finite differences of the loss by {derivatives.first_error:.0%} in float64"
    if reference:
        return (
            f"The numerics are broken: the gradient {differs}, since torch's cross-entropy of probabilities cuts its "
            f"logarithm off at -100 in the value and not in the gradient. {_STABLE}"
        )
    share = derivatives.wrong_samples
    of = f" for {share:.{0 if share >= 0.01 else 1}%} of the samples" if 0 < share < 0.5 else ""
    return (
        f"The gradient is wrong{of}: it {differs}. Nothing raises an error; a custom backward usually is to blame. "
        "Check it with torch.autograd.gradcheck."
    )


def _broken_numerics(precision: Precision, reference: bool) -> str:
    cure = (
        _STABLE
        if reference
        else "Compute it in log space (log_softmax, logsigmoid, logaddexp; cross-entropy on logits), or in float64."
    )
    return (
        f"The numerics are broken: in float32 {precision.wrong:.0%} of the samples have a gradient that is off by more "
        f"than a tenth (99th percentile of the norms: {precision.p99_float32:.2g} in float32, "
        f"{precision.p99_float64:.2g} in float64). What looks like a hard loss is rounding. {cure}"
    )


def _criteria(facts: Facts) -> Iterator[str]:
    """The paper's three, the deciding one first."""
    assert facts.spectra is not None
    if facts.descent is not None:
        yield _one_step(facts.descent)
    spectra = facts.spectra
    if spectra.hessian is None and spectra.convex is None:
        yield "Whether it is convex is not known: there is no Hessian that could be trusted."
    elif spectra.convex is None:
        assert spectra.hessian is not None
        yield f"Of the curvature of its mean Hessian, {spectra.hessian.negative_share:.0%} is negative."
    elif spectra.flat:
        yield "It is not smooth: piecewise linear, its Hessian is zero wherever there is one."
    elif spectra.convex:
        yield f"It is convex at these outputs: of {_samples(spectra.samples)} none has a loss that curves downwards."
    else:
        yield (
            f"It is non-convex: {spectra.nonconvex_samples:.0%} of the samples' losses curve downwards in some "
            f"direction, with {spectra.negative_share:.0%} of all their curvature."
        )


def _samples(count: int) -> str:
    return "1 sample that was looked at" if count == 1 else f"{count} samples"


def _one_step(descent: Descent) -> str:
    taken = f"{_share(descent.solved)} of the decrease that is to be had"
    if descent.solved >= SOLVED:
        return f"One gradient step solves it: the best one takes {taken}."
    return f"One gradient step does not solve it: the best takes {taken}."


def _share(solved: float) -> str:
    """In percent, with as many decimals as show on which side of the threshold it is."""
    for digits in range(4):
        if (round(solved, 2 + digits) >= SOLVED) == (solved >= SOLVED):
            break
    return f"{solved:.{digits}%}"


def _remarks(facts: Facts, chosen: Recommendation | None) -> Iterator[str]:
    gradients, derivatives, noise = facts.gradients, facts.derivatives, facts.noise
    if noise is not None and noise.gradient >= NOISE:
        yield (
            f"The estimate is noise in a single sample: between two calls its gradient differs by {noise.gradient:.1f} "
            "times its own size. The mean of the batch and many small steps average that; "
            f"{_more(noise.gradient).lower()} would bring it to a half."
        )
    if gradients is not None and gradients.vanishing + gradients.exploding > 0.05:
        yield (
            f"The gradients are uneven: {gradients.vanishing:.0%} of the samples are a hundred times below the typical "
            f"norm, {gradients.exploding:.0%} a hundred times above."
        )
    if derivatives is not None and derivatives.second == "wrong":
        yield (
            f"The second derivative is silently wrong: it differs from finite differences of the gradient by "
            f"{derivatives.second_error:.0%}. curvature='fisher' does without it."
        )
    if derivatives is not None and derivatives.second == "missing":
        yield f"There is no second derivative. {derivatives.obstacle}"
    if derivatives is not None and derivatives.second == "expensive":
        yield "One sample's Hessian would take seconds, so only curvature='fisher' was looked at."
    if chosen is not None and _hessian_left_out(facts):
        yield (
            f"The Hessians of {ENOUGH} samples would take seconds and those of fewer say little of a batch, so only "
            "curvature='fisher' was followed; a training run tells whether curvature='hessian' is worth its time."
        )
    if noise is not None and noise.hessian is not None and noise.hessian >= NOISE:
        yield (
            f"The Hessian estimate is noise: {noise.hessian:.1f} times its own size from call to call. "
            f"{_more(noise.hessian)} would bring that to a half."
        )
    if chosen is not None and facts.descent is not None:
        yield _gain(facts.descent, chosen)


def _hessian_left_out(facts: Facts) -> bool:
    """Whether there is a Hessian that can be trusted and yet no direction of it was followed."""
    exact, spectra = facts.noise is None, facts.spectra
    if not exact or spectra is None or spectra.hessian is None or spectra.flat or facts.descent is None:
        return False
    return all(candidate.curvature != "hessian" for candidate in facts.descent.candidates)


def _gain(descent: Descent, chosen: Recommendation) -> str:
    candidate = next(
        c for c in descent.candidates if (c.curvature, c.factor) == (chosen.curvature, chosen.damping.factor)
    )
    newton, plain = descent.start - candidate.line.best, descent.start - descent.gradient.best
    measured = (
        f"lowers the loss by up to {newton:.3g} in one step, the plain gradient by {plain:.3g} (mean over "
        f"{descent.samples} samples, starting from {descent.start:.3g})"
    )
    if newton > plain * (1 + TIE):
        return f"The recommended direction {measured}."
    return (
        f"The recommended direction {measured}: here it is no better than the gradient's. What a Newton loss brings "
        "then is the scale, each batch by its own size; compare it with gradient clipping."
    )


def recommend(facts: Facts) -> Recommendation | None:
    """The candidate with the lowest point on its line; among equals the default factor and the Fisher.

    From few samples the default factor in any case: where another leads lower, the next batch may differ. For a batch
    of one sample the Hessian where there is one: its Fisher is made of its own gradient, and turns nothing.
    """
    if facts.descent is None or not facts.descent.candidates:
        return None
    descent = facts.descent
    enough = descent.samples >= max(min(ENOUGH, facts.batch), ENOUGH_OF_ALL)
    candidates = [c for c in descent.candidates if enough or c.factor == NormalizedDamping().factor]
    if facts.batch == 1:
        candidates = [c for c in candidates if c.curvature == "hessian"] or candidates
    lowest = min(c.line.best for c in candidates)
    equal = [c for c in candidates if c.line.best - lowest <= TIE * (descent.start - lowest)]

    def simplicity(candidate: Candidate) -> tuple[bool, bool, float]:
        return candidate.factor != NormalizedDamping().factor, candidate.curvature != "fisher", -candidate.factor

    best = min(equal or candidates, key=simplicity)
    return Recommendation(best.curvature, NormalizedDamping(best.factor), best.damping)
