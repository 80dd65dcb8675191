"""What all relaxations of sorting have in common: log-weights in, a stochastic matrix out.

The relaxations are `NeuralSort`, `SoftSort`, `SortingNetwork` and `LaplaceSort`, one file each.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from .._tracing import sees_operators
from ..curvature import full_precision
from ..errors import ArgumentError
from ._lists import as_lists
from ._log_space import FAR, cross_entropy

# Cells of a matrix, or of all matrices that are recorded for it, that may be asked for: 16 GiB in float64.
MOST_CELLS = 2**31


class Relaxation(nn.Module):
    """A differentiable stand-in for the permutation matrix that sorts n scores.

    P[..., i, j] is the weight of item j at rank i: rows sum to 1, `sorted = P @ x`, ascending unless
    `descending=True`. A subclass gives `log_weights`, and may give closed forms of the rest.

    Lists may be padded: with a `mask` `(..., n)`, True where an item exists, the m items of a list take its first m
    ranks, and all other cells of P are exactly 0.
    """

    @abstractmethod
    def log_weights(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """log P up to a constant of each row, ascending, `(..., n)` → `(..., n, n)`, in float64.

        With a mask, the first m rows hold what the list alone would give; all other cells may be any finite number.

        Two log-weights may both be −10⁹ and differ by 1: float32 would lose that difference, and with it
        every derivative.
        """

    def existing_weights(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """`log_weights` with −10³⁰ for items that do not exist, and zeros in the rows of ranks that do not."""
        if mask is None:
            return self.log_weights(scores)
        return only_existing(self.log_weights(scores, mask), mask, mask)

    def check_size(self, scores: Tensor) -> None:
        """Raise where the matrix, or what is recorded to differentiate it, would not fit into memory."""
        n, cells = scores.shape[-1], scores.numel() * scores.shape[-1] * self.matrices_recorded(scores.shape[-1])
        if cells > MOST_CELLS:
            raise ArgumentError(
                f"{type(self).__name__}: {scores.shape[:-1].numel()} lists of n={n} items need {cells:.1e} cells. "
                "Use the algorithm 'laplace', which needs O(n) of them for ranks, top-k weights and their losses"
                + (", or 'softsort' and 'neuralsort'." if self.matrices_recorded(n) > 1 and n <= 10_000 else ".")
            )

    def matrices_recorded(self, n: int) -> int:
        """How many matrices of n × n are recorded on the way to P."""
        return 1

    def probabilities(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """P as prior work computes it, ascending: plain probabilities in the precision of the scores."""
        return self.existing_weights(scores, mask).to(scores.dtype).softmax(-1)

    def cross_entropies(self, scores: Tensor, target: Tensor, cells: Tensor, mask: Tensor | None = None) -> Tensor:
        """Cross-entropies `(N,)` of `(N, n)` scores, recorded for automatic differentiation."""
        return cross_entropy(self.existing_weights(scores, mask), target, cells)

    def derivatives(
        self, scores: Tensor, target: Tensor, cells: Tensor, hessian: bool, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Cross-entropies `(N,)`, their gradients `(N, n)` and, if wanted, the sum of their Hessians.

        With a mask each list's items may be renumbered in that sum, so that only its trace is meaningful. This is
        automatic differentiation; a subclass may know a closed form.
        """

        def losses(scores: Tensor) -> tuple[Tensor, Tensor]:
            values = self.cross_entropies(scores, target, cells, *(() if mask is None else (mask,)))
            return values.sum(), values

        gradient, values = torch.func.grad(losses, has_aux=True)(scores)
        if not hessian:
            return values, gradient, None
        # With one shift for all samples, the Hessian of the sum by it is the sum of the Hessians.
        shift = torch.zeros_like(scores[0])
        total = torch.func.jacrev(torch.func.jacrev(lambda shift: losses(scores + shift)[0]))(shift)
        return values, gradient, total

    def matrix(self, scores: Tensor, dim: int = -1, descending: bool = False, mask: Tensor | None = None) -> Tensor:
        """P, of the shape of `scores` without `dim`, then `(n, n)`."""
        return self.log_matrix(scores, dim, descending, mask).exp()

    def log_matrix(self, scores: Tensor, dim: int = -1, descending: bool = False, mask: Tensor | None = None) -> Tensor:
        """log P, finite where P itself has long underflowed to 0; −∞ for what a mask excludes."""
        lists = as_lists(scores, mask, type(self).__name__, dim)
        logs = self.log_cells(lists.scores, descending, lists.mask)
        return logs if lists.mask is None else torch.where(existing_cells(lists.mask), logs, -torch.inf)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.matrix(scores, mask=mask)

    def log_cells(self, scores: Tensor, descending: bool, mask: Tensor | None) -> Tensor:
        """`log_matrix` of lists that were checked before, finite in all cells: −10³⁰ in excluded columns."""
        self.check_size(scores)
        with full_precision(scores):
            logs = self.existing_weights(scores, mask).log_softmax(-1).to(scores.dtype)
        return reversed_ranks(logs.mT, mask).mT if descending else logs

    def sorted_scores(self, scores: Tensor, descending: bool, mask: Tensor | None) -> Tensor:
        """P @ scores, `(..., n)`; what stands at ranks that do not exist has no meaning."""
        matrix = self.log_cells(scores, descending, mask).exp()
        # Differences to one score, so that large scores close to each other keep their digits.
        anchor = scores[..., :1].detach()
        return (matrix * (scores - anchor).unsqueeze(-2)).sum(-1) + anchor

    def expected_ranks(self, scores: Tensor, descending: bool, mask: Tensor | None) -> Tensor:
        """Σ_i i · P_ij / Σ_i P_ij, `(..., n)`; what items get that do not exist has no meaning."""
        weights = self.log_rank_weights(scores, descending, mask).exp()
        return (weights * places(scores.shape[-1], weights).unsqueeze(-1)).sum(-2)

    def top_weights(self, scores: Tensor, k: int, largest: bool, mask: Tensor | None) -> Tensor:
        """Σ_{i<k} P_ij, `(..., n)`; what items get that do not exist has no meaning."""
        rows = self.log_cells(scores, largest, mask).exp()[..., :k, :]
        exists = first_places(mask)
        return (rows if exists is None else torch.where(exists[..., :k, None], rows, 0.0)).sum(-2)

    def log_ranks_of(self, scores: Tensor, item: Tensor, mask: Tensor | None) -> Tensor:
        """The column of `log_rank_weights` of one item `(..., 1)` per list, in descending order, `(..., n)`."""
        self.check_size(scores)
        weights, exists = self.existing_weights(scores, mask), first_places(mask)
        ascending = weights.gather(-1, item.unsqueeze(-2).expand(*weights.shape[:-1], 1)).squeeze(-1)
        ascending = ascending - weights.logsumexp(-1)
        logs = ascending if exists is None else torch.where(exists, ascending, -FAR)
        return reversed_ranks(logs.log_softmax(-1), mask).to(scores.dtype)

    def log_rank_weights(self, scores: Tensor, descending: bool, mask: Tensor | None) -> Tensor:
        """log of the distribution of each item over ranks, `(..., n, n)`: columns of P, normalised."""
        logs, exists = self.log_cells(scores, descending, mask), first_places(mask)
        return torch.log_softmax(logs if exists is None else torch.where(exists.unsqueeze(-1), logs, -FAR), -2)


def reversed_ranks(by_rank: Tensor, mask: Tensor | None) -> Tensor:
    """The last dimension in descending order: the first m ranks in reverse, the others among themselves."""
    if mask is None:
        return by_rank.flip(-1)
    rank = torch.arange(mask.shape[-1], device=mask.device)
    back = (mask.sum(-1, keepdim=True) - 1 - rank) % mask.shape[-1]
    return by_rank.gather(-1, (back if by_rank.ndim == back.ndim else back.unsqueeze(-2)).expand_as(by_rank))


def existing_cells(mask: Tensor) -> Tensor:
    """Which cells of the matrix exist, `(..., n, n)`: the first m ranks of the m items that do."""
    rank = torch.arange(mask.shape[-1], device=mask.device).unsqueeze(-1)
    return (rank < mask.sum(-1)[..., None, None]) & mask.unsqueeze(-2)


def average_ties(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """The row-normalised matrix of equal scores, `(..., n, n)`: the identity where no two are equal.

    Rows and columns of items outside the `mask` are 0.
    """
    equal = scores.unsqueeze(-1) == scores.unsqueeze(-2)
    if mask is None:
        averages = equal.to(scores.dtype)
        return averages / averages.sum(-1, keepdim=True)
    averages = (equal & mask.unsqueeze(-1) & mask.unsqueeze(-2)).to(scores.dtype)
    return averages / averages.sum(-1, keepdim=True).clamp(min=1)


def sort_evenly(scores: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Ascending scores and their item numbers, like `torch.sort`, but equal scores share one derivative.

    Items outside the `mask` come last.

    A plain sort gives the whole derivative of a rank to whichever of the equal items it happened to place
    there, so the gradient would depend on the order in which the items are stored.
    """
    exact = scores.detach()
    order = (exact if mask is None else torch.where(mask, exact, torch.inf)).argsort(dim=-1, stable=True)
    if not _may_be_tied(exact, order):
        return scores.gather(-1, order), order
    # Zero in value and no matrix product: a product in reduced precision would spoil the derivatives.
    shift = (average_ties(exact, mask) * (scores - exact).unsqueeze(-2)).sum(-1)
    return (exact + shift).gather(-1, order), order


def _may_be_tied(exact: Tensor, order: Tensor) -> bool:
    """Whether two scores may be equal. Looked at on the host only: elsewhere it would wait for the device."""
    if exact.device.type != "cpu" or sees_operators():
        return True
    ascending = exact.gather(-1, order)
    return bool((ascending[..., 1:] == ascending[..., :-1]).any())


def first_places(mask: Tensor | None) -> Tensor | None:
    """The mask in sorted order, `(..., n)`: the m items that exist come first."""
    if mask is None:
        return None
    return torch.arange(mask.shape[-1], device=mask.device) < mask.sum(-1, keepdim=True)


def only_existing(weights: Tensor, columns: Tensor | None, mask: Tensor | None) -> Tensor:
    """Log-weights `(..., n, n)` that are −10³⁰ outside of `columns` `(..., n)`, and 0 in rows beyond the m items."""
    rows = first_places(mask)
    if columns is None or rows is None:
        return weights
    return torch.where(rows.unsqueeze(-1), torch.where(columns.unsqueeze(-2), weights, -FAR), 0.0)


def to_items(order: Tensor, by_rank: Tensor) -> Tensor:
    """The last dimension of `by_rank`, `(..., n, n)`, from sorted places to item numbers."""
    place = order.argsort(-1).unsqueeze(-2)
    return by_rank.gather(-1, place.expand_as(by_rank))


def to_ranks(order: Tensor, by_item: Tensor) -> Tensor:
    """The last dimension of `by_item`, `(..., n, n)`, from item numbers to sorted places."""
    return by_item.gather(-1, order.unsqueeze(-2).expand_as(by_item))


def sort_jacobian(order: Tensor, averages: Tensor) -> Tensor:
    """∂(sorted scores)/∂scores, `(N, n, n)`: a permutation matrix whose tied rows are averaged."""
    return averages.gather(-2, order.unsqueeze(-1).expand_as(averages))


def places(n: int, like: Tensor) -> Tensor:
    """0, 1, …, n−1 in the dtype and on the device of `like`."""
    return torch.arange(n, dtype=like.dtype, device=like.device)
