"""Relaxations whose rows are softmaxes over the sorted scores, NeuralSort and SoftSort: a few rows at a time.

Of a long list, sorting, ranks and top-k weights need sums over the rows of the n × n matrix, but never all of it:
rows are computed in chunks, and computed again on the way back. The whole matrix takes n² cells in any case.
"""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._by_hand import by_hand
from ._log_space import FAR, as_wide
from ._relaxation import Relaxation, first_places, places, reversed_ranks, sort_evenly, to_items

# Up to this many cells of all samples, the matrix is computed as a whole (128 MiB in float64).
CELLS = 2**24
# Cells of a chunk: few enough for a processor's cache.
CHUNK = 2**18

# Sorted scores, weights of some rows `(..., rows, n)` and their ranks to anything that is summed over the rows.
RowFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


class SoftmaxRows(Relaxation):
    """A relaxation whose row i is a softmax over the items, with weights that depend on the sorted scores alone."""

    @abstractmethod
    def row_weights(self, ascending: Tensor, start: int, stop: int) -> Tensor:
        """Log-weights of the ranks from `start` to before `stop`, `(..., n)` → `(..., rows, n)`, by sorted place."""

    def log_weights(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        ascending, order = sort_evenly(as_wide(scores), mask)
        return to_items(order, self.row_weights(ascending, 0, scores.shape[-1]))

    def sorted_scores(self, scores: Tensor, descending: bool, mask: Tensor | None) -> Tensor:
        if not _is_long(scores):
            return super().sorted_scores(scores, descending, mask)
        lists = _Long(self, scores, mask)
        anchor = lists.ascending[..., :1].detach()

        def means(ascending: Tensor, weights: Tensor, ranks: Tensor) -> Tensor:
            return (weights * (ascending - anchor).unsqueeze(-2)).sum(-1)

        ordered = lists.over_rows(means, joined=True) + anchor
        return (reversed_ranks(ordered, mask) if descending else ordered).to(scores.dtype)

    def expected_ranks(self, scores: Tensor, descending: bool, mask: Tensor | None) -> Tensor:
        if not _is_long(scores):
            return super().expected_ranks(scores, descending, mask)
        lists = _Long(self, scores, mask)

        def sums(ascending: Tensor, weights: Tensor, ranks: Tensor) -> Tensor:
            return torch.stack([weights.sum(-2), (weights * ranks.unsqueeze(-1)).sum(-2)])

        # Each item is the likeliest at its own rank, so that its column's sum is at least 1/n.
        total, weighted = lists.over_rows(sums).unbind(0)
        ranks = lists.to_items(weighted / torch.where(total > 0, total, 1.0))
        return (lists.count - 1 - ranks if descending else ranks).to(scores.dtype)

    def top_weights(self, scores: Tensor, k: int, largest: bool, mask: Tensor | None) -> Tensor:
        if not _is_long(scores):
            return super().top_weights(scores, k, largest, mask)
        lists = _Long(self, scores, mask)
        first = (lists.count - k).clamp(min=0) if largest else torch.zeros_like(lists.count)

        def chosen(ascending: Tensor, weights: Tensor, ranks: Tensor) -> Tensor:
            inside = (ranks >= first) & (ranks < first + k)
            return (weights * inside.unsqueeze(-1)).sum(-2)

        return lists.to_items(lists.over_rows(chosen)).to(scores.dtype)


def _is_long(scores: Tensor) -> bool:
    return scores.numel() * scores.shape[-1] > CELLS


class _Long:
    """Sorted lists, and their rows a chunk at a time."""

    def __init__(self, relaxation: SoftmaxRows, scores: Tensor, mask: Tensor | None) -> None:
        self.relaxation = relaxation
        wide = as_wide(scores)
        exact = wide.detach()
        self.order = (exact if mask is None else torch.where(mask, exact, torch.inf)).argsort(dim=-1, stable=True)
        self.exists = first_places(mask)
        self.ascending = _shared_by_ties(wide.gather(-1, self.order), self.exists)
        n = scores.shape[-1]
        self.count = exact.new_full((*scores.shape[:-1], 1), n) if mask is None else mask.sum(-1, keepdim=True)
        self.rows = max(1, CHUNK // scores.numel())

    def over_rows(self, function: RowFunction, joined: bool = False) -> Tensor:
        """`function(ascending, weights, ranks)` of all chunks of rows: their sum, or one behind the other.

        Not by `torch.utils.checkpoint`: the nodes that it records for each chunk lie in memory between the chunks,
        which the allocator then cannot use again.
        """
        starts = range(0, self.ascending.shape[-1], self.rows)

        def recorded(ascending: Tensor) -> Tensor:
            chunks = (self.chunk(function, ascending, start) for start in starts)
            return torch.cat(list(chunks), -1) if joined else sum(chunks, start=next(chunks))

        def pullback(slopes: Tensor) -> Tensor:
            total = torch.zeros_like(self.ascending)
            for start in starts:
                with torch.enable_grad():
                    leaf = self.ascending.detach().requires_grad_()
                    result = self.chunk(function, leaf, start)
                slope = slopes[..., start : start + self.rows] if joined else slopes
                total += torch.autograd.grad(result, leaf, slope)[0]
            return total

        return by_hand(self.ascending, recorded, lambda ascending: (recorded(ascending), pullback))

    def chunk(self, function: RowFunction, ascending: Tensor, start: int) -> Tensor:
        n = ascending.shape[-1]
        stop = min(n, start + self.rows)
        logs = self.relaxation.row_weights(ascending, start, stop)
        if self.exists is not None:
            logs = torch.where(self.exists.unsqueeze(-2), logs, -FAR)
        weights = logs.softmax(-1)
        if self.exists is not None:
            weights = weights * self.exists[..., start:stop, None]
        return function(ascending, weights, places(n, ascending)[start:stop])

    def to_items(self, by_place: Tensor) -> Tensor:
        return by_place.gather(-1, self.order.argsort(-1))


def _shared_by_ties(ascending: Tensor, exists: Tensor | None) -> Tensor:
    """Sorted scores of which equal ones share their derivative, without a matrix of all pairs."""
    exact = ascending.detach()
    is_new = exact[..., 1:] != exact[..., :-1]
    if exists is not None:
        is_new = is_new | (exists[..., 1:] != exists[..., :-1])
    group = pad(is_new.to(torch.int64), (1, 0)).cumsum(-1)
    sizes = torch.zeros_like(exact).scatter_add(-1, group, torch.ones_like(exact))
    sums = torch.zeros_like(exact).scatter_add(-1, group, ascending - exact)
    return exact + (sums / sizes.clamp(min=1)).gather(-1, group)
