"""Lists as callers pass them: scores to sort along a dimension, with a mask of the items that exist, or nested.

Everything public in this package passes through here first: arguments are checked, nested tensors become padded ones,
and scores of items that do not exist are replaced by a harmless number. The replacement is a constant, so whatever is
computed later, the gradient of a masked score is exactly zero, even where it holds NaN. The hard ranks of a list are
here too.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._arguments import check_mask, is_nested, pad_nested, pad_values, real_tensor, whole_number
from ..curvature import widen
from ..errors import ArgumentError, ShapeError

# Lists up to this length are ranked by comparing all pairs, which compilers and transforms understand best.
ALL_PAIRS = 512


class Lists(NamedTuple):
    """Scores `(..., n)` in working precision, finite where `mask` `(..., n)` is False; `mask` is `None` if all exist.

    `offsets` are those of the nested tensor that the scores came in, if they did.
    """

    scores: Tensor
    mask: Tensor | None
    offsets: Tensor | None = None


def pad_lists(lists: Tensor | Sequence[Tensor], fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """Lists of different lengths as one padded tensor `(N, n)` and its mask, True where an item exists.

    `lists` is a sequence of tensors `(nᵢ,)`, or a nested tensor in jagged layout; gradients flow back to it. The
    padding is `fill`.

    >>> scores, mask = pad_lists([torch.tensor([3.0, 1.0, 2.0]), torch.tensor([5.0])])
    >>> scores
    tensor([[3., 1., 2.],
            [5., 0., 0.]])
    >>> mask
    tensor([[ True,  True,  True],
            [ True, False, False]])
    """
    if isinstance(lists, Tensor):
        padded, mask, _ = pad_nested(lists, "lists", "pad_lists", fill)
        return padded, mask
    if not lists or not all(isinstance(one, Tensor) and one.ndim == 1 for one in lists):
        raise ArgumentError("pad_lists: pass a nested tensor, or at least one list, each a tensor of shape (n,).")
    offsets = torch.tensor([0, *(len(one) for one in lists)], device=lists[0].device).cumsum(0)
    return pad_values(torch.cat(list(lists)), offsets, fill)


def as_lists(scores: Tensor, mask: Tensor | None, where: str, dim: int = -1) -> Lists:
    """Scores with the dimension to sort last, and the mask that goes with them."""
    offsets = None
    if is_nested(scores):
        if mask is not None:
            raise ArgumentError(f"{where}: a nested tensor says itself which items exist. Pass no mask with it.")
        if dim not in (-1, 1):
            raise ShapeError(f"{where}: dim={dim} of nested scores. Their items are in the last dimension.")
        scores, mask, offsets = pad_nested(scores, "scores", where)
    if mask is not None:
        check_mask(mask, real_tensor(scores, "scores", where).shape, "scores", where)
    moved = as_working(sorted_last(scores, dim, where), where)
    if mask is None:
        return Lists(moved, None)
    mask = items_last(mask, dim)
    return Lists(filled(moved, mask), mask, offsets)


def paired_lists(
    scores: Tensor, values: Tensor, mask: Tensor | None, where: str, name: str = "values"
) -> tuple[Lists, Tensor]:
    """Scores and what they are compared with, one for each item: both padded, `(..., n)`."""
    lists = as_lists(scores, mask, where)
    if is_nested(values):
        values, exists, _ = pad_nested(values, name, where)
        if (
            lists.mask is None
            or lists.offsets is None
            or exists.shape != lists.scores.shape
            or not torch.equal(exists, lists.mask)
        ):
            raise ShapeError(f"{where}: the nested {name} and the scores have lists of different lengths.")
    check_same_shape(lists.scores, values, where, name)
    return lists, values


def nan_where_unknown(result: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """What was found for each list, NaN where an item that exists has no value: NaN has no place in an order.

    `values` are `(..., n)`, `mask` too, and `result` begins with the dimensions of the lists.
    """
    if not values.is_floating_point():
        return result
    unknown = values.isnan() if mask is None else values.isnan() & mask
    unknown = unknown.any(-1)
    return torch.where(unknown.reshape(unknown.shape + (1,) * (result.ndim - unknown.ndim)), torch.nan, result)


def metric_lists(
    scores: Tensor, values: Tensor, mask: Tensor | None, where: str, value_name: str = "values"
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Scores, values and mask of a metric, padded: scores may be integers too, and are left as they are."""
    for tensor, name in ((scores, "scores"), (values, value_name)):
        if not is_nested(real_tensor(tensor, name, where)) and (tensor.ndim == 0 or tensor.shape[-1] == 0):
            raise ShapeError(f"{where}: {name} have shape {tuple(tensor.shape)}, without any items.")
    if is_nested(scores):
        lists, values = paired_lists(scores.to(torch.float64), values, mask, where, value_name)
        return lists.scores, values, lists.mask
    if mask is not None:
        check_mask(mask, scores.shape, "scores", where)
    check_same_shape(scores, values, where, value_name)
    return scores, values, mask


class Values(NamedTuple):
    """What items are compared by, padded `(..., n)`, with its mask and the offsets of the nested tensor it came in."""

    values: Tensor
    mask: Tensor | None
    offsets: Tensor | None

    def as_they_came(self, *results: Tensor) -> tuple[Tensor, ...]:
        """Whole numbers per item, `(..., n)`, nested where the values were."""
        if self.offsets is None or self.mask is None:
            return results
        return tuple(torch.nested.nested_tensor_from_jagged(one[self.mask], self.offsets) for one in results)


def as_values(values: Tensor, mask: Tensor | None, where: str, name: str) -> Values:
    """Values without scores, which may be nested, and the mask that goes with them."""
    if not is_nested(real_tensor(values, name, where)):
        if mask is not None:
            check_mask(mask, values.shape, name, where)
        return Values(values, mask, None)
    if mask is not None:
        raise ArgumentError(f"{where}: a nested tensor says itself which items exist. Pass no mask with it.")
    return Values(*pad_nested(values, name, where))


def on_host(tensor: Tensor) -> bool:
    """Whether its numbers can be looked at: on a device that would wait for them, and a compiler has none yet."""
    is_seen = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return tensor.device.type == "cpu" and not is_seen


def filled(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores whose masked entries are the list's largest one, a constant: one far away would cost the others digits."""
    largest = torch.where(mask, scores.detach(), -torch.inf).amax(-1, keepdim=True)
    return torch.where(mask, scores, torch.where(largest.isfinite(), largest, 0.0))


def as_they_came(result: Tensor, lists: Lists, dim: int = -1) -> Tensor:
    """One number per item, `(..., n)`, zero for items that do not exist, in the layout in which the scores came."""
    if lists.mask is not None:
        result = torch.where(lists.mask, result, 0.0)
    if lists.offsets is None:
        return result if dim in (-1, result.ndim - 1) else result.movedim(-1, dim)
    return torch.nested.nested_tensor_from_jagged(result[lists.mask], lists.offsets)


def as_working(scores: Tensor, where: str) -> Tensor:
    """`scores`, if they are floating-point numbers, in the precision of the core."""
    if not real_tensor(scores, "scores", where).is_floating_point():
        raise ArgumentError(f"{where}: scores have dtype {scores.dtype}. Pass floating-point scores.")
    return widen(scores)


def sorted_last(scores: Tensor, dim: int, where: str) -> Tensor:
    """`scores` with the dimension to sort moved to the end."""
    if real_tensor(scores, "scores", where).ndim == 0:
        raise ShapeError(f"{where}: scores have no dimension to sort, shape (). Pass at least shape (n,).")
    if not -scores.ndim <= dim < scores.ndim:
        raise ShapeError(f"{where}: dim={dim} does not exist in scores of shape {tuple(scores.shape)}.")
    scores = items_last(scores, dim)
    if scores.shape[-1] == 0:
        raise ShapeError(f"{where}: there are no items to sort in scores of shape {tuple(scores.shape)}.")
    return scores


def items_last(tensor: Tensor, dim: int) -> Tensor:
    """`dim` moved to the end. Where it is there already nothing is recorded: that would cost a short list time."""
    return tensor if dim in (-1, tensor.ndim - 1) else tensor.movedim(dim, -1)


def check_same_shape(scores: Tensor, values: Tensor, where: str, name: str = "values") -> None:
    """Raise unless every score has its own target."""
    if real_tensor(scores, "scores", where).shape != real_tensor(values, name, where).shape:
        raise ShapeError(
            f"{where}: {name} of shape {tuple(values.shape)} came with scores of shape {tuple(scores.shape)}. "
            "Pass one per score: the two shapes are equal, (..., n)."
        )


def check_count(count: int, n: int, name: str, where: str) -> int:
    """`count`, if it is a number of items from 1 to n."""
    count = whole_number(count, name, where, least=1)
    if count > n:
        raise ArgumentError(f"{where}: {name}={count} of n={n} items. Choose {name} from 1 to n.")
    return count


def downwards(scores: Tensor) -> Tensor:
    """The same in reverse order. Negated, the lowest integer is itself, and those without a sign begin anew."""
    return -scores if scores.is_floating_point() else ~scores


def rank_span(values: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """First rank and number of ranks of each item, `(..., n)`: item j may be at ranks first … first+count−1.

    Items outside the `mask` `(..., n)` are compared with nothing and have no ranks: their count is 0.

    >>> first, count = rank_span(torch.tensor([3.0, 1.0, 3.0]))
    >>> first.tolist(), count.tolist()
    ([1, 0, 1], [2, 1, 2])
    """
    if values.shape[-1] > ALL_PAIRS:
        return _span_by_sorting(values, mask)
    mine, other = values.unsqueeze(-1), values.unsqueeze(-2)
    below, equal = other < mine, other == mine
    if mask is not None:
        exists = mask.unsqueeze(-2)
        below, equal = below & exists, equal & exists & mask.unsqueeze(-1)
    return below.sum(-1), equal.sum(-1)


def _span_by_sorting(values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """`rank_span` in O(n log n) time and O(n) memory."""
    if not values.is_floating_point():
        values = values.to(torch.int64)
    count: Tensor | int = values.shape[-1]
    if mask is not None:
        beyond = torch.inf if values.is_floating_point() else torch.iinfo(torch.int64).max
        values, count = torch.where(mask, values, beyond), mask.sum(-1, keepdim=True)
    values = values.contiguous()
    ordered = values.sort(-1).values
    first = torch.searchsorted(ordered, values)
    last = torch.searchsorted(ordered, values, right=True).clamp(max=count)
    is_ranked = (values == values) if mask is None else (values == values) & mask
    return first, torch.where(is_ranked, last - first, 0)
