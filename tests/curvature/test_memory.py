"""How much of a loss is held at once while its second derivatives are made, and what is said where that is too much."""

import pytest
import torch
from torch import Tensor

from cases import Case, Cube, assert_close, brute_force_step, ripples
from newton_losses import DerivativeError, NewtonLoss, expand, newton_loss
from newton_losses.curvature import _derivatives, _passes


class Hungry(torch.autograd.Function):
    """The second derivative of it takes more memory than there is."""

    @staticmethod
    def forward(ctx, x):
        return x.sum(1)

    @staticmethod
    def backward(ctx, grad):
        return HungrySlope.apply(grad[:, None].expand(-1, 3))


class HungrySlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, slope):
        return slope.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad + torch.empty(2**58)


@pytest.mark.parametrize("power", [lambda x: x**3, Cube.apply])
def test_few_directions_at_once_where_the_loss_makes_much_of_its_outputs(power, monkeypatch) -> None:
    """All pairs of 48 outputs: 48 times as much as the outputs themselves."""
    monkeypatch.setattr(_passes, "CACHED_ELEMENTS", 2**16)
    y = torch.randn(8, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    passes: list[int] = []

    def loss(y: Tensor) -> Tensor:
        return power(y[:, :, None] - 2 * y[:, None, :]).sum((1, 2))

    def counted(*arguments, **options):
        passes.append(len(arguments[2]))
        return original(*arguments, **options)

    original = _derivatives._grad_of_grad
    monkeypatch.setattr(_derivatives, "_grad_of_grad", counted)
    found = expand(loss, y)
    wanted = torch.stack([torch.func.hessian(lambda one: ((one[:, None] - 2 * one) ** 3).sum())(one) for one in y])
    assert_close(found.curvature.dense(), wanted.mean(0), 1e-10)
    assert sum(passes) == 48
    assert set(passes) == {3}  # 2¹⁶ // (8 · 48²)


@pytest.mark.parametrize("kind", ["masked", "exchangeable", "matrix_free"])
def test_few_directions_at_once_of_lists_and_of_products(kind: str, monkeypatch) -> None:
    """The same where a mask, a set or products ask for the directions."""
    monkeypatch.setattr(_passes, "CACHED_ELEMENTS", 2**16)
    y = torch.randn(8, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = {"masked": {"mask": torch.ones_like(y, dtype=torch.bool)}}.get(kind, {kind: True})
    passes: list[int] = []

    def counted(*arguments, batched):
        passes.extend([len(arguments[2])] * batched)  # a pass of one asks whether all is finite
        return original(*arguments, batched=batched)

    original = _derivatives._grad_of_grad
    monkeypatch.setattr(_derivatives, "_grad_of_grad", counted)
    cubes = lambda y: (y[:, :, None] - 2 * y[:, None, :]).pow(3).sum((1, 2))  # noqa: E731
    found = expand(cubes, y, **options).curvature.dense()
    wanted = torch.stack([torch.func.hessian(lambda one: cubes(one[None])[0])(one) for one in y]).mean(0)
    if kind == "exchangeable":
        assert_close(torch.stack([found.trace(), found.sum()]), torch.stack([wanted.trace(), wanted.sum()]), 1e-10)
    else:
        assert_close(found, wanted, 1e-10)
    assert sum(passes) == 48
    assert set(passes) == {3}  # 2¹⁶ // (8 · 48²)


@pytest.mark.parametrize("free", [2**20, 2**40])
def test_a_device_of_any_size_is_filled_and_not_more(free: int, monkeypatch) -> None:
    """What a GPU would do, told to a CPU: as many directions as half of its free memory holds."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    monkeypatch.setattr(_passes, "_free_elements", {})
    flat = torch.empty(8, 48)
    size = _passes.Footprint(8 * 48**2, 3 * 8 * 48**2)
    at_once = _passes._room(flat) // (_passes.HELD * size.together)
    assert at_once == free // 2 // 4 // (_passes.HELD * size.together)


@pytest.mark.parametrize("operator", [None, Cube])  # which has no forward rule: the tape is the only way
def test_a_bad_sample_is_left_out_of_a_hessian_of_several_passes(operator, monkeypatch) -> None:
    monkeypatch.setattr(_passes, "CACHED_ELEMENTS", 64)
    y = torch.rand(6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    y[2, 17] = 0.0  # the gradient of x^1.5 is finite there, its second derivative is not

    def loss(y: Tensor) -> Tensor:
        rooted = y.pow(1.5).sum(1)
        return rooted if operator is None else rooted + operator.apply(y).sum(1)

    found = expand(loss, y).curvature
    kept = y[[0, 1, 3, 4, 5]]
    assert int(found.count) == 5
    second = 0.75 * kept.rsqrt() + (0.0 if operator is None else 6 * kept)
    assert_close(found.dense(), torch.diag(second.mean(0)), 1e-12)


@pytest.mark.parametrize("threads", [1, 2])
def test_so_few_numbers_wake_no_other_thread(threads: int, monkeypatch) -> None:
    before, seen = torch.get_num_threads(), []

    def watched(*arguments, **options):
        seen.append(torch.get_num_threads())
        return original(*arguments, **options)

    original = _derivatives._grad_of_grad
    monkeypatch.setattr(_derivatives, "_grad_of_grad", watched)
    torch.set_num_threads(threads)
    try:
        expand(lambda y: y.pow(3).sum(1), torch.ones(2, 3))
        assert seen == [1]
        assert torch.get_num_threads() == threads
        y = torch.randn(20, 3, requires_grad=True)
        for kind in ("fisher", "hessian"):
            NewtonLoss(lambda y: y.pow(4).sum(1), kind)(y).backward()
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_a_random_loss_is_drawn_once_for_all_passes(monkeypatch) -> None:
    monkeypatch.setattr(_passes, "CACHED_ELEMENTS", 64)
    y = torch.ones(4, 70, dtype=torch.float64)
    found = expand(lambda y: (torch.rand((), dtype=y.dtype) + 0.5) * y.square().sum(1) / 2, y)
    assert_close(found.curvature.dense(), found.gradient[0, 0] * torch.eye(70, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("matrix_free", [True, False])
def test_value_gradient_and_every_product_are_of_one_draw(matrix_free: bool) -> None:
    y, vectors = torch.ones(4, 6, dtype=torch.float64), torch.eye(6, dtype=torch.float64)
    noisy = lambda y: (torch.rand((), dtype=y.dtype) + 0.5) * y.square().sum(1) / 2  # noqa: E731
    found = expand(noisy, y, curvature="hessian", matrix_free=matrix_free)
    drawn = found.gradient[0, 0]
    assert_close(found.value, 3 * drawn.expand(4), 1e-12)
    for _ in range(2):  # a solver asks for many products, each in a call of its own
        assert_close(found.curvature.product(vectors), drawn * vectors, 1e-12)


def test_how_large_a_loss_is_is_asked_once() -> None:
    y, calls = torch.randn(8, 48, generator=torch.Generator().manual_seed(0)), []

    def loss(y: Tensor) -> Tensor:
        calls.append(len(y))
        return y.pow(4).sum(1)

    expand(loss, y)
    first = len(calls)
    expand(loss, y)
    assert len(calls) == first + first - 1


def test_how_large_a_loss_with_targets_by_name_is_is_asked_once() -> None:
    y, calls = torch.randn(8, 48, generator=torch.Generator().manual_seed(0), requires_grad=True), []

    def loss(y: Tensor, *, power: Tensor) -> Tensor:
        calls.append(len(y))
        return y.pow(power).sum(1)

    newton = NewtonLoss(loss, "hessian")
    for _ in range(4):
        before = len(calls)
        newton(y, power=torch.tensor(4.0))
    assert len(calls) == before + 1


def test_too_little_memory_is_not_a_missing_derivative() -> None:
    def loss(y: Tensor) -> Tensor:
        return Hungry.apply(y).square()

    with pytest.raises(RuntimeError, match="can't allocate memory") as caught:
        expand(loss, torch.ones(2, 3))
    assert not isinstance(caught.value, DerivativeError)
    assert "matrix_free=True" in caught.value.__notes__[0]


@pytest.mark.parametrize("at_once", [2, 4])
def test_forward_mode_in_several_passes(at_once: int, monkeypatch) -> None:
    """Inside a transform, where there is no tape."""
    case = Case(ripples, (3, 7))
    y, target = case.draw()
    monkeypatch.setattr(_passes, "CACHED_ELEMENTS", at_once * y.numel())
    step = torch.func.grad(lambda y: newton_loss(case.loss, y, target, damping=2.0, curvature="hessian"))
    assert_close(step(y), brute_force_step(case, y, target, "hessian", 2.0) / 3, 1e-10)


def test_a_hessian_counts_its_samples_where_some_are_left_out() -> None:
    y = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=torch.float64)
    assert expand(lambda y: y.abs().pow(3).sum(1), y).curvature.count is None
    assert int(expand(lambda y: y.abs().pow(1.5).sum(1), y).curvature.count) == 1
    # Along one output alone it leaves the range of numbers.
    scale = torch.tensor([[1e308, 1.0], [1.0, 1.0]], dtype=torch.float64)
    found = expand(lambda y, scale: (scale * y.square()).sum(1), y, scale).curvature
    assert int(found.count) == 1
    assert found.dense().tolist() == [[2.0, 0.0], [0.0, 2.0]]
    every = torch.ones(2, 2, dtype=torch.bool)
    masked = expand(lambda y: y.abs().pow(1.5).sum(1), y, mask=every).curvature
    assert_close(masked.matrix, torch.diag(0.75 * y[1].rsqrt()), 1e-12)


def test_more_cells_than_go_at_once_go_one_direction_at_a_time(monkeypatch) -> None:
    y, target = Case(ripples, (4, 3)).draw()
    mask = torch.ones(4, 3, dtype=torch.bool)
    wanted = expand(ripples, y, target, mask=mask).curvature.matrix
    monkeypatch.setattr("newton_losses.curvature._lists.CELLS_AT_ONCE", 5)
    assert_close(expand(ripples, y, target, mask=mask).curvature.matrix, wanted, 1e-12)
