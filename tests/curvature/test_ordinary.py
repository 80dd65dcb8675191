"""The short way of an ordinary batch on a CPU against the long way through the other pieces."""

import gc
import statistics
import time
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import newton_losses as nl
import newton_losses.newton as newton_module
from newton_losses.curvature import is_ordinary, ordinary_loss
from operators import Operators

# (curvature, damping, exchangeable)
WAYS = [
    ("fisher", "auto", False),
    ("fisher", nl.RunningDamping(0.01), False),
    ("fisher", 0.3, False),
    ("fisher", 1e-6, False),
    ("fisher", "auto", True),
    ("fisher", 0.3, True),
    ("sample", "auto", False),
    ("sample", nl.RunningDamping(0.01), False),
    ("sample", 0.3, False),
    ("sample", 1e-6, True),
    ("hessian", "auto", False),
    ("hessian", nl.RunningDamping(0.01), False),
]
SHAPES = [(8, 3), (3, 8), (1, 4), (5, 1), (64, 64)]


def waves(y: Tensor, target: Tensor) -> Tensor:
    """Neither convex nor of one size."""
    return ((y - target).sin() * (1 + y.square())).sum(1)


def long_way(newton: nl.NewtonLoss) -> nl.NewtonLoss:
    newton._way = None
    return newton


def steps(newton: nl.NewtonLoss, shape: tuple[int, int], bad: float | None = None) -> list[Tensor]:
    """Values and gradients of five batches, of which one may hold a number that is not finite."""
    generator, found = torch.Generator().manual_seed(0), []
    for batch in range(5):
        y, target = torch.randn(2, *shape, generator=generator)
        if bad is not None and batch == 3:
            y[0, 0] = bad
        y.requires_grad_()
        value = newton(y, target)
        (gradient,) = torch.autograd.grad(2 * value, y)
        found += [value.detach(), gradient]
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("curvature", "damping", "exchangeable"), WAYS)
def test_it_computes_the_same(curvature, damping, exchangeable, shape):
    options: dict[str, Any] = {"exchangeable": exchangeable, "check": False, "on_nonfinite": "ignore"}
    short, long = (nl.NewtonLoss(waves, curvature, damping, **options) for _ in range(2))
    for one, other in zip(steps(short, shape), steps(long_way(long), shape), strict=True):
        # Both are exact to the rounding of float32 times a condition number, which is 100 at a factor of 0.01.
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))
    assert short._watch.seen == long._watch.seen == 5 * shape[0]
    if short.running_square is not None:
        torch.testing.assert_close(short.running_square, long.running_square, rtol=1e-5, atol=0)


@pytest.mark.parametrize("factor", [1e-18, 1e-9, 1e9, 1e18])
@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize(("curvature", "damping", "exchangeable"), WAYS)
def test_it_computes_the_same_for_a_mean_and_for_any_size_of_the_loss(curvature, damping, exchangeable, scalar, factor):
    def scaled(y: Tensor, target: Tensor) -> Tensor:
        values = factor * waves(y, target)
        return values.mean() if scalar else values

    options: dict[str, Any] = {"exchangeable": exchangeable, "check": False, "on_nonfinite": "ignore"}
    damping = damping * factor**2 if isinstance(damping, float) else damping
    short, long = (nl.NewtonLoss(scaled, curvature, damping, **options) for _ in range(2))
    for one, other in zip(steps(short, (8, 3)), steps(long_way(long), (8, 3)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize(("curvature", "damping", "exchangeable"), WAYS)
def test_a_bad_sample_is_contained_and_counted(curvature, damping, exchangeable, bad):
    options: dict[str, Any] = {"exchangeable": exchangeable, "check": False, "on_nonfinite": "ignore"}
    short, long = (nl.NewtonLoss(waves, curvature, damping, **options) for _ in range(2))
    found = steps(short, (8, 3), bad), steps(long_way(long), (8, 3), bad)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))
    assert int(short.skipped) == int(long.skipped)
    assert all(bool(one.isfinite().all()) for one in found[0][1::2])


@pytest.mark.parametrize("named", ["target", "keyword alone", "weights called mask"])
def test_targets_by_name_go_it_as_well(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    losses: dict[str, Any] = {
        "target": waves,
        "keyword alone": lambda y, *, target: waves(y, target),
        "weights called mask": lambda y, target, mask: waves(y, target) * mask,
    }
    y, target = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    given = {"target": target} | ({"mask": torch.ones(8)} if "mask" in named else {})
    newton, by_position = nl.NewtonLoss(losses[named]), nl.NewtonLoss(waves)
    found = []
    monkeypatch.setattr(newton_module, "ordinary_loss", lambda *all: found.append(ordinary_loss(*all)) or found[-1])
    for _ in range(3):
        one, other = (y.clone().requires_grad_() for _ in range(2))
        newton(one, **given).backward()
        by_position(other, target).backward()
        assert torch.equal(one.grad, other.grad)
    assert len(found) == 4  # but for the checked calls
    assert all(value is not None for value, _ in found)


@pytest.mark.parametrize(("curvature", "damping", "exchangeable"), WAYS)
def test_it_is_taken(curvature, damping, exchangeable):
    """Otherwise the tests above would compare the long way with itself."""
    newton = nl.NewtonLoss(waves, curvature, damping, exchangeable=exchangeable)
    y, target = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    newton(y.requires_grad_(), target).backward()
    run = newton.running_square
    assert is_ordinary(y, run, newton._way)
    scale = torch.ones(3, requires_grad=True)
    for loss in (waves, lambda y, target: waves(y * scale, target)):
        found, _ = ordinary_loss(loss, y, (target,), newton._way, None, newton._rule, run, True)
        assert found is not None


@pytest.mark.parametrize(("curvature", "damping", "exchangeable"), WAYS)
@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("bad", [None, torch.nan])
def test_a_loss_that_learns_goes_it_too(curvature, damping, exchangeable, scalar, bad):
    """It gets the gradient of the plain loss, times whatever the Newton loss is multiplied by, and so does a target."""
    scale = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
    options: dict[str, Any] = {"exchangeable": exchangeable, "check": False, "on_nonfinite": "ignore"}

    def loss(y: Tensor, target: Tensor) -> Tensor:
        values = waves(y * scale, target)
        return values.mean() if scalar else values

    short, long = (nl.NewtonLoss(loss, curvature, damping, **options) for _ in range(2))
    long_way(long)
    for batch in range(3):
        y, target = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(batch))
        if bad is not None and not scalar:
            y[2, 1] = bad
        found = []
        for newton in (short, long):
            leaves = y.clone().requires_grad_(), scale, target.clone().requires_grad_()
            value = newton(leaves[0], leaves[2])
            found.append([value, *torch.autograd.grad(3 * value, leaves)])
        plain = torch.autograd.grad(3 * loss(y, target).mean(), [scale])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.detach().abs().max()))
        if bad is None or scalar:
            torch.testing.assert_close(found[0][2], plain[0])


def test_it_takes_fewer_operators():
    def counted(newton: nl.NewtonLoss) -> int:
        y, target = torch.randn(8, 3).requires_grad_(), torch.randn(8, 3)
        for _ in range(3):
            newton(y, target).backward()
        y.grad = None
        with Operators(views=False) as operators:
            newton(y, target).backward()
        return operators.count

    def plain() -> int:
        y, target = torch.randn(8, 3).requires_grad_(), torch.randn(8, 3)
        with Operators(views=False) as operators:
            waves(y, target).mean().backward()
        return operators.count

    # The mean and its way back go; a direction, the mean, and the product on the way back come.
    for curvature in ("fisher", "sample"):
        assert counted(nl.NewtonLoss(waves, curvature)) <= plain() + 2


@pytest.fixture
def one_thread_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread_of_torch")
@pytest.mark.parametrize(
    ("curvature", "exchangeable", "shape"),
    [
        ("fisher", False, (20000, 1)),
        ("fisher", True, (20000, 1)),
        ("fisher", True, (128, 100)),
        ("sample", False, (20000, 1)),
        ("sample", False, (128, 100)),
    ],
)
def test_numpy_wakes_no_other_thread(curvature, exchangeable, shape):
    """For so few numbers that takes longer than all of the rest."""
    newton = nl.NewtonLoss(waves, curvature, exchangeable=exchangeable, check=False)
    y, target = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        newton(y.requires_grad_(), target).backward()
    shares = []
    for _ in range(4):
        time.sleep(0.1)  # in which threads that were busy before go to sleep
        own, all_threads = time.thread_time(), time.process_time()
        newton(y, target).backward()
        own, all_threads = time.thread_time() - own, time.process_time() - all_threads
        shares.append(all_threads / own)
    assert statistics.median(shares) < 1.5


@pytest.mark.parametrize("curvature", ["fisher", "sample", "hessian"])
@pytest.mark.parametrize("scalar", [False, True])
def test_what_the_loss_learns_itself_gets_its_gradient(curvature, scalar):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, y: Tensor, target: Tensor) -> Tensor:
            values = waves(self.scale * y, target)
            return values.mean() if scalar else values

    y, target = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    y.requires_grad_()
    loss = Scaled()
    newton = nl.NewtonLoss(loss, curvature)
    values = loss(y, target)
    (wanted,) = torch.autograd.grad(values.mean(), loss.scale)
    for _ in range(3):
        (found,) = torch.autograd.grad(newton(y, target), loss.scale)
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("curvature", ["fisher", "sample", "hessian"])
@pytest.mark.parametrize("kind", ["ordinary", "parameter", "linear", "constant", "bad", "large"])
def test_the_loss_is_called_once_for_each_batch(kind, curvature):
    """One that draws random numbers, or counts its batches, would notice."""
    calls, scale = [], torch.tensor(1.5, requires_grad=True)

    def counted(y: Tensor, target: Tensor) -> Tensor:
        calls.append(len(y))
        values = waves(scale * y, target) if kind == "parameter" else waves(y, target)
        values = (y - target).abs().sum(1) if kind == "linear" else values
        if kind == "constant" and len(calls) == 3:
            return torch.zeros(len(y))
        return values * 1e12 if kind == "large" and len(calls) == 3 else values

    if kind == "constant" and curvature == "hessian":
        pytest.skip("such a loss has no Hessian, which is an error")
    newton = nl.NewtonLoss(counted, curvature, check=False, on_nonfinite="ignore")
    steps(newton, (8, 3), torch.nan if kind == "bad" else None)
    assert calls == 5 * [8]


def test_an_error_of_the_loss_says_what_it_was_called_with():
    def strict(y: Tensor, target: Tensor) -> Tensor:
        if len(y) == 5:
            raise ValueError("five is too few")
        return waves(y, target)

    newton = nl.NewtonLoss(strict)
    y, target = torch.randn(2, 8, 3)
    newton(y.requires_grad_(), target).backward()
    with pytest.raises(ValueError, match="five is too few") as caught:
        newton(y[:5], target[:5])
    assert "(5, 3) of float32" in caught.value.__notes__[0]


@pytest.mark.parametrize("curvature", ["fisher", "sample"])
def test_the_first_derivative_of_a_step_is_that_of_the_quadratic(curvature):
    """½‖z* − y‖²/N has the Hessian I/N, also where nothing but the steps is kept."""
    y, target = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    y.requires_grad_()
    newton = nl.NewtonLoss(waves, curvature)
    for _ in range(3):
        (gradient,) = torch.autograd.grad(newton(y, target), y, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), y)
        torch.testing.assert_close(second, torch.full((4, 3), 0.25))


@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("backward", [True, False])
def test_a_graph_ends_with_its_loss(backward, is_short):
    """A circle of references would keep the network's graph until Python looks for circles."""
    newton = nl.NewtonLoss(waves)
    newton(torch.randn(8, 3).requires_grad_(), torch.randn(8, 3)).backward()
    newton._way = newton._way if is_short else None
    y, target = torch.randn(2, 8, 3)
    y.requires_grad_()
    gc.disable()
    try:
        outputs = 2 * y
        watched = weakref.ref(outputs)
        loss = newton(outputs, target)
        if backward:
            loss.backward()
        del outputs, loss
        assert watched() is None
    finally:
        gc.enable()


def test_what_the_loss_returns_is_checked_on_the_short_way_as_well() -> None:
    y, target = torch.randn(6, 3, requires_grad=True), torch.randn(6, 3)
    with pytest.raises(nl.ShapeError, match="although reduction='mean'"):
        nl.NewtonLoss(lambda y, t: (y - t).square().sum(1), reduction="mean", check=False)(y, target)
    with pytest.raises(nl.ShapeError, match="Did it reduce over the batch dimension"):
        nl.NewtonLoss(lambda y, t: (y - t).square().sum(0), check=False)(y, target)


def test_a_gradient_beside_which_the_unit_is_huge_gives_a_tiny_step() -> None:
    newton = nl.NewtonLoss(lambda y, t: (y * t).sum(1), check=False)
    target = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (3e37, 1.0):
            y = torch.zeros(64, 10, requires_grad=True)
            newton(y, target * size).backward()
    assert y.grad is not None
    assert 0 < y.grad.abs().max() < 1e-30
    assert newton.skipped == 0


class _RaisesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.sum(1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        raise ValueError("in the backward pass")


def test_an_error_of_the_backward_pass_is_not_called_one_of_the_call() -> None:
    with pytest.raises(ValueError, match="in the backward pass") as raised:
        nl.NewtonLoss(lambda y: _RaisesBackward.apply(y), check=False)(torch.zeros(6, 3, requires_grad=True))
    assert not getattr(raised.value, "__notes__", None)


def test_values_that_are_parameters_and_gradients_that_are_sparse() -> None:
    learned, y = torch.nn.Parameter(torch.ones(6)), torch.randn(6, 3, requires_grad=True)
    nl.NewtonLoss(lambda y: learned, check=False)(y).backward()
    assert y.grad is not None
    assert learned.grad is not None
    assert not y.grad.any()
    torch.testing.assert_close(learned.grad, torch.full((6,), 1 / 6))
    index, found = torch.arange(6)[:, None] % 3, []
    for sparse in (True, False):
        y.grad = None
        picked = partial(torch.gather, dim=1, index=index, sparse_grad=sparse)
        nl.NewtonLoss(lambda y, picked=picked: picked(y).square()[:, 0], check=False)(y).backward()
        found.append(y.grad)
    torch.testing.assert_close(*found)
