"""`expand` against one-sample-at-a-time brute force, in every reduction, form and way of differentiating."""

import threading

import pytest
import torch
from torch import Tensor

from cases import EXACT, SINGLE, Case, Cube, assert_close, brute_force, quartic, ripples
from newton_losses import ArgumentError, DerivativeError, Expansion, diagnose, expand, newton_loss, newton_target
from newton_losses.curvature import Dense, LowRank, Masked, Products, check_loss, empirical_fisher, loss_values
from newton_losses.sorting import SortingLoss


@pytest.mark.parametrize("case", EXACT, ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_exact_in_every_reduction(case: Case, reduction: str) -> None:
    y, target = case.draw()
    wanted = brute_force(case, y, target)
    loss = case.reduced(reduction)
    hessian = expand(loss, y, target, curvature="hessian", reduction=reduction)
    fisher = expand(loss, y, target, curvature="fisher", reduction=reduction)
    value = wanted.value if reduction == "none" else wanted.value.mean().expand(len(y))
    for found in (hessian, fisher):
        assert_close(found.value, value, 1e-12)
        assert_close(found.gradient, wanted.gradient, 1e-12)
    assert_close(hessian.curvature.dense(), wanted.hessian, 1e-12)
    assert_close(fisher.curvature.dense(), wanted.fisher, 1e-12)


@pytest.mark.parametrize("case", SINGLE, ids=str)
def test_float32(case: Case) -> None:
    y, target = case.draw()
    wanted = brute_force(case, y, target)
    found = expand(case.loss, y, target)
    assert found.gradient.dtype == torch.float32
    # sums of a dozen terms of similar size: a few units of 6e-8, and cancellation among them
    assert_close(found.gradient, wanted.gradient, 1e-5)
    assert_close(found.curvature.dense(), wanted.hessian, 1e-5)


@pytest.mark.parametrize("kind", ["hessian", "fisher"])
@pytest.mark.parametrize("made_inside", [True, False])
def test_in_inference_mode(kind: str, made_inside: bool) -> None:
    case = Case(ripples, (5, 3))
    y, target = case.draw()
    with torch.inference_mode():
        outputs = y.clone()
        found = expand(case.loss, outputs, target, curvature=kind) if made_inside else None
    found = found or expand(case.loss, outputs, target, curvature=kind)
    assert_close(found.gradient, brute_force(case, y, target).gradient, 1e-12)


@torch.inference_mode()
def test_what_else_takes_derivatives_in_inference_mode() -> None:
    case = Case(ripples, (5, 3))
    y, target = case.draw()
    stored, products = (
        newton_target(case.loss, y, target, damping=3.0, matrix_free=free, curvature="hessian")
        for free in (False, True)
    )
    assert_close(products.step, stored.step, 1e-5)
    check_loss(case.loss, y, target)
    assert diagnose(case.loss, y, target).derivatives.first == "right"


@pytest.mark.parametrize("kind", ["hessian", "fisher"])
def test_targets_made_in_inference_mode(kind: str) -> None:
    case = Case(ripples, (5, 3))
    y, target = case.draw()
    with torch.inference_mode():
        fixed = target.clone()
    found = expand(case.loss, y, fixed, curvature=kind)
    assert_close(found.gradient, brute_force(case, y, target).gradient, 1e-12)


@pytest.mark.parametrize("kind", ["hessian", "fisher"])
def test_a_batch_without_a_gradient(kind: str) -> None:
    found = expand(lambda y: y.new_ones(len(y)), torch.ones(4, 3), curvature=kind)
    assert torch.equal(found.value, torch.ones(4))
    assert torch.equal(found.gradient, torch.zeros(4, 3))


@pytest.mark.parametrize("kind", ["hessian", "fisher"])
def test_parameters_of_the_loss_and_targets_get_their_gradients(kind: str) -> None:
    scale = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    y, target = Case(ripples, (5, 3)).draw()
    target.requires_grad_()
    newton_loss(lambda y, target: ripples(scale * y, target), y, target, curvature=kind, damping=1.0).backward()
    found = scale.grad.clone(), target.grad.clone()
    scale.grad = target.grad = None
    ripples(scale * y, target).mean().backward()
    assert_close(found[0], scale.grad, 1e-12)
    assert_close(found[1], target.grad, 1e-12)


class Halved(torch.autograd.Function):
    """Its backward pass differs from what its operators would give: who used it can be told."""

    @staticmethod
    def forward(ctx, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient / 2


def test_the_fisher_goes_through_hand_written_backward_passes() -> None:
    def loss(y: Tensor) -> Tensor:
        hand_written = not torch._C._are_functorch_transforms_active()
        return (Halved.apply(y) if hand_written else y).square().sum(1)

    y = torch.ones(2, 3)
    assert torch.equal(expand(loss, y, curvature="fisher").gradient, y)


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_matrix_free_products_equal_the_dense_hessian(case: Case) -> None:
    y, target = case.draw()
    found = expand(case.loss, y, target, matrix_free=True)
    assert isinstance(found.curvature, Products)
    assert_close(found.curvature.dense(), brute_force(case, y, target).hessian, 1e-12)


def test_fisher_is_never_formed_where_samples_are_fewer_than_outputs() -> None:
    few, many = Case(quartic, (3, 7)), Case(quartic, (7, 3))
    assert isinstance(expand(few.loss, *few.draw(), curvature="fisher").curvature, LowRank)
    assert isinstance(expand(many.loss, *many.draw(), curvature="fisher").curvature, Dense)


def test_large_hessians_become_products_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    from newton_losses.curvature import _expansion

    case = Case(quartic, (3, 7))
    monkeypatch.setattr(_expansion, "DENSE_ELEMENTS", 3 * 7 * 7 - 1)
    assert isinstance(expand(case.loss, *case.draw()).curvature, Products)


def test_several_passes_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from newton_losses.curvature import _passes

    case = Case(ripples, (3, 7))
    y, target = case.draw()
    monkeypatch.setattr(_passes, "CACHED_ELEMENTS", 2 * y.numel())
    assert_close(expand(case.loss, y, target).curvature.dense(), brute_force(case, y, target).hessian, 1e-12)


class CubeOnce(Cube):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


class CubeCut(Cube):
    """The field's usual mistake: the backward pass is computed outside the graph."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x.detach() ** 2 * grad.detach()


class CubeVectorised(torch.autograd.Function):
    """The new style, with a vmap rule but no forward-mode rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


@pytest.mark.parametrize("operator", [Cube, CubeVectorised])
@pytest.mark.parametrize("matrix_free", [False, True])
def test_reverse_over_reverse_where_there_is_no_forward_rule(operator: type, matrix_free: bool) -> None:
    y = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(y: Tensor) -> Tensor:
        return operator.apply(y).sum(1)

    for _ in range(2):  # the second call goes the remembered way
        found = expand(loss, y, matrix_free=matrix_free)
        assert_close(found.curvature.dense(), torch.diag(6 * y.mean(0)), 1e-12)
        assert_close(found.gradient, 3 * y**2, 1e-12)


@pytest.mark.parametrize("operator", [None, Cube])
def test_products_leave_out_a_sample_whose_hessian_is_not_finite(operator: type | None) -> None:
    """As the stored Hessian does; by forward mode, and by the tape where there is no rule for that."""
    y = torch.tensor([[0.0, 1.0], [2.0, 3.0], [1.0, -2.0]], dtype=torch.float64)

    def loss(y: Tensor) -> Tensor:
        kinked = y.abs().pow(1.5).sum(1)
        return kinked if operator is None else kinked + operator.apply(y).sum(1)

    stored, products = (
        newton_target(loss, y, damping=0.1, matrix_free=free, curvature="hessian") for free in (False, True)
    )
    assert stored.kept.all()
    assert products.kept.all()
    assert_close(products.curvature.dense(), stored.curvature.dense(), 1e-12)
    assert_close(products.step, stored.step, 1e-5)


def test_a_bad_sample_takes_no_part_in_a_masked_hessian() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 3, generator=generator) < 0.8

    def loss(y: Tensor, weight: Tensor) -> Tensor:
        return weight * y.pow(4).sum(1) + y.prod(1)

    weight = torch.tensor([torch.nan, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    found = expand(loss, y, weight, curvature="hessian", mask=mask).curvature
    alone = expand(loss, y[1:], weight[1:], curvature="hessian", mask=mask[1:]).curvature
    torch.testing.assert_close((found.matrix, found.pairs), (alone.matrix, alone.pairs))


def test_one_list_whose_order_has_no_meaning() -> None:
    y = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    found = expand(lambda y: y.pow(4).sum(1), y, curvature="hessian", exchangeable=True).curvature
    trace = 12 * y.square().sum()  # and the sum of all entries
    torch.testing.assert_close((found.common, found.among), (trace / 3, (trace - trace / 3) / 2))


def test_fishers_leave_out_what_is_not_kept_and_what_is_not_finite() -> None:
    for m in (2, 5):
        gradient = torch.randn(4, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        kept, value = torch.tensor([True, False, True, True]), torch.tensor([0.0, 0.0, torch.nan, 0.0])
        wanted = empirical_fisher(gradient[[0, 3]]).dense()
        torch.testing.assert_close(empirical_fisher(gradient, kept, value=value).dense(), wanted)
        gradient[2, 0] = torch.nan  # and no other number of that sample
        torch.testing.assert_close(empirical_fisher(gradient, kept, value=torch.zeros(4)).dense(), wanted)


def test_a_device_that_is_full_says_nothing_about_a_loss() -> None:
    """Another way of differentiating is not taken, and not remembered."""
    full = [True]

    def loss(y: Tensor) -> Tensor:
        if full.pop() if full else False:
            raise torch.OutOfMemoryError("full")
        assert not torch._C._are_functorch_transforms_active()  # on the tape
        return quartic(y, torch.zeros_like(y))

    with pytest.raises(torch.OutOfMemoryError):
        expand(loss, torch.ones(2, 3))
    expand(loss, torch.ones(2, 3))


@pytest.mark.parametrize("operator", [CubeOnce, CubeCut])
def test_a_missing_second_derivative_names_its_operator(operator: type) -> None:
    y = torch.ones(4, 3)

    def loss(y: Tensor) -> Tensor:
        return operator.apply(y).sum(1)

    with pytest.raises(DerivativeError, match=operator.__name__):
        expand(loss, y)
    assert_close(expand(loss, y, curvature="fisher").gradient, 3 * y**2, 1e-6)


def test_a_missing_second_derivative_is_seen_beside_terms_that_have_one() -> None:
    """torch leaves the operator's part of the Hessian out silently here: it counts as a constant."""
    with pytest.raises(DerivativeError, match="CubeOnce"):
        expand(lambda y: CubeOnce.apply(y).sum(1) + y.square().sum(1), torch.ones(4, 3))


def test_linear_loss_has_zero_hessian() -> None:
    y, weights = torch.ones(4, 3), torch.ones(3, requires_grad=True)  # a gradient that has one, though not by y
    for loss in (
        lambda y: y.sum(1),
        lambda y: Cube.apply(y).sum(1) * 0 + y.sum(1),
        lambda y: (weights * y).sum(1),
    ):
        found = expand(loss, y)
        assert found.curvature.dense().abs().sum() == 0
        assert_close(found.gradient, torch.ones(4, 3), 0)


def test_a_random_loss_draws_the_same_numbers_in_every_direction() -> None:
    def noisy(y: Tensor) -> Tensor:
        return (torch.rand(3) * y.square()).sum(1)

    torch.manual_seed(0)
    hessian = expand(noisy, torch.ones(2, 3)).curvature.dense()
    torch.manual_seed(0)
    assert_close(hessian, torch.diag(2 * torch.rand(3)), 1e-6)


def test_no_graph_is_left_behind() -> None:
    y = torch.ones(2, 3, requires_grad=True)
    found = expand(lambda y: y.pow(3).sum(1), y)
    assert not any(t.requires_grad for t in (found.value, found.gradient, found.curvature.matrix))
    assert y.grad is None


def test_two_threads_may_differentiate_at_the_same_time() -> None:
    """Without a tape the Hessian is made in forward mode, whose levels all threads of a process share."""
    case = Case(ripples, (16, 6))
    y, target = case.draw()
    step = torch.func.grad(lambda y: newton_loss(case.loss, y, target, damping=2.0, curvature="hessian"))
    wanted, found = step(y), []

    def work() -> None:
        for _ in range(15):
            found.append(step(y))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 30
    assert all(torch.equal(one, wanted) for one in found)


def test_a_curvature_is_one_kind_of_thing() -> None:
    """A form, whoever made it: the library, a loss of its own, or whoever writes an expansion."""
    y, target = Case(ripples, (5, 3)).draw()
    made = Expansion(torch.zeros(5), torch.zeros(5, 3), torch.eye(3))
    sorted_ = [SortingLoss("softsort").expand(y, target, curvature=kind) for kind in ("hessian", "fisher")]
    automatic = [expand(ripples, y, target, curvature=kind) for kind in ("hessian", "fisher")]
    for found in (made, *sorted_, *automatic):
        assert not isinstance(found.curvature, Tensor)
        dense = found.curvature.dense()
        assert_close(found.curvature.product(torch.eye(3).to(dense)), dense, 1e-12)


def test_a_stored_hessian_that_was_asked_for_is_stored_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("newton_losses.curvature._expansion.DENSE_ELEMENTS", 10)
    case = Case(ripples, (5, 3))
    assert isinstance(expand(case.loss, *case.draw()).curvature, Products)
    assert isinstance(expand(case.loss, *case.draw(), matrix_free=False).curvature, Dense)
    every = torch.ones(5, 3, dtype=torch.bool)
    assert isinstance(expand(case.loss, *case.draw(), matrix_free=False, mask=every).curvature, Masked)


@pytest.mark.parametrize("size", [1, 3, 16, 17, 40])
def test_the_scale_of_every_form_is_that_of_its_eigenvalues(size: int) -> None:
    drawn = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = drawn.mT @ drawn
    wanted = torch.linalg.eigvalsh(matrix).square().mean()
    assert_close(Dense(matrix).mean_square(), wanted, 1e-12)
    assert_close(LowRank(drawn).mean_square(), wanted, 1e-12)
    found = Products(lambda rows: rows @ matrix, size, matrix).mean_square()
    assert_close(found, wanted, 1e-12 if size <= 16 else 0.5)  # 16 probes of ±1
    # Of a multiple of the identity no probe is wrong, and no square of a float32 too large.
    assert_close(Products(lambda rows: 3 * rows, size, matrix).mean_square(), torch.tensor(9.0), 1e-12)
    large = Products(lambda rows: 1e25 * rows, size, matrix.float()).mean_square()
    assert_close(large.sqrt(), torch.tensor(1e25), 1e-6)


def test_values_are_not_asked_of_what_cannot_be_called() -> None:
    with pytest.raises(ArgumentError):
        loss_values("mse", torch.ones(2, 3))


def test_the_hessian_of_a_loss_whose_values_are_a_tensor_of_another_class() -> None:
    class Named(Tensor):
        pass

    y = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    for matrix_free in (False, True):
        found = expand(lambda y: y.pow(4).sum(1).as_subclass(Named), y, matrix_free=matrix_free).curvature.dense()
        torch.testing.assert_close(found.as_subclass(Tensor), torch.diag(torch.tensor([12.0, 48.0]).double()))
