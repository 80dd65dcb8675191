"""The first call of a Newton loss warns of second derivatives that are wrong, and of no others."""

import warnings
from typing import Any

import pytest
import torch
from known_losses import (
    Known,
    absolute,
    catalogue,
    cut_second,
    detached_weights,
    draw,
    hinge,
    honest_waves,
    wrong_second,
)
from torch import Tensor, nn

from newton_losses import NewtonLoss
from newton_losses.sorting import SortingLoss

OFF = r"second derivatives of the loss \w+ are about \d+ % off, for \d+ % of the samples"


def first_call(loss: Any, y: Tensor, *targets: Any, **options: Any) -> list[str]:
    """What the first call of a Newton loss warns of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        NewtonLoss(loss, **{"curvature": "hessian", **options})(y.detach().requires_grad_(), *targets).backward()
    here = range(first_call.__code__.co_firstlineno, first_call.__code__.co_firstlineno + 7)
    assert all(one.filename == __file__ and one.lineno in here for one in told)
    return [str(one.message) for one in told]


@pytest.mark.parametrize(("loss", "operator"), [(wrong_second, "_HalfBentSine"), (cut_second, "_CutSine")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_custom_operator_is_named_and_the_fisher_offered(loss: Any, operator: str, dtype: torch.dtype) -> None:
    y, target = draw(32, 6, seed=0).to(dtype), draw(32, 6, seed=1).to(dtype)
    (told,) = first_call(loss, y, target)
    assert operator in told
    assert "curvature='fisher'" in told
    newton = NewtonLoss(loss, curvature="hessian")
    with pytest.warns(UserWarning, match=OFF):
        newton(y.requires_grad_(), target)
    newton(y, target)  # which says it once
    assert first_call(loss, y, target, curvature="fisher") == []
    assert first_call(loss, y, target, check=False) == []


def soft_minimum_with_a_fixed_solution(y: Tensor, target: Tensor) -> Tensor:
    """min over p of p·(y − t)² + KL(p): the gradient is right with p detached, the second derivative is not."""
    cost = (y - target).square()
    share = torch.softmax(-cost, 1).detach()
    return (share * cost + share * share.log()).sum(1)


def test_a_detached_solution_is_found_without_a_custom_operator() -> None:
    (told,) = first_call(soft_minimum_with_a_fixed_solution, draw(32, 6, seed=0), draw(32, 6, seed=1))
    assert "a part that is detached" in told


def test_a_loss_that_does_not_take_float64_is_compared_in_float32() -> None:
    mixing = draw(6, 6, seed=2)

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return wrong_second(y @ mixing, target)

    def honest(y: Tensor, target: Tensor) -> Tensor:
        return honest_waves(y @ mixing, target)

    y, target = draw(32, 6, seed=0), draw(32, 6, seed=1)
    assert "_HalfBentSine" in first_call(loss, y, target)[0]
    assert first_call(honest, y, target) == []


def test_outputs_of_very_different_units() -> None:
    unit = torch.tensor([1e-4, 1e4, 1.0, 1e-2, 1e3, 1e-3])
    y, target = draw(32, 6, seed=0), draw(32, 6, seed=1)
    (told,) = first_call(lambda y, t: wrong_second(y / unit, t), unit * y, target)
    assert "_HalfBentSine" in told
    (again,) = first_call(wrong_second, y, target)
    off, expected = (float(one.split(" % off")[0].split()[-1]) for one in (told, again))
    assert off == pytest.approx(expected, rel=0.5)
    assert first_call(lambda y, t: honest_waves(y / unit, t), unit * y, target) == []


HONEST = [one for one in catalogue() if one.name not in (
    "distance", "mixed batch", "no gradient", "wrong gradient", "cut second", "wrong second", "half cut second",
    "no second", "one draw", "few samples", "many samples", "saturated entropy", "reference softsort",
)]  # fmt: skip


@pytest.mark.parametrize("known", HONEST, ids=lambda known: known.name)
def test_honest_losses_are_not_suspected(known: Known) -> None:
    hidden = known.loss.forward if isinstance(known.loss, nn.Module) else known.loss  # without its own expansion
    assert suspicions(hidden, known.y, *known.targets) == []


def suspicions(loss: Any, y: Tensor, *targets: Any) -> list[str]:
    """That a Hessian is zero is a fact, and no suspicion of its derivatives."""
    return [one for one in first_call(loss, y, *targets) if "is zero at all of these outputs" not in one]


@pytest.mark.parametrize("loss", [absolute, hinge, detached_weights])
def test_kinks_and_ties_are_not_suspected(loss: Any) -> None:
    y = torch.relu(draw(64, 6, seed=0))  # half of all outputs are equal
    assert suspicions(loss, y, torch.zeros(64, 6)) == []
    assert first_call(SortingLoss("softsort", temperature=0.1).forward, y, draw(64, 6, seed=1)) == []


def test_noise_of_any_kind_is_not_suspected() -> None:
    own = torch.Generator().manual_seed(0)
    y, target = draw(32, 6, seed=0), draw(32, 6, seed=1)
    assert first_call(lambda y, t: ((y - t + torch.rand_like(y)) ** 4).sum(1), y, target) == []
    assert first_call(lambda y, t: ((y - t + torch.rand(y.shape, generator=own)) ** 4).sum(1), y, target) == []
    assert suspicions(nn.Sequential(nn.Dropout(0.5), nn.Flatten(0)), draw(32, 1, seed=0)) == []


def test_a_loss_on_probabilities_that_refuses_others_is_not_suspected() -> None:
    y, target = torch.sigmoid(draw(32, 6, seed=0)), (draw(32, 6, seed=1) > 0).float()
    y[0, 0] = 1.0

    def entropy(y: Tensor, target: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy(y, target, reduction="none").sum(1)

    assert first_call(entropy, y, target) == []


def test_rectified_networks_as_losses_are_not_suspected() -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    assert suspicions(critic, draw(32, 6, seed=0)) == []
    assert first_call(nn.HuberLoss(), draw(32, 6, seed=0), draw(32, 6, seed=1)) == []
    assert first_call(nn.MSELoss(), 1e4 + draw(32, 6, seed=0), 1e4 + draw(32, 6, seed=1)) == []


def margins(y: Tensor, target: Tensor) -> Tensor:
    return (1 - y * target.sign()).relu().sum(1)


@pytest.mark.parametrize("loss", [absolute, margins, nn.L1Loss()], ids=["absolute", "margins", "torch's"])
@pytest.mark.parametrize("damping", ["auto", 0.1])
def test_a_hessian_that_is_zero_everywhere_is_said(loss: Any, damping: Any) -> None:
    y, target = draw(32, 6, seed=0), draw(32, 6, seed=1)
    (told,) = first_call(loss, y, target, damping=damping)
    assert "is zero at all of these outputs" in told
    assert "Only the damping acts" in told
    assert "curvature='fisher'" in told
    assert first_call(loss, y, target, curvature="fisher") == []


def test_a_sample_that_is_left_out_hides_no_hessian_of_zero() -> None:
    """One number of its gradient is finite, and so is its Hessian."""
    y, weight = torch.tensor([[1.0, -2.0], [3.0, 1.0]]), torch.tensor([[torch.nan, 1.0], [1.0, 2.0]])
    bend = torch.tensor([1.0, 0.0])
    told = first_call(lambda y: (weight * y.abs()).sum(1) + bend * y.square().sum(1), y)
    assert any("is zero at all of these outputs" in one for one in told)


def test_a_hessian_that_is_zero_for_some_samples_only_is_not_said() -> None:
    huber = nn.HuberLoss(reduction="none")
    assert first_call(lambda y, t: huber(y, t).sum(1), draw(32, 6, seed=0), draw(32, 6, seed=1)) == []
    y = torch.zeros(4, 2)  # where there is no gradient either, there is nothing to say of the loss
    assert first_call(lambda y: y.abs().sum(1), y) == []


class _Bent(torch.autograd.Function):
    """x²/2 with `factor` times its second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(x, factor)
        return x.square() / 2

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        x, factor = ctx.saved_tensors
        return slope * (factor * x + (1 - factor) * x.detach()), None


def bent(y: Tensor, scale: float, factor: float) -> Tensor:
    """Half of the samples have `factor` times their second derivative, and are `scale` times as large as the others."""
    is_bent = (torch.arange(len(y)) % 2).to(y.dtype).unsqueeze(1)
    return ((1 + is_bent * (scale - 1)) * _Bent.apply(y, 1 + is_bent * (factor - 1))).sum(1)


def test_what_is_small_beside_other_samples_or_beside_a_tenth_is_not_told() -> None:
    y = draw(1024, 3, seed=0).double()
    assert first_call(lambda y: bent(y, 1e-4, 0.5), y) == []
    assert first_call(lambda y: bent(y, 1.0, 0.95), y) == []
    for scale, unit in ((4e-3, 1.0), (1.0, 1e-12)):
        (told,) = first_call(lambda y, scale=scale, unit=unit: unit * bent(y, scale, 0.5), y)
        assert "50 % off, for 50 % of the samples" in told


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_the_unit_of_a_loss_does_not_matter(unit: float) -> None:
    y, target = draw(32, 6, seed=0), draw(32, 6, seed=1)
    assert first_call(lambda y, target: unit * detached_weights(y, target), y, target) == []
    assert first_call(lambda y, target: unit * honest_waves(y, target), y, target) == []


def test_a_sum_over_one_number_is_one_too() -> None:
    (told,) = first_call(lambda y: y.square().sum(), torch.ones(1, 1), curvature="fisher")
    assert "is a sum over the batch" in told
