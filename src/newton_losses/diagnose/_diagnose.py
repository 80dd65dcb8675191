"""`diagnose`: the measurements in their order, each on as many samples as a few seconds allow.

A minimum of samples is measured whatever the clock says. How much beyond it depends on what one call costs, and never
on how long the last measurement took: two runs on one machine look at the same samples and directions, unless a cost
is at the very edge of a budget.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..curvature import (
    CurvatureKind,
    Expandable,
    Expansion,
    Loss,
    Reduction,
    as_curvature,
    check_is_loss,
    check_loss,
    finite,
    flatten_outputs,
    name_of,
    outside_inference_mode,
)
from ..errors import ArgumentError, DerivativeError, SeparabilityError
from ._cost import Cost, affordable, first_order_cost, seconds, timed
from ._derivatives import DIRECTIONS, Derivatives, forward_mode, gradient_error, hessian_error, judged, why_missing
from ._descent import BRIEF, THOROUGH, Descent, measure_descent
from ._gradients import measure_gradients, nothing_finite, where_to_look
from ._noise import NOISE, measure_noise
from ._parts import check_parts
from ._precision import measure_precision
from ._probe import Probe, can_be_called, thinned, undisturbed
from ._report import Report
from ._spectrum import (
    DENSE_SIZE,
    Eigenvalues,
    Spectra,
    curvature_along,
    eigenvalues,
    fisher_eigenvalues,
    sample_convexity,
)
from ._verdict import ENOUGH, Facts, judge

# Seconds: for one gradient of the batch that is measured, for finite differences, second derivatives, descent.
GRADIENT_BUDGET, FIRST_BUDGET, HESSIAN_BUDGET, DESCENT_BUDGET = 0.05, 0.4, 0.4, 1.0
# Beyond this, or beyond the size of matrices that are decomposed, one sample's Hessian is not tried; nor, beyond it, is
# the Hessian's direction, which is from `ENOUGH` samples.
HESSIAN_LIMIT = 1.0
# A gradient of `ENOUGH` samples may take this long: the whole then stays at about five seconds.
ENOUGH_LIMIT = 0.2
# A sample's Hessian takes about this many times m gradients of it, by automatic differentiation in float64.
HESSIAN_FACTOR = 4.0
# Samples whose own Hessians are looked at, and directions that stand for them where Hessians take too long.
SAMPLES_ALONE, DIRECTIONS_ALONE = 24, 6


@outside_inference_mode
def diagnose(loss: Loss | Expandable, y: Tensor, *targets: Any, reduction: Reduction | None = None) -> Report:
    """Would a Newton loss help with `loss` at these outputs, and which? A report; takes seconds.

    `y` `(N, ...)` are outputs of the network as they occur in training, `targets` what the loss takes
    besides. Measured are the paper's three criteria (non-convex, smooth, not solved by one gradient step)
    and what goes wrong without an error: samples that are mixed, derivatives that are wrong or missing,
    gradients that are rounding or noise. Nothing is changed: neither the loss nor any random state.

    >>> squares = lambda y, target: (y - target).square().sum(1)
    >>> report = diagnose(squares, torch.arange(12.0).reshape(4, 3), torch.zeros(4, 3))
    >>> report.verdict, report.reasons[0]
    ('no', 'One gradient step solves it: the best one takes 100% of the decrease that is to be had.')
    """
    check_is_loss(loss)
    flat = flatten_outputs(y)
    if flat.numel() == 0:
        raise ArgumentError(f"diagnose needs samples to measure at; the outputs have shape {tuple(y.shape)}.")
    probe = Probe(loss, flat.reshape(y.shape), targets, reduction)
    blank = Report(name_of(loss), probe.count, probe.size, "fix", ())
    with undisturbed(loss, y.device):
        try:
            check_parts(probe)
            probe = _affordable(probe)
            if can_be_called(loss):
                check_loss(loss, probe.y, *probe.targets, reduction=reduction)
            return _measure(probe, blank)
        except SeparabilityError as error:
            return replace(blank, reasons=(str(error),), separable=False)
        except DerivativeError as error:
            return replace(blank, reasons=(str(error),))


def _affordable(probe: Probe) -> Probe:
    """As much of the batch as fits into the time for one gradient of it: doubled until it is all or takes half.

    Begun at `ENOUGH`, so that no clock chooses the samples of an ordinary loss; at two where those take far longer.
    """

    def taken(part: Probe) -> float:
        return seconds(partial(part.gradient, part.flat), probe.y.device, budget=0.0)

    part = probe.part(2)
    _ = part.here  # the first call ever imports, compiles and allocates
    enough = probe.part(ENOUGH)
    if taken(part) <= GRADIENT_BUDGET and taken(enough) <= ENOUGH_LIMIT:
        part = enough
    while part.count < probe.count and taken(part) <= GRADIENT_BUDGET / 2:
        part = probe.part(2 * part.count)
    return part


def _measure(probe: Probe, blank: Report) -> Report:
    first = probe.here
    gradients = measure_gradients(first.value, first.gradient)
    if not gradients.norms and not _finite_in_float64(probe):
        # Nothing that could be measured would mean anything.
        return replace(blank, reasons=(nothing_finite(probe.flat, first.value),), gradients=gradients)
    cost, noise = first_order_cost(probe, GRADIENT_BUDGET), measure_noise(probe)
    facts = Facts(
        batch=round(blank.samples * (1 - gradients.nonfinite)),
        reference_numerics=getattr(probe.loss, "numerics", None) == "reference",
        where_to_look=where_to_look(probe.flat, first.value, first.gradient),
        gradients=gradients,
        noise=None if noise is None else noise[0],
    )
    if noise is None:
        facts, cost = _exact(probe, facts, cost, fisher_eigenvalues(first))
    else:
        facts = _estimated(probe, facts, noise[1], cost)
    verdict, reasons, chosen = judge(facts)
    return replace(
        blank, verdict=verdict, reasons=reasons, recommendation=chosen, gradients=facts.gradients,
        precision=facts.precision, derivatives=facts.derivatives, noise=facts.noise, spectra=facts.spectra,
        descent=facts.descent, cost=cost,
    )  # fmt: skip


def _finite_in_float64(probe: Probe) -> bool:
    """Whether a wider range gives any sample a finite loss and gradient: then it is the numerics that are broken."""
    try:
        return bool(finite(probe.to(torch.float64).here).any())
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def _exact(probe: Probe, facts: Facts, cost: Cost, fisher: Eigenvalues) -> tuple[Facts, Cost]:
    """A loss that gives the same answer twice: everything can be compared with float64."""
    # A loss so slow that not even the fewest samples fit into the budget is asked the least, and no more once at fault.
    slow = cost.gradient > GRADIENT_BUDGET
    try:
        wide = probe.to(torch.float64)
        precision = measure_precision(probe, wide)
        if slow and precision.broken:
            return replace(facts, precision=precision, spectra=Spectra(fisher)), cost
        whole, wide = wide, wide.finite()
        some = wide.part(thinned(2 * cost.value, 10, FIRST_BUDGET, probe.count))
        error, share = gradient_error(some, 1 if slow else DIRECTIONS)
        derivatives = Derivatives(judged(error), error, share)
    except (RuntimeError, TypeError, NotImplementedError):  # float32 tensors inside the loss, say
        precision, whole, wide, derivatives = None, probe, probe.finite(), Derivatives()
    part = wide.part(_hessian_samples(wide, cost))
    # A sample that is not finite takes as long as any; one that is, alone, says little of what many take.
    ordinary = whole.part(_hessian_samples(whole, cost))
    derivatives, hessian, cost = _second_order(part, ordinary, derivatives, cost, check=precision is not None)
    spectra = Spectra(fisher)
    if derivatives.second == "expensive":
        each = 2 * cost.gradient * part.count / cost.samples
        nonconvex, negative = curvature_along(part, affordable(each, HESSIAN_BUDGET, 1, DIRECTIONS_ALONE))
        spectra = replace(spectra, nonconvex_samples=nonconvex, negative_share=negative, samples=part.count)
    elif hessian is not None and derivatives.second != "wrong":
        spectra = _with_hessian(spectra, part, hessian)
    too_few = part.count < min(ENOUGH, facts.batch)
    trusted = None if spectra.hessian is None or spectra.flat or too_few else hessian
    descent = _descend(wide if trusted is None else part, trusted, cost)
    return replace(facts, precision=precision, derivatives=derivatives, spectra=spectra, descent=descent), cost


def _hessian_samples(wide: Probe, cost: Cost) -> int:
    """How many samples' Hessians the budget allows: at least `ENOUGH` up to the limit, and one beyond it."""
    expected = HESSIAN_FACTOR * wide.size * cost.gradient
    few = thinned(expected, 1, HESSIAN_LIMIT, min(ENOUGH, wide.count), least=1)
    affordable = thinned(expected, 1, HESSIAN_BUDGET, wide.count, least=few)
    return min(affordable, thinned(2 * cost.value, THOROUGH.calls, DESCENT_BUDGET, wide.count, least=ENOUGH))


def _second_order(
    part: Probe, ordinary: Probe, derivatives: Derivatives, cost: Cost, *, check: bool
) -> tuple[Derivatives, Expansion | None, Cost]:
    """The mean Hessian of the part, compared with finite differences of the gradient; what it costs for `ordinary`."""
    forward, operator = forward_mode(part)
    derivatives = replace(derivatives, forward=forward, operator=operator)
    if part.size > DENSE_SIZE or part.size * cost.gradient / cost.samples > HESSIAN_LIMIT:
        return replace(derivatives, second="expensive"), None, cost
    try:
        hessian, taken = timed(lambda: part.expand(part.flat, "hessian"), part.y.device)
    except (DerivativeError, RuntimeError, NotImplementedError) as error:
        return replace(derivatives, second="missing", obstacle=why_missing(error)), None, cost
    if taken < HESSIAN_BUDGET / 4:  # cheap enough to be timed without its first call
        taken = seconds(lambda: ordinary.expand(ordinary.flat, "hessian"), part.y.device)
        taken *= part.count / ordinary.count
    if check:
        assert hessian.curvature is not None
        found = hessian_error(part, as_curvature(hessian.curvature))
        derivatives = replace(derivatives, second=judged(found), second_error=found)
    return derivatives, hessian, replace(cost, hessian=taken * cost.samples / part.count)


def _with_hessian(spectra: Spectra, part: Probe, hessian: Expansion) -> Spectra:
    assert hessian.curvature is not None
    # Curvature is gradient per move; this share of it is rounding of float64 sums.
    rounding = 1e-12 * float(hessian.gradient.double().norm(dim=1).nanmedian()) / part.spread
    found = eigenvalues(as_curvature(hessian.curvature), rounding)
    if part.count == 1:
        nonconvex, negative = float(found.negative_share > 0), found.negative_share
    else:
        nonconvex, negative = sample_convexity(part.part(SAMPLES_ALONE), rounding, HESSIAN_BUDGET)
    return replace(spectra, hessian=found, nonconvex_samples=nonconvex, negative_share=negative, samples=part.count)


def _estimated(probe: Probe, facts: Facts, mean: Expansion, cost: Cost) -> Facts:
    """A loss that draws noise: the mean over repeats stands for it, and nothing can be compared digit by digit."""
    spectra = Spectra(fisher_eigenvalues(mean), samples=probe.count)
    if mean.curvature is not None:
        spectra = replace(spectra, hessian=eigenvalues(as_curvature(mean.curvature)))
    assert facts.noise is not None
    probe = probe.finite()
    part = probe.part(thinned(cost.value, THOROUGH.calls, DESCENT_BUDGET, probe.count, least=ENOUGH))
    clear = facts.noise.hessian is not None and facts.noise.hessian < NOISE
    descent = _descend(part, part.expand(part.flat, "hessian") if clear else None, cost)
    return replace(facts, derivatives=Derivatives(), spectra=spectra, descent=descent)


def _descend(probe: Probe, hessian: Expansion | None, cost: Cost) -> Descent:
    """Along the gradient and, where there is a Hessian at just these outputs, its direction beside the Fisher's."""
    if hessian is None:
        probe = probe.part(thinned(2 * cost.value, THOROUGH.calls, DESCENT_BUDGET, probe.count, least=ENOUGH))
    expansions: dict[CurvatureKind, Expansion] = {"fisher": probe.expand(probe.flat, "fisher")}
    if hessian is not None:
        expansions["hessian"] = hessian
    expected = 2 * cost.value * probe.count / cost.samples * THOROUGH.calls
    return measure_descent(probe, expansions, THOROUGH if expected < 2 * DESCENT_BUDGET else BRIEF)
