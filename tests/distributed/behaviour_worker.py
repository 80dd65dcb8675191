"""One rank of the tests of everything but equality of a step; each function returns what a test looks at.

Started by `launch.py`. The batch of rank r has 3 + r samples; `joined` is all of them, for comparison in one process.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from scenarios import fourth, rule_by_gradient
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cases import ripples
from newton_losses import ArgumentError, InjectFisher, NewtonLoss, inject_fisher, newton_loss, newton_target

NEWTON = NewtonLoss(ripples, damping=2.0, curvature="hessian")


def part(rank: int, size: int = 3, *, offset: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    x, target = (torch.randn(3 + rank + offset, n, generator=generator, dtype=torch.float64) for n in (4, size))
    return x, target


def joined(ranks: range, size: int = 3) -> tuple[Tensor, Tensor]:
    x, target = zip(*(part(rank, size) for rank in ranks), strict=True)
    return torch.cat(x), torch.cat(target)


def network(size: int = 3) -> nn.Module:
    made = nn.Linear(4, size).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        nn.init.normal_(parameter, generator=generator)
    return made


def gradient(model: nn.Module, loss: Callable[..., Tensor], x: Tensor, target: Tensor) -> Tensor:
    own = model.module if isinstance(model, DistributedDataParallel) else model
    loss(model(x), target).backward()
    return next(own.parameters()).grad.clone()


def averaged(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    total = tensor.clone()
    dist.all_reduce(total, group=group)
    return total / dist.get_world_size(group)


def alone(rank: int, ranks: int) -> Tensor:
    """`process_group=None`: nothing of the others, on the same batch."""
    return gradient(network(), NewtonLoss(ripples, damping=2.0, process_group=None, curvature="hessian"), *part(rank))


def pairs(rank: int, ranks: int) -> dict[str, Tensor]:
    """Two ranks a group: each pair is a data-parallel training of its own."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, ranks, 2)]
    group = groups[rank // 2]
    ways = {
        "newton": NewtonLoss(ripples, damping=2.0, process_group=group, curvature="hessian"),
        "inject": lambda y, target: fourth(inject_fisher(y, 0.7, process_group=group), target).mean(),
        "products": NewtonLoss(ripples, damping=3.0, matrix_free=True, process_group=group, curvature="hessian"),
    }
    return {
        name: gradient(DistributedDataParallel(network(), process_group=group), loss, *part(rank))
        for name, loss in ways.items()
    }


def evaluation_on_one_rank(rank: int, ranks: int) -> Tensor:
    """Rank 0 alone evaluates without gradients: nobody else is asked to join."""
    if rank > 0:
        return torch.zeros(())
    with torch.no_grad():
        x, target = part(0)
        return NEWTON(network()(x), target)


def values(rank: int, ranks: int) -> dict[str, Tensor]:
    x, target = part(rank)
    y = network()(x)
    with torch.no_grad():
        evaluated = NEWTON(y, target)
    return {"trained": NEWTON(y, target).detach(), "evaluated": evaluated, "plain": ripples(y, target).mean().detach()}


def target_fields(rank: int, ranks: int) -> dict[str, Any]:
    x, target = part(rank)
    found = newton_target(ripples, network()(x), target, damping=2.0, curvature="hessian")
    return {"curvature": found.curvature.dense(), "count": found.count, "total": found.total, "ranks": found.ranks}


def rule_that_differs(rank: int, ranks: int) -> dict[str, Tensor]:
    """A damping from this rank's own gradients: with stored matrix and with products alike."""
    x, target = part(rank)
    y = network()(x).detach()
    steps = {}
    for name, matrix_free in (("stored", False), ("products", True)):
        steps[name] = newton_target(
            ripples, y, target, damping=rule_by_gradient, matrix_free=matrix_free, curvature="hessian"
        ).step
    return steps


def collectives(rank: int, ranks: int) -> dict[str, int]:
    """How many collectives a step takes, by the size of the outputs."""
    found = {}
    for name, kind, size in (("hessian", "hessian", 3), ("fisher", "fisher", 144), ("woodbury", "fisher", 600)):
        x, target = part(rank, size)
        y = network(size)(x)
        with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduced:  # noqa: SIM117
            with mock.patch.object(dist, "all_gather", wraps=dist.all_gather) as gathered:
                newton_loss(ripples, y, target, curvature=kind, damping=2.0).backward()
        found[name] = reduced.call_count + gathered.call_count
    return found


def nothing_anywhere(rank: int, ranks: int) -> list[Tensor]:
    """All ranks' batches empty, or nothing finite in any of them."""
    found = []
    for curvature, free in (("hessian", False), ("hessian", True), ("fisher", None)):
        for x, target in ((torch.zeros(0, 4), torch.zeros(0, 3)), (torch.ones(2, 4), torch.full((2, 3), torch.nan))):
            loss = NewtonLoss(ripples, curvature, damping=2.0, matrix_free=free)
            found.append(gradient(DistributedDataParallel(network()), loss, x.double(), target.double()))
    return found


def skipped(rank: int, ranks: int) -> dict[str, Tensor]:
    """Each rank counts its own samples that were left out."""
    x, target = part(rank)
    target[:rank] = torch.nan
    newton, inject = NewtonLoss(ripples, damping=2.0, curvature="hessian"), InjectFisher(0.7)
    gradient(network(), newton, x, target)
    gradient(network(), lambda y, target: fourth(inject(y), target).mean(), x, target)
    return {"newton": newton.skipped, "inject": inject.skipped}


def training(rank: int, ranks: int) -> Tensor:
    """Ten steps of Adam under DDP, the injected Fisher inside the wrapped model."""
    model = DistributedDataParallel(nn.Sequential(network(), InjectFisher(0.7)))
    return train(model, *part(rank))


def train(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        fourth(model(x), target).mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def sharded(rank: int, ranks: int) -> Tensor:
    """FSDP: no rank holds the whole network."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network(8)
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    x, target = part(rank, 8)
    NEWTON(model(x), target).backward()
    return next(model.parameters()).grad.full_tensor()


def transforms(rank: int, ranks: int) -> dict[str, Any]:
    """torch.func.grad goes through; vmap is refused with words before anything is sent."""
    x, target = part(rank)
    model = network()
    weight = model.weight.detach()

    def loss(weight: Tensor) -> Tensor:
        return newton_loss(ripples, x @ weight.mT + model.bias.detach(), target, damping=2.0, curvature="hessian")

    try:
        torch.func.vmap(loss)(weight.expand(2, -1, -1))
        said = ""
    except ArgumentError as error:
        said = str(error)
    return {"grad": averaged(torch.func.grad(loss)(weight)), "vmap": said}


def compiled(rank: int, ranks: int) -> Tensor:
    """The collective is part of one graph without a break."""
    torch._dynamo.reset()
    model, newton = network(), copy.deepcopy(NEWTON)
    newton.check = False
    x, target = part(rank)
    return averaged(gradient(model, torch.compile(newton, fullgraph=True, backend="aot_eager"), x, target))


CHECKS = (
    alone, pairs, evaluation_on_one_rank, values, target_fields, rule_that_differs, collectives, nothing_anywhere,
    skipped, training, sharded, transforms, compiled,
)  # fmt: skip


def warm_up() -> None:
    gradient(network(), NewtonLoss(ripples, damping=2.0, curvature="hessian"), *part(0))


def work(folder: Path, rank: int, ranks: int) -> dict[str, Any]:
    found = {}
    for check in CHECKS:
        print(f"rank {rank} of {ranks}: {check.__name__}", flush=True)
        found[check.__name__] = check(rank, ranks)
    return found
