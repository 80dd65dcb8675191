"""Two losses that look at ranks instead of the whole matrix: top-k cross-entropy and Spearman's.

Both are plain functions of a relaxation, differentiated automatically. `SortingLoss` is in `_sorting_loss.py`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .._arguments import positive_number, real_tensor, whole_number
from ..curvature import full_precision
from ..errors import ArgumentError, ShapeError
from ._laplace import LaplaceSort, SortedLists
from ._laplace_curvature import HessianSums, RankDerivatives, has_closed_form, label_trace
from ._lists import as_lists, check_count, nan_where_unknown, on_host, paired_lists, rank_span
from ._registry import AlgorithmName, choose
from ._relaxation import Relaxation


class TopKLoss(nn.Module):
    """Cross-entropy of "the label is among the k largest": `loss(scores, labels)`, `(..., n)` → `(...)`.

    ℓ = −log Σ_{i<k} P_ij with j the label, P the relaxed permutation matrix in descending order with its
    columns normalised, computed in log space. `labels` are item numbers of shape `(...)`.

    Several k at once: `k={1: 0.5, 5: 0.5}` is a distribution over k, ℓ = −log Σ_k p_k Σ_{i<k} P_ij; its weights are
    normalised. `preselect=m` looks at the m largest scores and the label alone, for thousands of classes. A `mask`
    `(..., n)` says which items exist; a list whose label does not has the loss 0.

    >>> loss = TopKLoss(2, "logistic", steepness=10.0)
    >>> loss(torch.tensor([[5.0, 4.0, 0.0]]), torch.tensor([1]))
    tensor([0.])
    """

    exchangeable = True
    takes_mask = True

    def __init__(
        self,
        k: int | Mapping[int, float],
        algorithm: AlgorithmName | Relaxation = "neuralsort",
        *,
        temperature: float | None = None,
        steepness: float | None = None,
        preselect: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(k, (list, tuple, set)):
            raise ArgumentError(
                f"TopKLoss: k={k!r}. It is a whole number, at least 1. Several at once come with weights: "
                "{1: 0.5, 5: 0.5}."
            )
        parts = k if isinstance(k, Mapping) else {whole_number(k, "k", "TopKLoss", least=1): 1.0}
        if not parts:
            raise ArgumentError(
                "TopKLoss: k is an empty distribution. Pass a number, or {k: weight} with one at least."
            )
        weights = {
            whole_number(one, "k", "TopKLoss", least=1): positive_number(weight, "the weight of k", "TopKLoss")
            for one, weight in parts.items()
        }
        self.weights = dict(sorted((one, weight / sum(weights.values())) for one, weight in weights.items()))
        self.k = dict(weights) if isinstance(k, Mapping) else next(iter(weights))
        self.preselect = None if preselect is None else whole_number(preselect, "preselect", "TopKLoss", least=1)
        if self.preselect is not None and max(self.weights) > self.preselect:
            raise ArgumentError(f"TopKLoss: k={max(self.weights)} of {preselect} preselected items. Preselect more.")
        self.relaxation = choose(algorithm, temperature, steepness, "TopKLoss")

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        scores, labels, mask = self._prepare(scores, labels, mask)
        with full_precision(scores):
            # −log of a sum that rounds to above 1 would be just below 0.
            loss = -self._log_mass(scores, labels.unsqueeze(-1), mask).clamp(max=0) + 0.0
        # A label that does not exist, as in an empty list, is no reason to learn anything.
        return loss if mask is None else torch.where(mask.gather(-1, labels.unsqueeze(-1)).squeeze(-1), loss, 0.0)

    def hessian_sums(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> HessianSums | None:
        """tr ∇²ℓᵢ and 1ᵀ∇²ℓᵢ1 of each list, `(...)` both, in O(n log n) time for `LaplaceSort`; else `None`."""
        if not has_closed_form(self.relaxation):
            return None
        scores, labels, mask = self._prepare(scores, labels, mask)
        label = labels.unsqueeze(-1)
        with torch.no_grad(), full_precision(scores):
            trace = label_trace(SortedLists(-scores, mask, self.relaxation.temperature), self.weights, label)
        if mask is not None:
            trace = torch.where(mask.gather(-1, label).squeeze(-1), trace, 0.0)
        return trace, torch.zeros_like(trace)

    def _prepare(self, scores: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        lists = as_lists(scores, mask, "TopKLoss")
        scores, mask = lists.scores, lists.mask
        if real_tensor(labels, "labels", "TopKLoss").shape != scores.shape[:-1]:
            raise ShapeError(
                f"TopKLoss: labels have shape {tuple(labels.shape)} for scores of shape "
                f"{tuple(scores.shape)}. Pass one label for each row of scores: {tuple(scores.shape[:-1])}."
            )
        check_count(max(self.weights), scores.shape[-1], "k", "TopKLoss")
        _check_labels(labels, scores.shape[-1])
        if self.preselect is not None and self.preselect < scores.shape[-1]:
            scores, labels, mask = _preselected(scores, labels, mask, self.preselect)
        return scores, labels, mask

    def _log_mass(self, scores: Tensor, label: Tensor, mask: Tensor | None) -> Tensor:
        if isinstance(self.relaxation, LaplaceSort):
            logs = self.relaxation.log_top_weights_of(scores, label, list(self.weights), mask)
            return (logs + logs.new_tensor(list(self.weights.values())).log()).logsumexp(-1)
        column = self.relaxation.log_ranks_of(scores, label, mask)
        # Rank i counts in all k > i.
        share = [sum(weight for k, weight in self.weights.items() if k > rank) for rank in range(max(self.weights))]
        return (column[..., : len(share)] + column.new_tensor(share).log()).logsumexp(-1)

    def extra_repr(self) -> str:
        return f"k={self.k}, preselect={self.preselect}" if self.preselect else f"k={self.k}"


def _preselected(
    scores: Tensor, labels: Tensor, mask: Tensor | None, count: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The `count` largest scores of each row, the label among them, and where it is now."""
    known = scores.detach()
    key = known if mask is None else torch.where(mask, known, -torch.inf)
    # The label comes first, whatever its score.
    key = key.scatter(-1, labels.unsqueeze(-1), torch.inf)
    index = key.topk(count, dim=-1).indices
    place = (index == labels.unsqueeze(-1)).to(torch.int64).argmax(-1)
    return scores.gather(-1, index), place, None if mask is None else mask.gather(-1, index)


def _check_labels(labels: Tensor, n: int) -> None:
    """On a device torch reports an index out of range itself."""
    if labels.dtype != torch.int64:
        raise ArgumentError(f"TopKLoss: labels are {labels.dtype}. They are numbers of items, torch.int64.")
    if on_host(labels) and labels.numel():
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= n:
            raise ArgumentError(f"TopKLoss: labels from {low} to {high} among n={n} items. They go from 0 to n − 1.")


class SpearmanLoss(nn.Module):
    """1 − Spearman's rank correlation with relaxed ranks: `loss(scores, values)`, `(..., n)` → `(...)`.

    ℓ = 6 Σ_j (r_j − q_j)² / (n (n²−1)), r the soft ranks of the scores and q the ranks of the values, tied
    values sharing their mean rank. It ranges from 0 (same order) to 2 (reversed). Nothing is divided by a
    variance, so equal scores need no special case. With a `mask` `(..., n)`, True where an item exists, n is the
    length of each list itself.

    >>> loss = SpearmanLoss("logistic", steepness=1000.0)
    >>> loss(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[30.0, 20.0, 10.0]]))
    tensor([2.])
    """

    exchangeable = True
    takes_mask = True

    def __init__(
        self,
        algorithm: AlgorithmName | Relaxation = "logistic",
        *,
        temperature: float | None = None,
        steepness: float | None = None,
    ) -> None:
        super().__init__()
        self.relaxation = choose(algorithm, temperature, steepness, "SpearmanLoss")

    def forward(self, scores: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        lists, values = paired_lists(scores, values, mask, "SpearmanLoss")
        first, count = rank_span(values, lists.mask)
        wanted = first + (count - 1) / 2
        with full_precision(lists.scores):
            error = (self.relaxation.expected_ranks(lists.scores, False, lists.mask) - wanted).square()
            if lists.mask is None:
                n = error.shape[-1]
                # One item has one rank, and nothing to be wrong about.
                loss = error.sum(-1) * (6 / max(n * (n * n - 1), 1))
            else:
                size = lists.mask.sum(-1).to(error.dtype)
                loss = torch.where(lists.mask, error, 0.0).sum(-1) * 6 / (size * (size * size - 1)).clamp(min=1)
            return nan_where_unknown(loss, values, lists.mask)

    def hessian_sums(self, scores: Tensor, values: Tensor, mask: Tensor | None = None) -> HessianSums | None:
        """tr ∇²ℓᵢ and 1ᵀ∇²ℓᵢ1 of each list, `(...)` both, in O(n log n) time for `LaplaceSort`; else `None`."""
        if not has_closed_form(self.relaxation):
            return None
        lists, values = paired_lists(scores, values, mask, "SpearmanLoss")
        first, count = rank_span(values, lists.mask)
        with torch.no_grad(), full_precision(lists.scores):
            points = SortedLists(lists.scores, lists.mask, self.relaxation.temperature)
            factor = 12 / (points.count * (points.count.square() - 1)).clamp(min=1).unsqueeze(-1)
            error = points.ranks() - (first + (count - 1) / 2).gather(-1, points.order)
            trace = RankDerivatives(points).trace(factor * error, factor)
        return trace, torch.zeros_like(trace)
