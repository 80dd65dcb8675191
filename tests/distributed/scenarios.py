"""What is trained for one step on several ranks and on one: the catalogue that both sides run.

A scenario is a loss, its options and how the batch is dealt to the ranks. `Scenario.run` is called by each rank
with its part, under DDP, and once without any other process with the whole batch; the tests compare the two.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cases import Case, log_sum_exp, ripples
from newton_losses import Expansion, NewtonLoss, RelativeDamping, inject_fisher
from newton_losses.curvature import _distributed, _expansion, empirical_fisher

DEALS: dict[str, Callable[[int], list[int]]] = {
    "equal": lambda ranks: [4] * ranks,
    "unequal": lambda ranks: [3, 7, 1, 5][:ranks],
    "empty": lambda ranks: [5, 0, 4, 2][:ranks],
    "bad": lambda ranks: [4, 3, 2, 3][:ranks],  # and all targets of rank 1 are NaN
}


class OwnExpansion:
    """A loss that brings its own, with a curvature that is not finite where there is nothing finite to average."""

    def expand(self, y: Tensor, target: Tensor, *, curvature: str | None) -> Expansion:
        z = y - target
        value, gradient = z.pow(4).sum(1), 4 * z.pow(3)
        kept = torch.isfinite(value)
        if curvature == "fisher":
            return Expansion(value, gradient, empirical_fisher(gradient, kept))
        return Expansion(value, gradient, torch.diag(12 * z[kept].square().mean(0)))


def fourth(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).pow(4).sum(1)


def steep(y: Tensor, target: Tensor) -> Tensor:
    """|z|^1.5: where z is exactly 0 the second derivative alone is not finite."""
    return (y - target).abs().pow(1.5).sum(1)


def existing(target: Tensor) -> Tensor:
    """Which outputs of lists of different lengths exist; of some lists none, and the last one in no list."""
    return (target > -0.3) & (torch.arange(target.shape[1], device=target.device) < target.shape[1] - 1)


def of_lists(y: Tensor, target: Tensor) -> Tensor:
    exists = existing(target)
    coupling = torch.where(exists, y, 0.0).sum(1).square()
    return torch.where(exists, (y - target).pow(4), 0.0).sum(1) + coupling


def rule_by_gradient(expansion: Expansion) -> Tensor:
    """Sees this rank's gradients, so that every rank has another damping."""
    return 1.0 + expansion.gradient.square().sum()


@dataclass(frozen=True)
class Scenario:
    name: str
    loss: Any = ripples
    size: int = 3
    deal: str = "unequal"
    options: dict[str, Any] = field(default_factory=dict)
    inject: dict[str, Any] | None = None
    reduction: str = "mean"
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-10
    times: int = 1
    """How many times as many samples as the deal says."""
    products_above: int | None = None
    """Above what size ranks share a Hessian by products, instead of the real limit of 2,048."""
    unstored_on_rank_0: bool = False
    """Whether rank 0 alone finds that its own Hessian is too large to be stored."""
    masked: bool = False
    """Whether the Newton loss gets the mask of outputs that exist."""
    seen: bool = False
    """Whether the Newton loss has seen another batch before, with gradients of another size."""
    flat_sample: bool = False
    """Whether the first sample's targets are its outputs, for losses that are not smooth there."""

    def counts(self, ranks: int) -> list[int]:
        return [self.times * count for count in DEALS[self.deal](ranks)]

    def run(self, rank: int, ranks: int, *, alone: bool, device: str = "cpu") -> dict[str, Tensor]:
        """One backward pass: this rank's part under DDP, or the batch of all `ranks` in one process."""
        network = nn.Linear(4, 1)
        x, target = (part.to(device) for part in self._batch(network, ranks))
        network.to(device)
        model: nn.Module = network
        if not alone:
            x, target = (part.split(self.counts(ranks))[rank] for part in (x, target))
            model = DistributedDataParallel(network)
        with self._limits(rank, alone):
            loss = self._loss(model(x), target)
        loss.backward()
        found = {"weight": network.weight.grad, "bias": network.bias.grad, "value": loss.detach()}
        return {name: tensor.cpu().clone() for name, tensor in found.items()}

    def _batch(self, network: nn.Linear, ranks: int) -> tuple[Tensor, Tensor]:
        counts = self.counts(ranks)
        generator = torch.Generator().manual_seed(0)
        shapes = ((self.size, 4), (self.size,), (sum(counts), 4), (sum(counts), self.size))
        weight, bias, x, target = (
            torch.randn(shape, generator=generator, dtype=torch.float64).to(self.dtype) for shape in shapes
        )
        network.weight = nn.Parameter(weight)
        network.bias = nn.Parameter(bias)
        if self.deal == "bad":
            target[counts[0] : counts[0] + counts[1]] = torch.nan
        if self.flat_sample:
            target[0] = network(x[:1])[0].detach()
        return x, target

    def _loss(self, y: Tensor, target: Tensor) -> Tensor:
        if self.inject is None:
            newton = NewtonLoss(self.loss, **{"curvature": "hessian", **self.options})
            if self.seen:
                newton((0.3 * y).detach().requires_grad_(), target)
            return newton(y, target, mask=existing(target) if self.masked else None)
        scale = self.inject.get("loss_scale", 1.0)
        total = self.loss(inject_fisher(y, reduction=self.reduction, **self.inject), target).sum()
        return scale * (total if self.reduction == "sum" else total / max(1, len(y)))

    @contextmanager
    def _limits(self, rank: int, alone: bool) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if self.products_above is not None:
                patch.setattr(_distributed, "SUMMED_HESSIAN_SIZE", self.products_above)
            if self.unstored_on_rank_0 and rank == 0 and not alone:
                patch.setattr(_expansion, "DENSE_ELEMENTS", 4)
            yield


def _catalogue() -> list[Scenario]:
    found, fixed = [], {"damping": 0.1}
    for deal in DEALS:
        for kind in ("hessian", "fisher"):
            found.append(Scenario(f"{kind}-{deal}", deal=deal, options={"curvature": kind, "damping": 2.0}))
            found.append(
                Scenario(f"own-{kind}-{deal}", OwnExpansion(), deal=deal, options={"curvature": kind, **fixed})
            )
        found.append(Scenario(f"woodbury-{deal}", size=600, deal=deal, options={"curvature": "fisher", **fixed}))
        found.append(Scenario(f"inject-{deal}", fourth, deal=deal, inject={"damping": 0.7}))
        found.append(Scenario(f"sample-{deal}", fourth, deal=deal, options={"curvature": "sample"}))
        found.append(Scenario(f"inject-woodbury-{deal}", fourth, size=600, deal=deal, inject={"damping": 1e3}))
        found.append(Scenario(f"inject-sum-{deal}", fourth, deal=deal, inject={"damping": 0.7}, reduction="sum"))
        # the same iteration on both sides, so that its own tolerance of 1e-6 does not show
        free = {"matrix_free": True, "damping": 3.0}
        found.append(Scenario(f"matrix-free-{deal}", deal=deal, options=free, tolerance=1e-8))
    for kind in ("hessian", "fisher"):
        for exchangeable in (False, True):
            options = {"curvature": kind, "exchangeable": exchangeable}
            name = f"lists-{kind}{'-exchangeable' * exchangeable}"
            found.append(Scenario(name, of_lists, masked=True, options={**options, **fixed}))
            # the damping, too, is that of the lists of all ranks
            found.append(Scenario(f"{name}-default", of_lists, deal="empty", masked=True, options=options))
        options = {"curvature": kind, "exchangeable": True}
        found.append(Scenario(f"set-{kind}-bad", fourth, deal="bad", options=options))
    fisher, free = {"curvature": "fisher"}, {"damping": RelativeDamping(4.0), "matrix_free": True}
    found += [
        Scenario("fisher-more-gradients-than-outputs", size=600, times=120, options={**fixed, **fisher}),
        Scenario("own-woodbury", OwnExpansion(), size=600, deal="empty", options={"damping": 1e3, **fisher}),
        # alone it is stored, and the iterative solver stops at a residual of 1e-6 of the gradient
        Scenario("hessian-by-products", fourth, size=20, products_above=10, options={"damping": 9.0}, tolerance=1e-5),
        Scenario("hessian-stored", log_sum_exp, size=20, products_above=10, options={"matrix_free": False, **fixed}),
        Scenario("ranks-that-choose-differently", options={"damping": 2.0}, unstored_on_rank_0=True),
        Scenario("sum", options={"damping": 2.0, "reduction": "sum"}, loss=Case(ripples, (1,)).reduced("sum")),
        Scenario("scalar-mean", options={"damping": 2.0}, loss=Case(ripples, (1,)).reduced("mean")),
        Scenario("absolute", options={"spectrum": "absolute", **fixed}),
        Scenario("relative", options={"damping": RelativeDamping(2.0)}),
        Scenario("relative-woodbury", size=600, options={"damping": RelativeDamping(2.0), **fisher}),
        Scenario("relative-matrix-free", options=free, tolerance=1e-8),
        *(Scenario(f"auto-{deal}", deal=deal, options={"damping": "auto"}) for deal in ("unequal", "empty", "bad")),
        Scenario("auto-fisher", options={"damping": "auto", **fisher}),
        *(Scenario(f"default-{deal}", deal=deal) for deal in ("unequal", "bad")),
        Scenario("default-products", deal="empty", options={"matrix_free": True}, tolerance=1e-8),
        Scenario("default-inject", fourth, deal="unequal", inject={}),
        Scenario("auto-woodbury", size=600, options={"damping": "auto", **fisher}),
        Scenario("auto-inject", fourth, deal="empty", inject={"damping": "auto"}),
        *(Scenario(f"seen-{kind}-{deal}", fourth, deal=deal, seen=True, options={"curvature": kind})
          for kind in ("hessian", "fisher", "sample") for deal in ("unequal", "empty")),
        Scenario("seen-fisher-bad", fourth, deal="bad", seen=True, options=fisher),
        Scenario("seen-woodbury", fourth, size=600, seen=True, options=fisher),
        # fewer samples than outputs, which "auto" takes into account
        Scenario("lists-fisher-few", of_lists, size=40, masked=True, options=fisher),
        Scenario("seen-lists", of_lists, deal="empty", masked=True, seen=True, options=fisher),
        Scenario("sample-number", options={"curvature": "sample", **fixed}),
        Scenario("sample-relative", options={"curvature": "sample", "damping": RelativeDamping(2.0)}),
        Scenario("sample-lists", of_lists, deal="empty", masked=True, options={"curvature": "sample"}),
        Scenario("sample-own", OwnExpansion(), deal="bad", options={"curvature": "sample"}),
        Scenario("sample-inject", fourth, deal="empty", inject={"curvature": "sample"}),
        Scenario("quadratic", options={"damping": 2.0, "value": "quadratic"}),
        Scenario("inject-scaled", fourth, inject={"damping": 0.7, "loss_scale": 65536.0}),
        Scenario("bad-second-derivative", steep, flat_sample=True, options=fixed),
        Scenario("float32", dtype=torch.float32, options={"damping": 2.0}, tolerance=1e-5),
        Scenario("float32-fisher", dtype=torch.float32, options={**fixed, **fisher}, tolerance=1e-5),
        Scenario("float32-inject", fourth, dtype=torch.float32, inject={}, tolerance=1e-5),
        Scenario("no-outputs", size=0),
    ]  # fmt: skip
    return found


SCENARIOS = {scenario.name: scenario for scenario in _catalogue()}
