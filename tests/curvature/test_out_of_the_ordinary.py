"""What is out of the ordinary, and so goes the long way or comes out the same on the short one."""

import warnings
from typing import Any

import pytest
import torch
from test_ordinary import long_way, waves
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import newton_losses as nl
from newton_losses.curvature import _derivatives, is_ordinary


def three_calls(newton: nl.NewtonLoss, *given: Any, **named: Any) -> list[Tensor]:
    found = []
    for batch in range(3):
        y = torch.randn(8, 3, generator=torch.Generator().manual_seed(batch)).requires_grad_()
        loss = newton(y, *given, **named)
        found.append(loss.detach())
        if loss.requires_grad:
            found.append(torch.autograd.grad(loss, y)[0])
    return found


TARGET = torch.randn(8, 3, generator=torch.Generator().manual_seed(9))
MASK = torch.rand(8, 3, generator=torch.Generator().manual_seed(10)) < 0.7


def masked(y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, (y - target).pow(4), 0.0).sum(1)


@pytest.mark.parametrize(
    ("loss", "options", "given", "named"),
    [
        (masked, {}, (TARGET,), {"mask": MASK}),
        (masked, {}, (TARGET, MASK), {}),
        (masked, {"exchangeable": True}, (TARGET, MASK), {}),
        (waves, {"value": "quadratic"}, (TARGET,), {}),
        (lambda y, target: waves(y, target).sum(), {"reduction": "sum"}, (TARGET,), {}),
        (lambda y, target: waves(y, target).mean(), {"reduction": "mean"}, (TARGET,), {}),
        (waves, {}, (), {"target": TARGET}),
        (nl.sorting.SortingLoss("softsort"), {}, (TARGET,), {}),
    ],
    ids=["mask by name", "mask by position", "mask of a set", "quadratic", "sum", "mean", "by name", "own expansion"],
)
def test_what_is_not_ordinary_goes_the_long_way_or_comes_out_the_same(loss, options, given, named):
    short, long = (nl.NewtonLoss(loss, **options) for _ in range(2))
    for one, other in zip(
        three_calls(short, *given, **named), three_calls(long_way(long), *given, **named), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_evaluation_autocast_no_grad_and_forward_mode():
    contexts = (
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.autograd.set_detect_anomaly(True),
        torch.autograd.forward_ad.dual_level,
    )
    for enter in contexts:
        short, long = (nl.NewtonLoss(lambda y, t: ((y @ torch.ones(3, 3)) - t).pow(4).sum(1)) for _ in range(2))
        three_calls(short, TARGET), three_calls(long_way(long), TARGET)
        with enter(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that anomaly mode is slow
            found = three_calls(short, TARGET), three_calls(long, TARGET)
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        known = short.eval().running_square.clone()
        three_calls(short, TARGET)
        assert torch.equal(short.running_square, known)


def test_a_wrong_shape_is_told_at_a_later_call_as_well():
    newton = nl.NewtonLoss(lambda y, t: waves(y, t) if len(y) == 8 else (y - t).pow(2))
    three_calls(newton, TARGET)
    y = torch.randn(6, 3, requires_grad=True)
    with pytest.raises(nl.ShapeError, match=r"returned shape \(6, 3\)"):
        newton(y, torch.zeros(6, 3))
    complex_loss = nl.NewtonLoss(lambda y, t: waves(y, t) + 0j, check=False)
    with pytest.raises(nl.ArgumentError, match="complex"):
        complex_loss(y, torch.zeros(6, 3))


def test_an_error_that_comes_once_is_not_lost():
    calls = []

    def flaky(y: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("once")
        return waves(y, target)

    newton = nl.NewtonLoss(flaky, check=False)
    with pytest.raises(ValueError, match="once"):
        three_calls(newton, TARGET)
    assert len(calls) == 3


def test_behind_a_checkpoint():
    """Which ends a recomputation by an exception of its own."""
    newton, head = nl.NewtonLoss(waves, check=False), nn.Linear(5, 3)
    for _ in range(3):
        x = torch.randn(8, 5, requires_grad=True)
        loss = checkpoint(lambda x: newton(head(x), TARGET), x, use_reentrant=False)
        loss.backward()
        assert x.grad is not None


def test_a_gradient_whose_square_overflows_warns_of_nothing():
    gradient = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    gradient[0, 0] = 1e30
    y = torch.zeros(8, 3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nl.inject_fisher(y).backward(gradient)
    assert y.grad.isfinite().all()


def test_a_second_derivative_at_outputs_that_have_changed_is_refused():
    newton = nl.NewtonLoss(waves)
    three_calls(newton, TARGET)
    x = torch.randn(8, 3, requires_grad=True)
    y = 1 * x
    loss = newton(y, TARGET)
    y.mul_(3)
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)  # does not need them
    assert first.isfinite().all()
    with pytest.raises(nl.DerivativeError, match="inplace"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_a_module_that_was_pickled_before_there_was_a_short_way():
    newton = nl.NewtonLoss(waves)
    newton.__dict__.pop("_way")
    assert len(three_calls(newton, TARGET)) == 6


@pytest.mark.filterwarnings("ignore")  # of the tracer, which is deprecated
def test_a_trace_computes_the_value_of_new_outputs():
    newton = nl.NewtonLoss(waves).eval()
    three_calls(newton, TARGET)
    y, other = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    traced = torch.jit.trace(newton, (y, TARGET), check_trace=False)
    torch.testing.assert_close(traced(other, TARGET), newton(other, TARGET))


def test_no_hessian_is_stored_that_would_be_large():
    """One sample of many outputs has a small Fisher, and a Hessian of as many rows."""
    run = torch.ones(2)
    for shape, ways in (
        ((1, 2000), {"fisher", "lists", "sample"}),
        ((64, 64), {"fisher", "lists", "sample", "hessian"}),
        ((64, 65), {"sample"}),
        ((2**10, 2**8), {"sample"}),  # which has no matrix, only N·m numbers
        ((2**10, 2**8 + 1), set()),
    ):
        y = torch.zeros(shape, requires_grad=True)
        assert {way for way in ("fisher", "lists", "sample", "hessian") if is_ordinary(y, run, way)} == ways


def test_a_loss_with_parameters_that_needs_forward_mode():
    scale = torch.ones((), requires_grad=True)

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return waves(scale * y, target)

    _derivatives.remember(_derivatives._needs_forward, loss, True)
    newton = nl.NewtonLoss(loss, "hessian")
    for one in three_calls(newton, TARGET):
        assert one.isfinite().all()
    masked = nl.NewtonLoss(loss, "hessian")
    for _ in range(3):
        y = torch.zeros(8, 3, requires_grad=True)
        masked(y, TARGET, mask=torch.arange(3).expand(8, 3) < 2).backward()
        assert y.grad.isfinite().all()


class _GivesBackTheOutputs(torch.autograd.Function):
    """½‖y‖², whose gradient is what it has saved: the outputs themselves, which have a gradient."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return 0.5 * y.square().sum(1)

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> Tensor:
        return ctx.saved_tensors[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("curvature", ["fisher", "sample"])
def test_a_backward_pass_may_give_back_the_outputs_themselves(curvature: str) -> None:
    y, found = torch.randn(6, 3, requires_grad=True), []
    for loss in (_GivesBackTheOutputs.apply, lambda y: 0.5 * y.square().sum(1)):
        newton = nl.NewtonLoss(loss, curvature, check=False)
        for _ in range(2):
            found.append(torch.autograd.grad(newton(y), y)[0])
    torch.testing.assert_close(found[:2], found[2:])


def test_a_second_derivative_is_finite_at_an_infinite_output_and_refused_after_a_change_in_place() -> None:
    newton = nl.NewtonLoss(lambda y: (y.clamp(-3, 3) - 1).square().sum(1), check=False)
    newton(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_())  # which is none of its own
    y = torch.zeros(6, 3)
    y[0, 0] = torch.inf
    y.requires_grad_()
    (gradient,) = torch.autograd.grad(newton(y), y, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), y)
    wanted = torch.full((6, 3), 1 / 6)
    wanted[0, 0] = 0
    torch.testing.assert_close(second, wanted)
    assert gradient.isfinite().all()
    value = newton(y)
    with torch.no_grad():
        y.zero_()
    with pytest.raises(nl.DerivativeError, match="inplace"):
        torch.autograd.grad(value, y, create_graph=True)
