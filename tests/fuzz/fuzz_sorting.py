"""Fuzzed calls of the sorting functions, against textbook formulas in float64 and what must always hold."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from drawing import NOT_TENSORS, Draw, same
from torch import Tensor

import newton_losses as nl
from newton_losses import sorting

BATCHES = ((), (1,), (3,), (2, 2), (0,))
NETWORKS = ("logistic", "logistic_phi", "gaussian", "cauchy", "reciprocal", "optimal")


def draw_scores(draw: Draw, least: int = 0) -> Tensor:
    return draw.tensor((*draw.pick(BATCHES), int(draw.random.integers(least, 6))))


def neuralsort_by_book(scores: Tensor, temperature: float) -> Tensor:
    """Grover et al., equation 5, ascending."""
    n = scores.shape[-1]
    spread = (scores.unsqueeze(-1) - scores.unsqueeze(-2)).abs().sum(-1)
    factor = n + 1 - 2 * torch.arange(n, 0, -1, dtype=torch.float64)
    return ((factor[:, None] * scores.unsqueeze(-2) - spread.unsqueeze(-2)) / temperature).softmax(-1)


def softsort_by_book(scores: Tensor, temperature: float) -> Tensor:
    ordered = scores.sort(-1).values
    return (-(ordered.unsqueeze(-1) - scores.unsqueeze(-2)).abs() / temperature).softmax(-1)


def odd_even_by_book(scores: Tensor, steepness: float) -> Tensor:
    """One logistic comparator after the other, on one row of scores."""
    values, matrix = scores.clone(), torch.eye(len(scores), dtype=torch.float64)
    for layer in range(len(scores)):
        for a in range(layer % 2, len(scores) - 1, 2):
            keep = torch.sigmoid(steepness * (values[a + 1] - values[a]))
            mix = torch.stack([torch.stack([keep, 1 - keep]), torch.stack([1 - keep, keep])])
            values[a : a + 2], matrix[a : a + 2] = mix @ values[a : a + 2], mix @ matrix[a : a + 2]
    return matrix


def permutation_matrix(draw: Draw) -> None:
    scores = draw_scores(draw)
    dim, descending = draw.pick((-1, -1, 0, 1, 5)), draw.chance(0.3)
    name = draw.pick(("neuralsort", "softsort", *NETWORKS))
    sharp = draw.power(-3, 3)
    make = relaxation(draw, name, sharp)
    found = make(scores, dim, descending)
    moved = scores.movedim(dim, -1)
    check_matrix(found, moved)
    check_layout_and_neighbours(lambda s: make(s, -1, descending), moved, found, 2)
    check_by_book(name, found.flip(-2) if descending else found, moved.double(), sharp)


def relaxation(draw: Draw, name: str, sharp: float) -> Callable[[Tensor, int, bool], Tensor]:
    if name == "neuralsort":
        return lambda s, dim, descending: sorting.neuralsort(s, sharp, dim, descending)
    if name == "softsort":
        return lambda s, dim, descending: sorting.softsort(s, sharp, dim=dim, descending=descending)
    network = sorting.SortingNetwork(None, "odd_even", name, sharp)
    return lambda s, dim, descending: network.matrix(s, dim, descending)


def check_matrix(found: Tensor, scores: Tensor) -> None:
    n = scores.shape[-1]
    assert found.shape == (*scores.shape, n)
    good = found[torch.isfinite(scores).all(-1)].double()
    half = found.dtype.itemsize == 2
    assert torch.isfinite(good).all(), f"not finite for finite scores {scores}"
    assert ((good >= 0) & (good <= 1 + 1e-6)).all(), f"not a probability: {good}"
    same(good.sum(-1), torch.ones(good.shape[:-1]), 1e-2 if half else 1e-5, "sum of a row")


def check_layout_and_neighbours(function: Callable[[Tensor], Tensor], given: Tensor, found: Tensor, after: int) -> None:
    """The same numbers in plain memory give the same, and so does each sample without those that are not finite.

    `given` is `(..., n)`, and `found` has `after` dimensions for each of the leading ones.
    """
    half = found.dtype.itemsize == 2
    plain = function(given.clone(memory_format=torch.contiguous_format))
    same(plain, found, 1e-2 if half else 1e-5, "result in another layout")
    if given.dim() != 2:
        return
    good = torch.isfinite(given).all(-1)
    if good.any() and not good.all():
        same(function(given[good]), found[good], 1e-2 if half else 1e-5, "result without the bad samples")


def check_by_book(name: str, found: Tensor, scores: Tensor, sharp: float) -> None:
    good = torch.isfinite(scores).all(-1)
    scores, found = scores[good], found[good].double()
    spread = float((scores.amax(-1) - scores.amin(-1)).max()) if scores.numel() else 0.0
    size = float(scores.abs().max()) if scores.numel() else 0.0
    # Beyond this the book's own formulas have lost their digits.
    if name in ("neuralsort", "softsort") and spread / sharp < 1e4 and size / sharp < 1e9:
        wanted = (neuralsort_by_book if name == "neuralsort" else softsort_by_book)(scores, sharp)
    elif name == "logistic" and size * sharp < 1e9:
        rows = scores.reshape(-1, scores.shape[-1])
        wanted = torch.stack([odd_even_by_book(row, sharp) for row in rows]) if len(rows) else rows.new_zeros(0)
        wanted = wanted.reshape(found.shape)
    else:
        return
    error = (found - wanted).abs().max() if found.numel() else torch.zeros(())
    assert error < (1e-2 if found.dtype.itemsize == 2 else 2e-3), f"{found} instead of {wanted}"
    assert error < 1e-5 or sharp_change(name, spread, size, sharp), f"{found} instead of {wanted}"


def sharp_change(name: str, spread: float, size: float, sharp: float) -> bool:
    """Whether the formula turns rounding of the result's dtype or of its arguments into more than 1e-5."""
    scale = size * sharp if name == "logistic" else size / sharp
    return scale > 1e3


def soft_functions(draw: Draw) -> None:
    scores = draw_scores(draw)
    name = draw.pick(("neuralsort", "softsort", *NETWORKS))
    setting: dict[str, Any] = {"steepness" if name in NETWORKS else "temperature": draw.power(-3, 3)}
    which, k, dim = draw.pick(("sort", "rank", "topk")), int(draw.random.integers(0, 5)), draw.pick((-1, -1, 0))
    calls: dict[str, Callable[[Tensor, int], Tensor]] = {
        "sort": lambda s, dim: sorting.soft_sort(s, name, dim=dim, **setting),
        "rank": lambda s, dim: sorting.soft_rank(s, name, dim=dim, **setting),
        "topk": lambda s, dim: sorting.soft_topk(s, k, name, dim=dim, **setting),
    }
    found = calls[which](scores, dim)
    assert found.shape == scores.shape
    assert found.dtype == scores.dtype
    moved, result = scores.movedim(dim, -1), found.movedim(dim, -1)
    check_layout_and_neighbours(lambda s: calls[which](s, -1), moved, result, 1)
    good = torch.isfinite(moved).all(-1)
    check_range(which, moved[good].double(), result[good].double(), k, 1e-2 if found.dtype.itemsize == 2 else 1e-5)


def check_range(which: str, scores: Tensor, found: Tensor, k: int, relative: float) -> None:
    assert torch.isfinite(found).all(), f"{which}: {found} for finite scores {scores}"
    if not found.numel():
        return
    n = scores.shape[-1]
    if which == "topk":
        same(found.sum(-1), torch.full(found.shape[:-1], float(k)), relative, "sum of the weights")
        return
    low = scores.amin(-1, keepdim=True) if which == "sort" else torch.zeros(1, dtype=torch.float64)
    high = scores.amax(-1, keepdim=True) if which == "sort" else torch.full((1,), n - 1.0, dtype=torch.float64)
    room = relative * torch.maximum(low.abs(), high.abs())
    assert ((found >= low - room) & (found <= high + room)).all(), f"{which}: {found} outside of {low} to {high}"


def sorting_loss(draw: Draw) -> None:
    scores = draw_scores(draw)
    values = draw.tensor(scores.shape, bad=0.02)
    name = draw.pick(("neuralsort", "softsort", *NETWORKS))
    setting: dict[str, Any] = {"steepness" if name in NETWORKS else "temperature": draw.power(-3, 3)}
    which = draw.pick(("sorting", "sorting", "spearman", "topk"))
    if which == "topk":
        labels = torch.from_numpy(draw.random.integers(-1, max(1, scores.shape[-1]) + 1, scores.shape[:-1]))
        loss: Any = sorting.TopKLoss(int(draw.random.integers(0, 4)), name, **setting)
        values = torch.as_tensor(labels)
    else:
        loss = sorting.SortingLoss(name, **setting) if which == "sorting" else sorting.SpearmanLoss(name, **setting)
    leaf = scores.detach().clone().requires_grad_(scores.is_floating_point())
    found = loss(leaf, values)
    assert found.shape == scores.shape[:-1]
    usable = torch.isfinite(scores).all(-1)
    if which != "topk":
        usable &= ~values.isnan().any(-1)
    assert torch.isfinite(found[usable]).all(), f"{found} for finite scores {scores}, {values}"
    assert (found[usable] >= -1e-6).all(), f"a negative loss: {found}"
    if found.requires_grad and found.numel() and scores.dtype != torch.float16:  # whose range a gradient may well leave
        found[usable].sum().backward()
        assert torch.isfinite(leaf.grad[usable]).all(), f"the gradient {leaf.grad} of finite scores {scores}, {values}"


def expanded_sorting_loss(draw: Draw) -> None:
    """Through `newton_target`: one NaN among the scores of one sample leaves the others as they are."""
    scores = draw.tensor((int(draw.random.integers(1, 4)), int(draw.random.integers(1, 5))))
    values = draw.tensor(scores.shape, bad=0.0)
    loss = sorting.SortingLoss("softsort" if draw.chance(0.5) else "logistic")
    kind = draw.pick(("hessian", "fisher"))
    options = {"curvature": kind, "damping": draw.power(-3, 3), "exchangeable": draw.chance(0.5)}
    found = nl.newton_target(loss, scores, values, **options)
    assert torch.isfinite(found.step).all()
    good = torch.isfinite(scores).all(1)  # infinite values have an order like others
    if good.any() and not good.all():
        rest = nl.newton_target(loss, scores[good], values[good], **options)
        same(found.gradient[good], rest.gradient, 1e-4, "gradient without the bad samples")
        same(found.curvature.dense(), rest.curvature.dense(), 1e-4, "curvature without the bad samples")


def metrics(draw: Draw) -> None:
    scores = draw_scores(draw)
    values = draw.tensor(scores.shape, bad=0.05)
    exact, shares = sorting.exact_match(scores, values), sorting.element_wise_match(scores, values)
    assert exact.shape == shares.shape == scores.shape[:-1]
    if not scores.shape[-1] or scores.is_complex() or values.is_complex():
        return
    rows = zip(scores.reshape(-1, scores.shape[-1]), values.reshape(-1, scores.shape[-1]), strict=True)
    for found, share, (row, goal) in zip(exact.reshape(-1), shares.reshape(-1), rows, strict=True):
        if torch.isfinite(row.double()).all() and torch.isfinite(goal.double()).all():
            first, last = span(row), span(goal)
            hits = [b[0] <= a[0] and a[1] <= b[1] for a, b in zip(first, last, strict=True)]
            assert float(found) == float(all(hits))
            assert abs(float(share) - np.mean(hits)) < 1e-6


def span(row: Tensor) -> list[tuple[int, int]]:
    """The first and last rank that each item can have among its ties."""
    numbers = row.double().tolist()
    return [(sum(o < x for o in numbers), sum(o <= x for o in numbers)) for x in numbers]


def not_scores(draw: Draw) -> None:
    thing: Any = draw.pick((*NOT_TENSORS, torch.tensor(1.0), torch.ones(2, 0), torch.ones(2, 3, dtype=torch.complex64)))
    call: Callable[[Any], Any] = draw.pick((
        sorting.neuralsort, sorting.softsort, sorting.soft_sort, sorting.soft_rank, lambda s: sorting.soft_topk(s, 1),
        sorting.SortingNetwork(3).matrix, lambda s: sorting.SortingLoss("softsort")(s, s),
        lambda s: sorting.SpearmanLoss()(s, s), lambda s: sorting.TopKLoss(1)(s, s),
        lambda s: sorting.exact_match(s, s), lambda s: sorting.element_wise_match(s, s), sorting.target_matrix,
        lambda s: sorting.neuralsort(torch.ones(3), s), lambda s: sorting.softsort(torch.ones(3), s),
        lambda s: sorting.SortingNetwork(s), lambda s: sorting.SortingNetwork(3, s),
        lambda s: sorting.SortingNetwork(3, "odd_even", s), lambda s: sorting.soft_topk(torch.ones(3), s),
        lambda s: sorting.SortingLoss(s), lambda s: sorting.SortingNetwork(3, steepness=s),
    ))  # fmt: skip
    call(thing)


CALLS = (
    (permutation_matrix,) * 3
    + (soft_functions,) * 2
    + (sorting_loss,) * 2
    + (expanded_sorting_loss, metrics, not_scores)
)
