"""What a loss has to learn itself, beside a sample that is left out: the gradient of the others."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from newton_losses import NewtonLoss

KINDS = ["hessian", "fisher"]


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


class Tempered(nn.Module):
    """A loss with something to learn, which its value depends on in a way that is infinite where a target is."""

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(0.3))

    def forward(self, y: Tensor, target: Tensor, *, weight: Tensor | float = 1.0) -> Tensor:
        return (weight * nn.functional.softplus(-y * target / self.log_temperature.exp())).sum(1) + self.log_temperature


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("damping", ["auto", 0.1])
@pytest.mark.parametrize("kind", [*KINDS, "sample"])
def test_a_bad_sample_does_not_reach_what_the_loss_itself_learns(kind: str, damping: object, by_name: bool) -> None:
    loss, y, target = Tempered(), leaf(8, 3), torch.sign(leaf(8, 3, seed=1).detach())
    weight = torch.full((8, 3), 2.0)
    (weight if by_name else target)[5, 1] = torch.nan
    named = {"weight": weight} if by_name else {}
    newton = NewtonLoss(loss, kind, damping)
    value = newton(y, target, **named)
    value.backward()
    good = torch.arange(8) != 5
    plain = loss(y.detach()[good], target[good], **({"weight": weight[good]} if by_name else {})).mean()
    (wanted,) = torch.autograd.grad(plain, [loss.log_temperature])
    torch.testing.assert_close(value, plain)
    torch.testing.assert_close(loss.log_temperature.grad, wanted)
    assert y.grad is not None
    assert (y.grad[5] == 0).all()
    assert y.grad.isfinite().all()


def test_a_batch_without_a_good_sample_leaves_what_the_loss_learns_as_it_is() -> None:
    loss, y = Tempered(), leaf(8, 3)
    newton = NewtonLoss(loss, on_nonfinite="ignore")
    newton(y, torch.full((8, 3), torch.nan)).backward()
    assert loss.log_temperature.grad == 0  # and not None, which data parallelism would wait for


def test_where_a_sample_cannot_be_replaced_the_loss_learns_from_all_of_them() -> None:
    """What is shared looks like an entry per sample, in a batch of its length; or there is no value per sample."""
    b = nn.Parameter(torch.tensor(0.3))
    y, labels, table = leaf(3, 3), torch.tensor([0, 1, 1]), torch.tensor([1.0, 10.0, 100.0])
    y.data[1] = 1.0  # where the root has an infinite slope, and a value

    def root(y: Tensor, labels: Tensor) -> Tensor:
        return (y - labels[:, None]).square().sum(1).sqrt()

    def shared(y: Tensor, labels: Tensor, table: Tensor) -> Tensor:
        return table[labels] * (b * y.square().sum(1) + root(y, labels))

    def factored(y: Tensor, factor: Tensor) -> Tensor:
        return b * (y @ torch.linalg.cholesky(factor)).square().sum(1) + root(y, labels)

    def sparse(y: Tensor, weight: Tensor) -> Tensor:
        return b * (weight.to_dense() * y.square()).sum(1) + root(y, labels)

    def reduced(y: Tensor, labels: Tensor) -> Tensor:
        return (b * y.square().sum(1) + root(y, labels)).mean()

    cases: list[tuple[Any, tuple[Any, ...]]] = [
        (shared, (labels, table)), (reduced, (labels,)),
        # With rows of theirs in other places these raise.
        (factored, (torch.eye(3) * 2 + 0.3,)), (sparse, (torch.eye(3).to_sparse(),)),
    ]  # fmt: skip
    for loss, targets in cases:
        (wanted,) = torch.autograd.grad(loss(y, *targets).mean(), [b])
        b.grad = None
        newton = NewtonLoss(loss, check=False, on_nonfinite="ignore")
        newton(y, *targets).backward()
        assert newton.skipped == 1
        torch.testing.assert_close(b.grad, wanted)


@dataclass
class Node:
    """As in a tree with references back."""

    target: Tensor
    parent: Any = None


@dataclass
class Output(OrderedDict[str, Any]):
    """Read by attribute and by key, as the outputs of some language models are; `update` is refused there too."""

    target: Tensor | None = None

    def __post_init__(self) -> None:
        if self.target is not None:
            OrderedDict.__setitem__(self, "target", self.target)

    def update(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("You cannot use update on an Output.")


def in_a_circle(target: Tensor) -> Node:
    node = Node(target)
    node.parent = Node(target, node)
    return node


@pytest.mark.parametrize("curvature", ["fisher", "hessian"])
@pytest.mark.parametrize("wrap", [in_a_circle, Output, lambda t: (Node(t), "x")], ids=["circle", "mapping", "pair"])
def test_a_bad_target_in_a_container_does_not_reach_what_the_loss_learns(wrap: Callable, curvature: str) -> None:
    b = nn.Parameter(torch.tensor(0.3))

    def loss(y: Tensor, given: Any) -> Tensor:
        holder = given[0] if type(given) is tuple else given
        target = holder.target if not isinstance(holder, Output) else (holder.target + holder["target"]) / 2
        return (b * y - target).pow(4).sum(1)

    y, target = leaf(6, 3), torch.zeros(6, 3)
    newton = NewtonLoss(loss, curvature, on_nonfinite="ignore")
    newton(y, wrap(target)).backward()
    target[2] = torch.nan
    b.grad = None
    newton(y, wrap(target)).backward()
    good = torch.arange(6) != 2
    (wanted,) = torch.autograd.grad((b * y[good]).pow(4).sum(1).mean(), [b])
    torch.testing.assert_close(b.grad, wanted)


def test_what_a_user_bound_is_no_target_of_the_call() -> None:
    b = nn.Parameter(torch.tensor(0.3))

    def loss(y: Tensor, *, target: Tensor, table: Tensor) -> Tensor:
        return b * table[0] * (y - target).log().sum(1)  # with all samples b's gradient is not finite

    y, target = leaf(3, 3), torch.full((3, 3), -5.0)
    target[0] = torch.nan
    newton = NewtonLoss(functools.partial(loss, table=torch.tensor([1.0, 10.0, 100.0])), on_nonfinite="ignore")
    newton(y, target=target).backward()
    assert b.grad is not None
    torch.testing.assert_close(b.grad, (y - target)[1:].detach().log().sum(1).mean())


def test_weights_of_another_precision_than_the_outputs_are_named() -> None:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, y: Tensor) -> Tensor:
            return self.linear(y).square().sum(1)

    with pytest.raises(RuntimeError, match="same dtype") as raised:
        NewtonLoss(Projected().bfloat16())(torch.randn(4, 3, dtype=torch.bfloat16))
    assert raised.value.__notes__[0].endswith("loss.to(torch.float32).")
