"""The public boundary of the sorting functions: precision, the sorted dimension, and checks that teach.

No mathematics lives here.
"""

import torch
from torch import Tensor

from .._arguments import real_tensor, whole_number
from ..curvature import widen
from ..errors import ArgumentError, ShapeError


def as_working(scores: Tensor, where: str) -> Tensor:
    """`scores`, if they are floating-point numbers, in the precision of the core."""
    if not real_tensor(scores, "scores", where).is_floating_point():
        raise ArgumentError(f"{where}: scores have dtype {scores.dtype}. Pass floating-point scores.")
    return widen(scores)


def as_wide(scores: Tensor) -> Tensor:
    """`scores` in float64, in which log-weights are computed; in float32 on Apple's GPU, which has no float64."""
    return scores.to(torch.float32 if scores.device.type == "mps" else torch.float64)


def sorted_last(scores: Tensor, dim: int, where: str) -> Tensor:
    """`scores` with the dimension to sort moved to the end."""
    if real_tensor(scores, "scores", where).ndim == 0:
        raise ShapeError(f"{where}: scores have no dimension to sort, shape (). Pass at least shape (n,).")
    if not -scores.ndim <= dim < scores.ndim:
        raise ShapeError(f"{where}: dim={dim} does not exist in scores of shape {tuple(scores.shape)}.")
    scores = scores.movedim(dim, -1)
    if scores.shape[-1] == 0:
        raise ShapeError(f"{where}: there are no items to sort in scores of shape {tuple(scores.shape)}.")
    return scores


def check_count(count: int, n: int, name: str, where: str) -> int:
    """`count`, if it is a number of items from 1 to n."""
    count = whole_number(count, name, where, least=1)
    if count > n:
        raise ArgumentError(f"{where}: {name}={count} of n={n} items. Choose {name} from 1 to n.")
    return count


def check_same_shape(scores: Tensor, values: Tensor, where: str, name: str = "values") -> None:
    """Raise unless every score has its own target."""
    if real_tensor(scores, "scores", where).shape != real_tensor(values, name, where).shape:
        raise ShapeError(
            f"{where}: {name} have shape {tuple(values.shape)} for scores of shape {tuple(scores.shape)}. "
            f"Each score needs one of the {name}, so the two shapes are equal, (..., n)."
        )
