"""Which processes share a batch, and the two things they do together: sum a tensor, gather rows.

What is summed and gathered to make the curvature of the whole batch is in `_global.py`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# "default" is the group that torch.distributed was initialised with, where it was; None is this process alone.
GroupChoice: TypeAlias = "ProcessGroup | Literal['default'] | None"


def check_group(choice: object) -> None:
    """Refuse what cannot name a process group, before any process waits for another."""
    if choice is None or (isinstance(choice, str) and choice == "default"):
        return
    if not (dist.is_available() and isinstance(choice, dist.ProcessGroup)):
        raise ArgumentError(
            f"process_group={choice!r}; it is a torch.distributed.ProcessGroup that this process belongs to, "
            "'default' for the one that torch.distributed was initialised with, or None to stay local."
        )


def resolve_group(choice: GroupChoice) -> "ProcessGroup | None":
    """The group to share the batch with, or `None` where this process has it alone.

    Asked anew in every step: a module is often made before `torch.distributed` is initialised.
    """
    if choice is None or not dist.is_available() or not dist.is_initialized():
        return None
    group = dist.group.WORLD if isinstance(choice, str) else choice
    return group if dist.get_world_size(group) > 1 else None


def ranks_in(group: "ProcessGroup | None") -> int:
    return 1 if group is None else dist.get_world_size(group)


def own_rank(group: "ProcessGroup") -> int:
    return dist.get_rank(group)


def sum_over(group: "ProcessGroup", tensor: Tensor) -> Tensor:
    """The sum of every rank's `tensor`, which have one shape; one collective."""
    _refuse_vmap()
    total = tensor.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total


def any_over(group: "ProcessGroup", flag: Tensor) -> bool:
    """Whether `flag` is set on any rank: all of them get the same answer, so all go the same way."""
    return bool(sum_over(group, flag.to(torch.int32)) > 0)


def gather_numbers(group: "ProcessGroup", own: Tensor) -> list[list[int]]:
    """Every rank's whole numbers `own`, read back to the host because shapes depend on them; one collective."""
    _refuse_vmap()
    parts = [torch.empty_like(own) for _ in range(ranks_in(group))]
    dist.all_gather(parts, own, group=group)
    found: list[list[int]] = torch.stack(parts).tolist()
    return found


def gather_rows(group: "ProcessGroup", rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Every rank's rows `(K_r, m)`, of which there are as many as `sizes` says; one collective.

    A collective has one shape on all ranks, so shorter ones travel padded with zeros.
    """
    padded = rows.new_zeros(max(sizes), rows.shape[1])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def inside_vmap() -> bool:
    """Whether a `torch.func.vmap` is active, inside of which no tensor has one value."""
    levels = torch._C._functorch.get_interpreter_stack() or []
    return any(level.key() == torch._C._functorch.TransformType.Vmap for level in levels)


def _refuse_vmap() -> None:
    """A collective cannot be vectorised; torch's own error would not say what to do."""
    if not torch.compiler.is_compiling() and inside_vmap():
        raise ArgumentError(
            "Under torch.func.vmap the curvature cannot be shared with other ranks. Give process_group=None "
            "for that of this process's samples."
        )
