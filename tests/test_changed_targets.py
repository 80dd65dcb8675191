"""Losses that change their targets, and masks that nobody called so: what the first call says of them."""

import warnings
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import newton_losses as nl
from newton_losses._targets import own_copy, traces

CHANGES = "changes its targets"


def scaled(y: Tensor, batch: dict[str, Any]) -> Tensor:
    batch["t"] = batch["t"] / 255
    return (y - batch["t"]).square().sum(1)


def shifted(y: Tensor, target: Tensor) -> Tensor:
    target.sub_(1.0)
    return (y - target).square().sum(1)


def popping(y: Tensor, batch: dict[str, Any]) -> Tensor:
    return batch.pop("weight") * (y - batch["t"]).square().sum(1)


def outputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y, target = torch.randn(2, 16, 3, generator=generator)
    return y.requires_grad_(), target


@pytest.mark.parametrize("by_name", [False, True])
def test_the_first_call_changes_no_target_of_the_caller(by_name: bool) -> None:
    y, target = outputs()
    given = {"t": target * 255}
    plain = scaled(y, dict(given)).mean()
    newton = nl.NewtonLoss(scaled)
    with pytest.warns(UserWarning, match=CHANGES) as caught:
        value = newton(y, batch=given) if by_name else newton(y, given)
    assert caught[0].filename == __file__
    torch.testing.assert_close(value, plain)
    torch.testing.assert_close(given["t"], target)  # changed once, as by the plain loss


def test_a_tensor_that_is_written_to_is_written_to_once() -> None:
    y, target = outputs()
    mine = target.clone()
    with pytest.warns(UserWarning, match=CHANGES):
        nl.NewtonLoss(shifted)(y, mine)
    torch.testing.assert_close(mine, target - 1)


def test_an_error_of_the_second_call_says_why() -> None:
    y, target = outputs()
    with pytest.raises(KeyError, match="weight") as raised:
        nl.NewtonLoss(popping)(y, {"t": target, "weight": 2.0})
    assert any(CHANGES in note for note in raised.value.__notes__)


@pytest.mark.parametrize("loss", [scaled, shifted])
def test_diagnose_stops_and_leaves_the_callers_targets_alone(loss: Any) -> None:
    y, target = outputs()
    given: Any = {"t": target.clone()} if loss is scaled else target.clone()
    report = nl.diagnose(loss, y.detach(), given)
    assert report.verdict == "fix"
    assert CHANGES in report.reasons[0]
    assert torch.equal(given["t"] if loss is scaled else given, target)


def test_a_copy_is_nobody_elses_and_traces_see_every_change() -> None:
    shared: dict[str, Any] = {"a": torch.zeros(2), "b": [numpy.zeros(2), {"c": torch.ones(1)}], "d": (torch.ones(1), 3)}
    changes: list[Any] = [
        lambda one: one["a"].add_(1),
        lambda one: one["b"][0].__iadd__(1),
        lambda one: one["b"][1].pop("c"),
        lambda one: one["d"][0].mul_(2),
        lambda one: one.update(a=3),
        lambda one: one["b"].append(1),
    ]
    before = traces(shared)
    for change in changes:
        copied = own_copy(shared)
        found = traces(copied)
        assert traces(copied) == found
        change(copied)
        assert traces(copied) != found
        assert traces(shared) == before


def ranking(y: Tensor, grades: Tensor, valid: Tensor) -> Tensor:
    better = (grades[:, :, None] > grades[:, None]) & valid[:, :, None] & valid[:, None]
    return torch.where(better, torch.nn.functional.softplus(y[:, None] - y[:, :, None]), 0.0).sum((1, 2))


def test_a_mask_under_another_name_is_warned_of() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(40, 6, generator=generator, requires_grad=True)
    grades = torch.randint(0, 3, (40, 6), generator=generator)
    valid = torch.arange(6) < torch.randint(2, 7, (40, 1), generator=generator)
    with pytest.warns(UserWarning, match="target 2 looks like a mask") as caught:
        nl.NewtonLoss(ranking)(y, grades, valid)
    assert caught[0].filename == __file__
    batches = {"grades": grades, "valid": valid}, (grades, [valid])
    for batch, loss in zip(
        batches, (lambda y, b: ranking(y, **b), lambda y, b: ranking(y, b[0], b[1][0])), strict=True
    ):
        with pytest.warns(UserWarning, match="a part of target 1 looks like a mask"):
            nl.NewtonLoss(loss)(y, batch)
    with pytest.warns(UserWarning, match="the target valid looks like a mask"):
        nl.NewtonLoss(lambda y, grades, *, valid: ranking(y, grades, valid))(y, grades, valid=valid)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nl.NewtonLoss(ranking)(y, grades, valid, mask=valid)
        nl.NewtonLoss(lambda y, grades, mask: ranking(y, grades, mask))(y, grades, valid)
        nl.NewtonLoss(ranking)(y, grades, torch.ones_like(valid))  # nothing is left out
        clicks = grades > 0  # truths that are labels: all outputs have a gradient
        nl.NewtonLoss(lambda y, clicks: torch.where(clicks, -y, y).exp().sum(1))(y, clicks)


@pytest.mark.parametrize("curvature", ["fisher", "sample", "hessian"])
def test_a_mask_of_tokens_is_one_of_all_their_outputs(curvature: Any) -> None:
    y = torch.randn(8, 5, 3, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(5) < torch.arange(8)[:, None] % 5 + 1
    every = tokens[:, :, None].expand(y.shape)

    def loss(y: Tensor, mask: Tensor) -> Tensor:  # with the mask as it came
        return torch.where(mask, y.pow(4).sum(-1), 0.0).sum(1)

    def gradient(loss: Any, *targets: Any, **named: Any) -> Tensor:
        own = y.clone().requires_grad_()
        newton = nl.NewtonLoss(loss, curvature)
        for _ in range(2):
            (found,) = torch.autograd.grad(newton(own, *targets, **named), own)
        return found

    wanted = gradient(lambda y, mask: loss(y, mask[:, :, 0]), mask=every)
    assert (wanted[~tokens] == 0).all()
    torch.testing.assert_close(gradient(loss, mask=tokens), wanted)
    torch.testing.assert_close(gradient(loss, tokens), wanted)
    torch.testing.assert_close(gradient(lambda y: loss(y, tokens), mask=tokens), wanted)
    torch.testing.assert_close(gradient(lambda y, mask: loss(y, mask.squeeze(2)), mask=tokens[:, :, None]), wanted)


def test_what_is_no_mask_of_tokens_is_the_loss_s_alone() -> None:
    y = torch.randn(8, 5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    tokens = torch.arange(5) < torch.arange(8)[:, None] % 5 + 1
    loss = lambda y, mask: torch.where(mask.bool(), y.pow(4).sum(-1), 0.0).sum(1)  # noqa: E731
    for arguments, named in (((), {"mask": tokens.float()}), ((tokens.float(),), {})):
        with pytest.warns(UserWarning, match=r"of shape \(8, 5\), so the loss alone gets it.*here \(8, 5, 3\)"):
            nl.NewtonLoss(loss)(y, *arguments, **named)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nl.NewtonLoss(lambda y, mask: torch.where(mask, y.pow(4).sum((1, 2)), 0.0))(y, mask=tokens[:, 4])


def test_functions_pass_a_mask_to_the_loss_as_the_module_does() -> None:
    y, target = outputs()
    mask = torch.arange(3) < torch.tensor([1, 2, 3, 3]).repeat(4)[:, None]

    def loss(y: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, (y - t).square(), 0.0).sum(1)

    found = nl.expand(loss, y, target, mask=mask)
    torch.testing.assert_close(found.gradient, torch.where(mask, 2 * (y - target), 0.0).detach())
    torch.testing.assert_close(nl.newton_target(loss, y, target, mask=mask).gradient, found.gradient)
    assert nl.check_loss(loss, y, target, mask=mask)


def test_errors_that_say_what_to_do_instead() -> None:
    y, target = outputs()
    with pytest.raises(nl.ArgumentError, match=r"curvature is a tensor of shape \(16, 3\)"):
        nl.NewtonLoss(shifted, y, target)  # type: ignore[arg-type]
    with pytest.raises(nl.ArgumentError, match="requires a gradient"):
        nl.NewtonLoss(shifted, damping=torch.tensor(0.1, requires_grad=True))
    with pytest.raises(nl.ArgumentError, match=r"torch.cat\(\[first, second\], 1\)"):
        nl.NewtonLoss(shifted)((y, y), target)  # type: ignore[arg-type]

    def product(y: Tensor, t: Tensor) -> Tensor:
        return torch.bmm(y[:, None], t[:, :, None]).flatten()

    with pytest.raises(RuntimeError) as raised:
        nl.NewtonLoss(product)(y.bfloat16(), target.bfloat16())
    assert any("target.float()" in note for note in raised.value.__notes__)


def test_diagnose_of_a_network_that_wants_its_own_dtype() -> None:
    torch.manual_seed(0)
    critic = torch.nn.GRU(3, 5, batch_first=True)
    y = torch.randn(24, 4, 3)
    report = nl.diagnose(lambda y: critic(y)[0][:, -1].square().sum(1) + y.square().sum((1, 2)), y)
    assert report.precision is None
    assert report.derivatives is not None


def test_the_question_for_a_mask_disturbs_nothing() -> None:
    y, target = outputs()
    valid = torch.rand(16, 3, generator=torch.Generator().manual_seed(1)) < 0.7
    norm = torch.nn.BatchNorm1d(3)

    def loss(y: Tensor, valid: Tensor) -> Tensor:
        norm(target)
        return torch.where(valid, y * torch.rand(3), 0.0).square().sum(1)

    found = []
    for check in (True, False):
        torch.manual_seed(0)
        norm.reset_running_stats()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nl.NewtonLoss(loss, check=check)(y, valid)
        found.append((torch.get_rng_state(), norm.num_batches_tracked.clone()))
    torch.testing.assert_close(*found)
