"""Targets that a loss takes by keyword alone, and nested ones within a batch: checked, picked and padded as others."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from newton_losses import NewtonLoss, SeparabilityError, ShapeError, check_loss, diagnose


def by_name_alone(y: Tensor, *, target: Tensor, weight: Tensor) -> Tensor:
    return weight * (y - target).pow(4).sum(1)


def among_others(y: Tensor, **named: Tensor) -> Tensor:
    return by_name_alone(y, **named)


class Projected(nn.Module):
    """Its weights have to be in the precision of the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, y: Tensor, *, target: Tensor, weight: Tensor) -> Tensor:
        return by_name_alone(self.linear(y), target=target, weight=weight)


@pytest.mark.parametrize("loss", [by_name_alone, among_others, Projected()])
def test_targets_by_keyword_alone_are_picked_and_cast_as_others_are(loss) -> None:
    generator = torch.Generator().manual_seed(0)
    y, target = torch.randn(40, 4, generator=generator), torch.randn(40, 4, generator=generator)
    weight = torch.rand(40, generator=generator)
    by_name = diagnose(loss, y, target=target, weight=weight).to_dict()
    by_place = diagnose(lambda y, t, w: loss(y, target=t, weight=w), y, target, weight).to_dict()
    if not isinstance(loss, nn.Module):  # which is not found within a function, so not in float64 there
        assert {**by_name, "loss": 0} == {**by_place, "loss": 0}
    assert by_name["verdict"] != "fix"
    assert check_loss(loss, y, target=target, weight=weight)


def test_the_first_call_sees_targets_by_keyword_alone() -> None:
    y, target = torch.randn(8, 1, requires_grad=True), torch.randn(8)
    with pytest.raises(SeparabilityError, match=r"broadcast to \(8, 8\)"):
        NewtonLoss(lambda y, *, target: (y - target).square().mean())(y, target=target)
    with pytest.warns(UserWarning, match="It is a sum over the batch"):
        NewtonLoss(lambda y, *, target: (y - target).square().sum())(y, target=target[:, None])


def test_nested_targets_within_a_batch_and_by_keyword_alone() -> None:
    lists, weight = [torch.arange(length) / 5 for length in (3, 2, 4)], torch.tensor([1.0, 2.0, 3.0])

    def loss(y: Tensor, target: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
        return weight * torch.where(mask, (y - target).pow(4), 0.0).sum(1)

    def by_name(y: Tensor, *, target: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
        return loss(y, target, weight, mask)

    def gradient(loss: Any, *targets: Any, **named: Any) -> Tensor:
        y = torch.nested.nested_tensor(lists, layout=torch.jagged, requires_grad=True)
        NewtonLoss(loss)(y, *targets, **named).backward()
        return y.grad.values()

    target = torch.nested.nested_tensor([one.square() - 1 for one in lists], layout=torch.jagged)
    wanted, batch = gradient(loss, target, weight), {"target": target, "weight": weight}
    torch.testing.assert_close(gradient(lambda y, batch, mask: loss(y, **batch, mask=mask), batch), wanted)
    torch.testing.assert_close(gradient(lambda y, pair, mask: loss(y, *pair, mask), (target, weight)), wanted)
    torch.testing.assert_close(gradient(by_name, **batch), wanted)
    shorter = torch.nested.nested_tensor([one[1:] for one in lists], layout=torch.jagged)
    with pytest.raises(ShapeError, match="lists of different lengths"):
        gradient(lambda y, batch, mask: loss(y, **batch, mask=mask), {"target": shorter, "weight": weight})
