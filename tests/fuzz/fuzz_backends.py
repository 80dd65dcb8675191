"""Fuzzed losses of sorting networks by both back ends, numba and torch: the same numbers up to rounding."""

from typing import Any

import torch
from drawing import Draw, same
from fuzz_sorting import NETWORKS, draw_scores
from torch import Tensor

import newton_losses as nl
from newton_losses import sorting

Pair = tuple[Any, Any]


def network_pair(draw: Draw, n: int, distribution: str, steepness: float) -> Pair:
    """The same network with the compiled kernel, or what "auto" takes, and with torch's operators."""
    size, wiring = draw.pick((n, None)), draw.pick(("odd_even", "odd_even", "bitonic"))
    first, second = draw.pick(("numba", "numba", "auto")), "torch"
    return tuple(sorting.SortingNetwork(size, wiring, distribution, steepness, name) for name in (first, second))


def losses(draw: Draw, networks: Pair, scores: Tensor) -> tuple[Pair, Tensor]:
    which = draw.pick(("sorting", "sorting", "spearman", "topk"))
    if which == "topk":
        labels = draw.random.integers(0, max(1, scores.shape[-1]), scores.shape[:-1])
        k = int(draw.random.integers(1, 3))
        return tuple(sorting.TopKLoss(k, network) for network in networks), torch.as_tensor(labels)
    values = draw.tensor(scores.shape, bad=0.02)
    if which == "spearman":
        return tuple(sorting.SpearmanLoss(network) for network in networks), values
    ties = draw.pick(("share", "mask"))
    return tuple(sorting.SortingLoss(network, ties=ties) for network in networks), values


def network_backends(draw: Draw) -> None:
    scores = draw_scores(draw, least=1)
    distribution, steepness = draw.pick(NETWORKS), draw.power(-2, 2)
    networks = network_pair(draw, scores.shape[-1], distribution, steepness)
    pair, values = losses(draw, networks, scores)
    leaves = [scores.detach().clone().requires_grad_(scores.is_floating_point()) for _ in pair]
    found, wanted = (loss(leaf, values) for loss, leaf in zip(pair, leaves, strict=True))
    assert found.dtype == wanted.dtype
    usable = torch.isfinite(scores).all(-1) & ~wanted.detach().isnan()
    reach = logarithms(scores[usable], distribution, steepness)
    if reach > 1e29:
        return
    relative = rounding(scores)
    same(found[usable], wanted[usable], relative, "value", 1e-28)
    with torch.no_grad():
        same(pair[0](scores, values)[usable], wanted[usable], relative, "value without gradients", 1e-28)
    if not scores.is_floating_point() or reach > 1e3:
        return
    for value in (found, wanted):
        value[usable].sum().backward()
    compare_rows(leaves[0].grad[usable], leaves[1].grad[usable], relative, steepness)
    if isinstance(pair[0], sorting.SortingLoss) and scores.dim() == 2 and usable.all():
        compare_expansions(draw, pair, scores, values, relative, steepness)


def rounding(scores: Tensor) -> float:
    """What the two orders of operations may differ by, relative to the largest number."""
    if scores.dtype == torch.float64:
        return 1e-7
    return 2e-2 if scores.dtype.itemsize == 2 else 1e-4


def logarithms(scores: Tensor, distribution: str, steepness: float) -> float:
    """How large the logarithms of the weights may be. Where they have lost their digits, derivatives cancel."""
    size = float(scores.double().abs().max()) * steepness if scores.numel() else 0.0
    return size**2 if distribution == "gaussian" else size


def compare_rows(found: Tensor, wanted: Tensor, relative: float, steepness: float, what: str = "gradient") -> None:
    # terms of the size of the steepness may cancel
    same(found, wanted, relative, what, relative * 0.01 * max(1.0, steepness))


def compare_expansions(
    draw: Draw, pair: Pair, scores: Tensor, values: Tensor, relative: float, steepness: float
) -> None:
    kind = draw.pick(("hessian", "fisher", None))
    found, wanted = (nl.expand(loss, scores, values, curvature=kind) for loss in pair)
    same(found.value, wanted.value, relative, "value of the expansion", 1e-28)
    compare_rows(found.gradient, wanted.gradient, relative, steepness, "gradient of the expansion")
    if kind is not None:
        first, second = (expansion.curvature.dense() for expansion in (found, wanted))
        same(first, second, 3 * relative, kind, 3 * relative * 0.01 * max(1.0, steepness) ** 2)
        # Of numbers below the normal ones, the two have no digit in common.
        least = torch.finfo(found.gradient.dtype).tiny
        rows = [one.gradient.abs() for one in (found, wanted)]
        if any(row.any() and row.max() < least for row in rows):
            return
        step, other = (nl.newton_target(loss, scores, values, curvature=kind, damping="auto").kept for loss in pair)
        assert torch.equal(step, other), f"{kind}: other samples are left out: {step} instead of {other}"


CALLS = (network_backends,) * 2
