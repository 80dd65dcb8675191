"""Orders of which only a part is known: each item has a lowest and a highest rank that it may take.

Top-k lists, ties and censored survival times are the same case; three functions turn them into ranks.
"""

import torch
from torch import Tensor, nn

from .._arguments import real_tensor
from ..curvature import full_precision
from ..errors import ArgumentError, ShapeError
from ._laplace import LaplaceSort, SortedLists
from ._laplace_curvature import HessianSums, has_closed_form, span_trace
from ._lists import Lists, as_values, on_host, paired_lists, rank_span
from ._log_space import FAR
from ._registry import AlgorithmName, choose
from ._relaxation import Relaxation

# Pairs of ranks up to which bounds are checked for every contradiction, on the host: a few milliseconds of work.
CHECKED_PAIRS = 2**16


class PartialOrderLoss(nn.Module):
    """−log of the probability that items have ranks they may have: `loss(scores, lowest, highest)`, → `(...)`.

    ℓ = −(1/n) Σ_j log Σ_{i=lowest_j}^{highest_j} P_ij, with P the relaxed permutation matrix with its columns
    normalised, in log space. `lowest` and `highest` are whole numbers `(..., n)` from 0 to n − 1, both included. An
    item that may have any rank adds 0; one whose rank is known adds −log of its cell. Rank 0 is the smallest score, or
    with `descending=True` the largest.

    With `LaplaceSort` it takes O(n log n) time and O(n) memory. `mask` `(..., n)` is True where an item exists; ranks
    are then those among these items, and an empty list has the loss 0.

    >>> loss = PartialOrderLoss("softsort", temperature=0.1)
    >>> lowest, highest = torch.tensor([[0, 1, 1]]), torch.tensor([[0, 2, 2]])  # only the first is known
    >>> loss(torch.tensor([[1.0, 3.0, 2.0]]), lowest, highest).round(decimals=3)
    tensor([0.])
    """

    exchangeable = True
    takes_mask = True

    def __init__(
        self,
        algorithm: AlgorithmName | Relaxation = "neuralsort",
        *,
        temperature: float | None = None,
        steepness: float | None = None,
        descending: bool = False,
    ) -> None:
        super().__init__()
        self.relaxation = choose(algorithm, temperature, steepness, "PartialOrderLoss")
        self.descending = descending

    def forward(self, scores: Tensor, lowest: Tensor, highest: Tensor, mask: Tensor | None = None) -> Tensor:
        lists, lowest = paired_lists(scores, lowest, mask, "PartialOrderLoss", "lowest ranks")
        _, highest = paired_lists(scores, highest, mask, "PartialOrderLoss", "highest ranks")
        _check_bounds(lowest, highest, lists.mask)
        with full_precision(lists.scores):
            # Above 1 by rounding, the mass would have a loss just below 0.
            costs = -self._log_mass(lists, lowest, highest).clamp(max=0) + 0.0
        if lists.mask is None:
            return costs.mean(-1)
        return torch.where(lists.mask, costs, 0.0).sum(-1) / lists.mask.sum(-1).clamp(min=1)

    def hessian_sums(
        self, scores: Tensor, lowest: Tensor, highest: Tensor, mask: Tensor | None = None
    ) -> HessianSums | None:
        """tr ∇²ℓᵢ and 1ᵀ∇²ℓᵢ1 of each list, `(...)` both, in O(n log n) time for `LaplaceSort`; else `None`."""
        if not has_closed_form(self.relaxation):
            return None
        lists, lowest = paired_lists(scores, lowest, mask, "PartialOrderLoss", "lowest ranks")
        _, highest = paired_lists(scores, highest, mask, "PartialOrderLoss", "highest ranks")
        ordered = -lists.scores if self.descending else lists.scores
        with torch.no_grad(), full_precision(ordered):
            points = SortedLists(ordered, lists.mask, self.relaxation.temperature)
            trace = span_trace(points, lowest, highest) / points.count.clamp(min=1)
        return trace, torch.zeros_like(trace)

    def _log_mass(self, lists: Lists, lowest: Tensor, highest: Tensor) -> Tensor:
        if isinstance(self.relaxation, LaplaceSort):
            return self.relaxation.log_span_weights(lists.scores, lowest, highest, self.descending, lists.mask)
        weights = self.relaxation.log_rank_weights(lists.scores, self.descending, lists.mask)
        rank = torch.arange(weights.shape[-1], device=weights.device).unsqueeze(-1)
        allowed = (rank >= lowest.unsqueeze(-2)) & (rank <= highest.unsqueeze(-2))
        return torch.where(allowed, weights, -FAR).logsumexp(-2)

    def extra_repr(self) -> str:
        return f"descending={self.descending}"


def tied_ranks(values: Tensor, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Lowest and highest ranks of an order with ties: equal values may come in any order.

    >>> tied_ranks(torch.tensor([3.0, 1.0, 3.0]))
    (tensor([1, 0, 1]), tensor([2, 0, 2]))
    """
    came = as_values(values, mask, "tied_ranks", "values")
    first, count = rank_span(came.values, came.mask)
    lowest, highest = came.as_they_came(first, (first + count - 1).clamp(min=0))
    return lowest, highest


def listed_ranks(position: Tensor, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Ranks of a list of which only the first are known: `position` `(..., n)` is 0, 1, … for these, else −1.

    The others may have any rank after them.

    >>> listed_ranks(torch.tensor([-1, 1, 0, -1]))
    (tensor([2, 1, 0, 2]), tensor([3, 1, 0, 3]))
    """
    if real_tensor(position, "positions", "listed_ranks").is_floating_point():
        raise ArgumentError(f"listed_ranks: positions are {position.dtype}. They are whole numbers, −1 where unknown.")
    came = as_values(position, mask, "listed_ranks", "positions")
    position = came.values
    exists = torch.ones_like(position, dtype=torch.bool) if came.mask is None else came.mask
    is_listed = (position >= 0) & exists
    known, size = is_listed.sum(-1, keepdim=True), exists.sum(-1, keepdim=True)
    last = (size - 1).clamp(min=0)
    lowest = torch.where(is_listed, position, torch.minimum(known, last))
    lowest, highest = came.as_they_came(lowest, torch.where(is_listed, position, last))
    return lowest, highest


def survival_ranks(time: Tensor, event: Tensor, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Ranks by time of event, some of them censored: `time` and boolean `event`, both `(..., n)`; rank 0 is the first.

    Before item j come for certain the events that were earlier. After it, if its own event was seen, come all that
    were still without one then. An item that was censored may come last. Events at the same time may come in any
    order; who is censored at the time of an event comes after it.

    >>> survival_ranks(torch.tensor([5.0, 2.0, 3.0, 7.0]), torch.tensor([True, True, False, True]))
    (tensor([1, 0, 1, 2]), tensor([2, 0, 3, 3]))
    """
    if real_tensor(event, "events", "survival_ranks").dtype != torch.bool:
        raise ArgumentError(f"survival_ranks: events are {event.dtype}. Pass booleans, True where one was seen.")
    came = as_values(time, mask, "survival_ranks", "times")
    time, event = came.values, as_values(event, None, "survival_ranks", "events").values
    if time.shape != event.shape:
        raise ShapeError(
            f"survival_ranks: {tuple(time.shape)} times and {tuple(event.shape)} events; one each per item."
        )
    exists = torch.ones_like(event) if came.mask is None else came.mask
    if on_host(time) and bool((time.isnan() & exists).any()):
        raise ArgumentError("survival_ranks: a time is NaN. Leave such items out by the mask, or fill the time in.")
    seen = event & exists
    # Censoring comes after an event at the same time: so much later that nothing is between.
    order = rank_span(torch.where(exists, time, torch.inf) if time.is_floating_point() else time, exists)[0]
    key = 2 * order + (~event).to(order.dtype)
    seen_up_to, all_up_to = (
        torch.zeros(*key.shape[:-1], 2 * key.shape[-1] + 3, dtype=torch.int64, device=key.device)
        .scatter_add(-1, key + 1, who.to(torch.int64))
        .cumsum(-1)
        for who in (seen, exists)
    )
    lowest = seen_up_to.gather(-1, key)  # with an earlier key: it has one place more
    last = (exists.sum(-1, keepdim=True) - 1).clamp(min=0)
    highest = torch.where(event, all_up_to.gather(-1, key + 1) - 1, last).clamp(min=0)
    lowest, highest = came.as_they_came(torch.where(exists, lowest, 0), torch.where(exists, highest, 0))
    return lowest, highest


def _check_bounds(lowest: Tensor, highest: Tensor, mask: Tensor | None) -> None:
    """Whole numbers; on the host also from 0 to n − 1, in order, and such that some order has them all."""
    for ranks, name in ((lowest, "lowest"), (highest, "highest")):
        if ranks.dtype not in (torch.int64, torch.int32):
            raise ArgumentError(f"PartialOrderLoss: the {name} ranks are {ranks.dtype}. They are whole numbers from 0.")
    if not on_host(lowest) or not lowest.numel():
        return
    n = lowest.shape[-1]
    exists = torch.ones_like(lowest, dtype=torch.bool) if mask is None else mask
    size = exists.sum(-1, keepdim=True)
    if bool(((lowest > highest) & exists).any()):
        raise ArgumentError("PartialOrderLoss: a lowest rank is above the highest rank of the same item.")
    if bool((((lowest < 0) | (highest >= size)) & exists).any()):
        raise ArgumentError("PartialOrderLoss: ranks go from 0 to one less than the number of items in the list.")
    is_small = lowest.numel() * n <= CHECKED_PAIRS
    if not bool((_some_order_has_them if is_small else _none_is_crowded_out)(lowest, highest, exists)):
        raise ArgumentError(
            "PartialOrderLoss: the ranks contradict each other: more items have to be within some ranks than fit there."
        )


def _some_order_has_them(lowest: Tensor, highest: Tensor, exists: Tensor) -> Tensor:
    """Hall's condition for intervals: from rank a to rank b, at most b − a + 1 items have all of their ranks."""
    n = lowest.shape[-1]
    index = (lowest * n + highest).clamp(0, n * n - 1).reshape(-1, n).to(torch.int64)
    cells = torch.zeros(len(index), n * n, dtype=torch.int64).scatter_add(-1, index, exists.reshape(-1, n).long())
    inside = cells.reshape(-1, n, n).flip(-2).cumsum(-2).flip(-2).cumsum(-1)
    a, b = torch.arange(n).unsqueeze(-1), torch.arange(n)
    return torch.all((inside <= b - a + 1) | (b < a))


def _none_is_crowded_out(lowest: Tensor, highest: Tensor, exists: Tensor) -> Tensor:
    """Necessary only, in O(n log n): ranks 0 to i hold at most i + 1 items, and some item reaches each rank."""
    n = lowest.shape[-1]
    rank = torch.arange(n)
    inside = rank < exists.sum(-1, keepdim=True)
    first = torch.where(exists, lowest, n).sort(-1).values
    last = torch.where(exists, highest, n).sort(-1).values
    return torch.all(((first <= rank) & (last >= rank)) | ~inside)
