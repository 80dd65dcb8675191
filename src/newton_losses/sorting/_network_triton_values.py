"""The values on a network's wires, layer by layer, within one CUDA kernel. Importing this module imports triton.

A layer's move needs the distribution itself, and no derivative of it: the six are here a second time, in what Triton
computes on every device and in its interpreter. All else about them is in `_network_distributions.py`.
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

PI = tl.constexpr(3.141592653589793)
ROOT_HALF = tl.constexpr(0.7071067811865476)
TWO_PI = tl.constexpr(6.283185307179586)
FOUR_PI = tl.constexpr(12.566370614359172)


@_jit
def sort_values(  # type: ignore[no-untyped-def]
    values, partners, scale, differences, size, count, wire_stride, sample_stride,
    LAYERS: tl.constexpr, LAW: tl.constexpr, SIZE: tl.constexpr, SAMPLES: tl.constexpr,
):  # fmt: skip
    """Some samples side by side. `scale` `(layers, n)` is the steepness, negative for the wire of the smaller value."""
    wire = tl.arange(0, SIZE)[:, None]
    sample = tl.program_id(0).to(tl.int64) * SAMPLES + tl.arange(0, SAMPLES)[None, :]
    inside = wire < size
    live = inside & (sample < count)
    at = tl.zeros([SIZE, SAMPLES], tl.int64) + wire
    x = tl.load(values + at * wire_stride + sample * sample_stride, mask=live, other=0.0)
    for layer in range(LAYERS):
        partner = tl.load(partners + layer * size + wire, mask=inside, other=0).to(tl.int32)
        partner = tl.broadcast_to(tl.where(inside, partner, wire), (SIZE, SAMPLES))
        difference = tl.gather(x, partner, 0) - x
        chance = swapped(tl.load(scale + layer * size + wire, mask=inside, other=0.0), difference, LAW)
        x += chance * difference
        tl.store(differences + (at + layer * size) * count + sample, difference, mask=live)


@_jit
def swapped(scale, difference, LAW: tl.constexpr):  # type: ignore[no-untyped-def]
    """F(−u), the probability to swap. Its smaller half is computed, and the other is what that leaves of 1."""
    u = scale * difference
    if LAW == "logistic_phi":
        u = u / tl.sqrt(tl.sqrt(tl.abs(difference) + 1e-10))
    size = tl.abs(u)
    if LAW == "gaussian":
        tail = normal_tail(size)
    elif LAW == "cauchy":
        tail = cauchy_tail(size)
    elif LAW == "reciprocal":
        tail = 1.0 / (2.0 + size)
    elif LAW == "optimal":
        tail = tl.where(size > 0.25, 1.0 / (16.0 * tl.maximum(size, 0.25)), 0.5 - size)
    else:
        smaller = tl.exp(-size)
        tail = smaller / (1.0 + smaller)
    return tl.where(u > 0, 1.0 - tail, tail)


@_jit
def cauchy_tail(u):  # type: ignore[no-untyped-def]
    """atan(1/u)/π for u ≥ 0: the angle halved three times, and then its series."""
    t = 1.0 / (u + tl.sqrt(1.0 + u * u))
    t = t / (1.0 + tl.sqrt(1.0 + t * t))
    t = t / (1.0 + tl.sqrt(1.0 + t * t))
    square = t * t
    series = tl.zeros_like(t)
    for k in tl.static_range(12):
        # Terms up to t²³/23 of an angle of at most π/16: the next is below 10⁻¹⁷.
        series = 1.0 / (23 - 2 * k) - square * series
    return 8.0 * t * series / PI


@_jit
def normal_tail(u):  # type: ignore[no-untyped-def]
    """Φ(−u) = erfc(u/√2)/2 for u ≥ 0, right to its last digits however small it is.

    Far out, erfc(z) = (2z/π) e^{−z²} ∫₀^∞ e^{−t²}/(z² + t²) dt by the trapezoidal rule with steps of ½; its error
    is the residue at the pole t = iz, as long as the rule's own resolution sees it, and e^{−4π²} beside.
    """
    z = u * ROOT_HALF
    far = tl.maximum(z, 0.5)
    square = far * far
    integral = 0.5 / square
    for k in tl.static_range(1, 14):
        # The base is e^{−1/4}.
        integral += 0.7788007830714049 ** (k * k) / (square + 0.25 * k * k)
    pole = tl.where(far < TWO_PI, 2.0 / (tl.exp(tl.minimum(far, TWO_PI) * FOUR_PI) - 1.0), 0.0)
    beyond = far * tl.exp(-square) * integral / PI - pole
    return 0.5 * tl.where(z < 0.5, 1.0 - tl.erf(z), beyond)
