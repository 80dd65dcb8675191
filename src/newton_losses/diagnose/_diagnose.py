"""`diagnose`: the measurements in their order, each a fixed amount of work.

How many samples and calls a measurement takes follows from the number of samples and outputs alone. No clock is asked,
every random number is seeded and all of it runs on one thread: the same input gets the same answer.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._arguments import bound_targets, check_targets, name_of, with_mask
from ..curvature import (
    CurvatureKind,
    Expandable,
    Expansion,
    Loss,
    Reduction,
    check_loss,
    doubts_of,
    finite,
    flatten_outputs,
    is_sum,
    outside_inference_mode,
    resolve_reduction,
    with_own_targets,
)
from ..errors import ArgumentError, DerivativeError, SeparabilityError
from ..newton import check_is_plain
from ._derivatives import (
    Derivatives,
    check_gradient,
    check_hessian,
    judged,
    measure_precision,
    where_not_smooth,
    why_missing,
)
from ._descent import measure_descent
from ._measurements import (
    NOISE,
    Eigenvalues,
    Spectra,
    eigenvalues,
    fisher_eigenvalues,
    measure_gradients,
    measure_noise,
    measure_spectra,
    nothing_finite,
    where_to_look,
)
from ._probe import (
    Counter,
    Probe,
    Progress,
    can_be_called,
    check_parts,
    curvature_of,
    draws_noise,
    is_symmetric,
    undisturbed,
)
from ._report import Report
from ._verdict import CHANGING, MASKED, SUM, judge

# The most samples, and outputs of all of them together, that are looked at; a few samples in any case.
SAMPLES, ELEMENTS, FEWEST = 256, 2**16, 16
# A Hessian takes as many gradients as there are outputs, of this many samples altogether; fewer samples than that
# would say little of a batch.
HESSIAN_ROWS, HESSIAN_SAMPLES = 4096, 8


@outside_inference_mode
def diagnose(
    loss: Loss | Expandable,
    y: Tensor,
    *targets: Any,
    reduction: Reduction | None = None,
    progress: Progress | None = None,
    **named: Any,
) -> Report:
    """What is wrong with `loss` at these outputs, and what would a Newton loss do here? Returns a report.

    `y` `(N, ...)` are outputs of the network as they occur in training, `targets` what else the loss takes, by position
    or by name. It checks what goes wrong without an error: samples that are mixed, derivatives that are wrong or
    missing, gradients that are rounding or noise, jumps and kinks. It measures what a Newton loss would change: how it
    normalises the batch, clips samples and turns directions, and where each direction leads on the outputs. The loss is
    called a few hundred times, on at most 256 samples; before each call, `progress(stage, calls)` receives the current
    measurement and the number of calls so far. The loss's buffers and every random state are as before afterwards, and
    the same input gets the same answer.

    >>> squares = lambda y, target: (y - target).square().sum(1)
    >>> report = diagnose(squares, torch.arange(12.0).reshape(4, 3), torch.zeros(4, 3))
    >>> report.derivatives.first, report.spectra.convex
    ('right', True)
    """
    check_is_plain(loss, "diagnose")
    if named:
        loss, targets, _ = bound_targets(loss, y, targets, named, None, "diagnose")
    flat = flatten_outputs(y)
    if flat.numel() == 0:
        raise ArgumentError(f"diagnose needs samples to measure at; the outputs have shape {tuple(y.shape)}.")
    loss, targets = with_own_targets(loss, targets)
    probe = Probe(loss, flat.reshape(y.shape), targets, reduction, counter=Counter(progress))
    blank = Report(name_of(loss), probe.count, probe.size, "fix", ())
    mask = with_mask(loss, y, targets, None)[2]
    hidden = None if mask is None or bool(mask.all()) else MASKED
    could_tell = False
    with undisturbed(loss, y.device):
        try:
            if not check_parts(probe):
                return replace(blank, reasons=(CHANGING,))
            if doubts := doubts_of(loss, probe.y, targets):
                return replace(blank, reasons=tuple(doubts))
            probe = probe.part(max(FEWEST, min(SAMPLES, ELEMENTS // probe.size)))
            if can_be_called(loss):
                could_tell = check_loss(loss, probe.y, *probe.targets, reduction=reduction)
                if resolve_reduction(loss, reduction) is None and is_sum(loss, probe.y, *probe.targets):
                    return replace(blank, reasons=(SUM,), separable=True if could_tell else None)
            found = _measure(probe, replace(blank, separable=True if could_tell else None))
            return found if hidden is None else replace(found, reasons=(*found.reasons, hidden))
        except TypeError:
            if can_be_called(loss):
                check_targets(loss, y, targets)
            raise
        except SeparabilityError as error:
            return replace(blank, reasons=(str(error),), separable=False)
        except DerivativeError as error:
            return replace(blank, reasons=(str(error),))


def _measure(probe: Probe, blank: Report) -> Report:
    probe.counter.stage = "gradients"
    first = probe.here
    gradients = measure_gradients(first.value, first.gradient)
    if not gradients.norms and not _finite_in_float64(probe):
        # Nothing that could be measured would mean anything.
        return replace(blank, reasons=(nothing_finite(probe.flat, first.value),), gradients=gradients)
    facts = replace(blank, gradients=gradients)
    facts = _estimated(probe, facts) if draws_noise(probe) else _exact(probe, facts, fisher_eigenvalues(first))
    is_reference = getattr(probe.loss, "numerics", None) == "reference"
    facts = judge(facts, where_to_look(probe.flat, first.value, first.gradient), reference_numerics=is_reference)
    probe.counter.stage = "stored order"
    symmetric = is_symmetric(probe) if facts.noise is None else None
    return replace(facts, symmetric=symmetric, calls=probe.counter.calls)


def _finite_in_float64(probe: Probe) -> bool:
    """Whether a wider range gives any sample a finite loss and gradient: then it is the numerics that are broken."""
    try:
        return bool(finite(probe.to(torch.float64).here).any())
    except Exception:  # the loss is the caller's, and may raise anything at numbers that it was not made for
        return False


def _exact(probe: Probe, facts: Report, fisher: Eigenvalues) -> Report:
    """A loss that gives the same answer twice: everything can be compared with float64."""
    counter = probe.counter
    try:
        counter.stage = "float32 against float64"
        wide = probe.to(torch.float64)
        precision = measure_precision(probe, wide)
        wide = wide.finite()
        counter.stage = "first derivative"
        derivatives = check_gradient(wide)
        counter.stage = "smoothness"
        jumps, kinks = where_not_smooth(wide)
        derivatives = replace(derivatives, jumps=jumps, kinks=kinks)
    except Exception:  # float32 tensors inside the loss, or a network that wants its own dtype
        precision, wide, derivatives = None, probe.finite(), Derivatives()
    counter.stage = "second derivative"
    part = wide.part(max(1, HESSIAN_ROWS // wide.size))
    derivatives, hessian = _second_order(part, derivatives, check=precision is not None)
    if derivatives.first == "detached" and derivatives.second == "wrong":
        # Differences of a gradient see what its own derivative leaves out, too.
        derivatives, hessian = replace(derivatives, second="detached"), None
    counter.stage = "curvature"
    if derivatives.second == "wrong":
        hessian = None
    spectra = measure_spectra(fisher, wide if hessian is None else part, hessian)
    counter.stage = "descent"
    expansions: dict[CurvatureKind, Expansion] = {"fisher": wide.expand(wide.flat, "fisher")}
    if spectra.hessian is not None and spectra.hessian.rank > 0 and hessian is not None:
        expansions["hessian"] = replace(expansions["fisher"], curvature=hessian.curvature)
    descent = measure_descent(wide, expansions, noisy=False)
    return replace(facts, precision=precision, derivatives=derivatives, spectra=spectra, descent=descent)


def _second_order(part: Probe, derivatives: Derivatives, *, check: bool) -> tuple[Derivatives, Expansion | None]:
    """The mean Hessian of the part, compared with finite differences of the gradient."""
    if part.size > HESSIAN_ROWS // HESSIAN_SAMPLES:
        return replace(derivatives, second="expensive"), None
    try:
        hessian = part.expand(part.flat, "hessian")
        if check:
            found = check_hessian(part, curvature_of(hessian))
            derivatives = replace(derivatives, second=judged(found), second_error=found)
    except (DerivativeError, RuntimeError, NotImplementedError) as error:
        return replace(derivatives, second="missing", obstacle=why_missing(error)), None
    return derivatives, hessian


def _estimated(probe: Probe, facts: Report) -> Report:
    """A loss that draws noise: the mean over repeats stands for it, and nothing can be compared digit by digit."""
    probe.counter.stage = "noise"
    noise, mean = measure_noise(probe)
    spectra = Spectra(fisher_eigenvalues(mean), samples=probe.count)
    if mean.curvature is not None:
        spectra = replace(spectra, hessian=eigenvalues(curvature_of(mean)))
    probe.counter.stage = "descent"
    probe = probe.finite()
    expansions: dict[CurvatureKind, Expansion] = {"fisher": probe.expand(probe.flat, "fisher")}
    if noise.hessian is not None and noise.hessian < NOISE:
        expansions["hessian"] = probe.expand(probe.flat, "hessian")
    descent = measure_descent(probe, expansions, noisy=True)
    return replace(facts, noise=noise, derivatives=Derivatives(), spectra=spectra, descent=descent)
