"""Fuzzed calls that have to be refused: each option of the Newton loss and of the networks with a wrong value."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from drawing import Draw

import newton_losses as nl
from newton_losses.sorting import SortingNetwork

NOT_WORDS = (0, 1.5, b"auto", ("raw",), ["mean"], np.ones(3), torch.ones(2), {}, object)
NOT_FACTORS = (
    0, 0.0, -1, -1e-30, float("nan"), float("inf"), -float("inf"), "1", "auto", None, True, [1.0], np.ones(3),
    torch.ones(2), torch.tensor(-1.0), 1j, {}, object,
)  # fmt: skip
NOT_DAMPINGS = (
    "Auto", "automatic", "relative", "normalized", "", "1", b"auto", ("auto",), ["auto"], None, True, 0, -1.0, 1j, {},
    float("nan"), float("inf"), np.ones(3), torch.ones(2), nl.NormalizedDamping, nl.RelativeDamping,
)  # fmt: skip
NOT_SPECTRA = ("abs", "Raw", "none", "", True, *NOT_WORDS)
NOT_CURVATURES = ("gauss", "Fisher", "", None, *NOT_WORDS)
NOT_REDUCTIONS = ("average", "batchmean", "", *NOT_WORDS)
# Where it is installed, "triton" is one.
NOT_BACKENDS = ("cuda", "Numba", *(() if find_spec("triton") else ("triton",)), "", None, True, *NOT_WORDS)
NOT_SCALES = (0, 0.0, float("nan"), float("inf"), "1", None, 1j, [1.0], np.ones(3), torch.ones(2))


def square(y: torch.Tensor) -> torch.Tensor:
    return y.square().sum(1)


def outputs() -> torch.Tensor:
    return torch.ones(3, 2, requires_grad=True)


def newton(draw: Draw, **options: Any) -> None:
    which = draw.pick((0, 1, 2))
    if which == 0:
        nl.newton_target(square, outputs(), **options)
    elif which == 1:
        nl.newton_loss(square, outputs(), **options)
    else:
        nl.NewtonLoss(square, **options)(outputs())


def inject(draw: Draw, **options: Any) -> None:
    if draw.chance(0.5):
        nl.inject_fisher(outputs(), **options).sum().backward()
    else:
        nl.InjectFisher(**options)(outputs()).sum().backward()


# What is called, with each of these values: none may be taken.
WRONG: tuple[tuple[Callable[[Draw, Any], Any], tuple[Any, ...]], ...] = (
    (lambda draw, thing: nl.NormalizedDamping(thing), NOT_FACTORS),
    (lambda draw, thing: nl.RelativeDamping(thing), NOT_FACTORS),
    (lambda draw, thing: newton(draw, damping=thing), NOT_DAMPINGS),
    (lambda draw, thing: newton(draw, damping=lambda _: thing), NOT_DAMPINGS),
    (lambda draw, thing: newton(draw, spectrum=thing), NOT_SPECTRA),
    (lambda draw, thing: newton(draw, spectrum=thing, damping="auto"), NOT_SPECTRA),
    (lambda draw, thing: newton(draw, curvature=thing), NOT_CURVATURES),
    (lambda draw, thing: newton(draw, reduction=thing), NOT_REDUCTIONS),
    (lambda draw, thing: newton(draw, process_group=thing), ("world", *NOT_WORDS)),
    (lambda draw, thing: inject(draw, damping=thing), NOT_DAMPINGS),
    (lambda draw, thing: inject(draw, reduction=thing), (None, "none", *NOT_REDUCTIONS)),
    (lambda draw, thing: inject(draw, loss_scale=thing), NOT_SCALES),
    (lambda draw, thing: SortingNetwork(3, backend=thing), NOT_BACKENDS),
    (lambda draw, thing: SortingNetwork(4, "bitonic", "cauchy", 2.0, thing), NOT_BACKENDS),
)


def refused(draw: Draw) -> None:
    call, things = draw.pick(WRONG)
    thing = draw.pick(things)
    call(draw, thing)
    raise AssertionError(f"{thing!r} was taken by call {WRONG.index((call, things))} of WRONG")


CALLS = (refused,) * 2
