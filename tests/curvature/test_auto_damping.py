"""`damping="auto"`: nothing changes when the loss is multiplied by a constant, whatever form the curvature has."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cases import EXACT, LOSSES, SINGLE, Case, assert_close, brute_force, log_sum_exp, mse, quartic, ripples
from newton_losses import ArgumentError, Expansion, InjectFisher, NewtonLoss, inject_fisher, newton_loss, newton_target
from newton_losses.curvature import Damped, Dense, LowRank, NormalizedDamping, Products, newton_step
from newton_losses.sorting import SortingLoss

SCALES = st.floats(-6, 6).map(lambda power: 10.0**power)
KINDS = ("hessian", "fisher")
# Of one output alone, a loss that is invariant to shifts has no gradient at all.
SLOPED = [case for case in EXACT if case.loss is not log_sum_exp or (len(case.shape) > 1 and case.shape[1] > 1)]


def scaled(loss: Callable[..., Tensor], scale: float) -> Callable[..., Tensor]:
    return lambda y, target: scale * loss(y, target)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", SLOPED, ids=str)
def test_the_formula(case: Case, kind: str) -> None:
    """(|C|/λ + I)⁻¹∇ℓᵢ/ρ with ρ² the mean square of the gradient, by eigenvectors.

    λ = ‖C‖_F/√m, and of the empirical Fisher, which has no more than N eigenvalues, ‖C‖_F/√min(N, m).
    """
    y, target = case.draw()
    found = brute_force(case, y, target)
    values, vectors = torch.linalg.eigh(getattr(found, kind))
    rank = min(len(y), len(values)) if kind == "fisher" else len(values)
    damping = (values.square().sum() / rank).sqrt()
    wanted = (
        found.gradient @ vectors / (values.abs() / damping + 1) @ vectors.mT / found.gradient.square().mean().sqrt()
    )
    assert_close(newton_target(case.loss, y, target, curvature=kind, damping="auto").step, wanted, 1e-9)


@settings(max_examples=30, deadline=None)
@given(scale=SCALES, case=st.sampled_from(EXACT), kind=st.sampled_from(KINDS), seed=st.integers(0, 1000))
def test_a_scaled_loss_makes_the_same_step(scale: float, case: Case, kind: str, seed: int) -> None:
    y, target = case.draw(seed)
    plain = newton_target(case.loss, y, target, curvature=kind, damping="auto")
    other = newton_target(scaled(case.loss, scale), y, target, curvature=kind, damping="auto")
    assert_close(other.step, plain.step, 1e-11)


@settings(max_examples=30, deadline=None)
@given(scale=SCALES, case=st.sampled_from(SINGLE), kind=st.sampled_from(KINDS), seed=st.integers(0, 1000))
def test_a_scaled_loss_makes_the_same_step_in_float32(scale: float, case: Case, kind: str, seed: int) -> None:
    y, target = case.draw(seed)
    plain = newton_target(case.loss, y, target, curvature=kind, damping="auto")
    other = newton_target(scaled(case.loss, scale), y, target, curvature=kind, damping="auto")
    # Rounding the scaled gradient and Hessian: a few units in the last place of float32, times a condition below 10.
    assert_close(other.step, plain.step, 1e-5)


@settings(max_examples=20, deadline=None)
@given(scale=SCALES, loss=st.sampled_from((mse, quartic, log_sum_exp)), seed=st.integers(0, 1000))
def test_a_scaled_loss_makes_the_same_step_by_products(scale: float, loss: Callable[..., Tensor], seed: int) -> None:
    """The scale of products is an estimate, but the same one; the iterative solver stops at 1e-6."""
    y, target = Case(loss, (5, 6)).draw(seed)
    plain = newton_target(loss, y, target, damping="auto", matrix_free=True, curvature="hessian")
    other = newton_target(scaled(loss, scale), y, target, damping="auto", matrix_free=True, curvature="hessian")
    assert_close(other.step, plain.step, 1e-5)


@settings(max_examples=30, deadline=None)
@given(
    scale=SCALES,
    loss=st.sampled_from(LOSSES),
    shape=st.sampled_from([(7, 3), (3, 7), (4, 2, 3)]),
    reduction=st.sampled_from(["mean", "sum"]),
)
def test_a_scaled_loss_sends_the_same_gradient_back_through_an_injection(
    scale: float, loss: Callable[..., Tensor], shape: tuple[int, ...], reduction: str
) -> None:
    y, target = Case(loss, shape).draw()
    y.requires_grad_()

    def gradient(factor: float) -> Tensor:
        losses = loss(inject_fisher(y, "auto", reduction=reduction), target)
        return torch.autograd.grad(factor * getattr(losses, reduction)(), y)[0]

    assert_close(gradient(scale), gradient(1.0), 1e-11)


@settings(max_examples=15, deadline=None)
@given(
    scale=SCALES, name=st.sampled_from(["neuralsort", "softsort", "logistic", "cauchy"]), kind=st.sampled_from(KINDS)
)
def test_a_scaled_sorting_loss(scale: float, name: str, kind: str) -> None:
    """Losses with their own expansion, multiplied on the outside."""
    scores, values = Case(mse, (20, 5)).draw()
    loss = SortingLoss(name, temperature=1.0) if name.endswith("sort") else SortingLoss(name, steepness=10.0)

    def gradient(factor: float) -> Tensor:
        y = scores.clone().requires_grad_()
        newton = newton_loss(lambda y, v: factor * loss(y, v), y, values, curvature=kind, damping="auto")
        return torch.autograd.grad(newton, y)[0]

    assert_close(gradient(scale), gradient(1.0), 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_function_module_and_target_agree(kind: str) -> None:
    y, target = Case(ripples, (7, 3)).draw()
    wanted = newton_target(ripples, y, target, curvature=kind, damping="auto").step / len(y)
    for newton in (
        NewtonLoss(ripples, kind, "auto"),
        lambda y, t: newton_loss(ripples, y, t, curvature=kind, damping="auto"),
        NewtonLoss(ripples, kind, NormalizedDamping(1.0), spectrum="absolute"),
    ):
        leaf = y.clone().requires_grad_()
        newton(leaf, target).backward()
        assert_close(leaf.grad, wanted, 1e-12)


def test_the_injected_form_is_that_of_the_fisher() -> None:
    y, target = Case(ripples, (7, 3)).draw()
    leaf = y.clone().requires_grad_()
    ripples(InjectFisher("auto")(leaf), target).mean().backward()
    wanted = newton_target(ripples, y, target, curvature="fisher", damping="auto").step / len(y)
    assert_close(leaf.grad, wanted, 1e-12)
    assert repr(InjectFisher("auto")) == "InjectFisher(damping='auto')"


def test_all_forms_of_a_curvature_give_one_step() -> None:
    factor = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = factor.mT @ factor
    gradient = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    forms = (matrix, Dense(matrix), Dense(matrix, semidefinite=True), LowRank(factor))
    steps = [newton_step(Expansion(torch.zeros(4), gradient, form), NormalizedDamping()).rows for form in forms]
    for step in steps[1:]:
        assert_close(step, steps[0], 1e-12)
    # By products, λ is an estimate: with it the step is exact.
    products = Expansion(torch.zeros(4), gradient, Products(lambda v: v @ matrix, 3, matrix))
    damping, length = NormalizedDamping()(products)
    wanted = newton_step(Expansion(torch.zeros(4), gradient, matrix), damping).rows * length
    assert_close(newton_step(products, NormalizedDamping()).rows, wanted, 1e-6)


def test_negative_eigenvalues_lose_their_sign_unless_told_otherwise() -> None:
    y = torch.ones(1, 1, dtype=torch.float64)
    steps = {
        spectrum: float(
            newton_target(lambda y: -y.square().sum(1), y, damping="auto", spectrum=spectrum, curvature="hessian").step
        )
        for spectrum in (None, "absolute", "clip")
    }
    assert steps[None] == steps["absolute"] == pytest.approx(-0.5)  # ∇ℓ/ρ = −1, |C|/λ = 1
    assert steps["clip"] == pytest.approx(-1.0)
    raw = newton_target(lambda y: -y.square().sum(1), y, damping="auto", spectrum="raw", curvature="hessian")
    assert not raw.kept.any()  # C + λ = 0


def test_without_curvature_the_step_is_the_normalised_gradient() -> None:
    found = newton_target(lambda y: 3e-7 * y.sum(1), torch.ones(2, 3), damping="auto", curvature="hessian")
    assert found.kept.all()
    assert_close(found.step, torch.ones(2, 3), 1e-6)


def test_without_a_gradient_there_is_no_step_and_nothing_is_skipped() -> None:
    y = torch.zeros(2, 3, requires_grad=True)
    newton = NewtonLoss(lambda y: y.square().sum(1), damping="auto", check=False, curvature="hessian")
    newton(y).backward()
    assert y.grad.abs().sum() == 0
    assert int(newton.skipped) == 0


def test_a_sample_that_is_not_finite_has_no_say() -> None:
    y, target = Case(quartic, (7, 3)).draw()
    wanted = newton_target(quartic, y[1:], target[1:], damping="auto", curvature="hessian").step
    target[0] = torch.nan
    found = newton_target(quartic, y, target, damping="auto", curvature="hessian")
    assert found.kept.tolist() == [False] + 6 * [True]
    assert_close(found.step[1:], wanted, 1e-12)


def test_the_rule_itself_counts_finite_samples_alone() -> None:
    gradient = torch.tensor([[3.0, 4.0], [torch.nan, 1.0], [1.0, 2.0]])
    found = NormalizedDamping()(Expansion(torch.zeros(3), gradient, torch.eye(2)))
    assert found == NormalizedDamping()(Expansion(torch.zeros(2), gradient[::2], torch.eye(2)))
    assert NormalizedDamping()(Expansion(torch.full((3,), torch.nan), gradient, torch.eye(2))) == (1.0, 1.0)


@pytest.mark.parametrize("damping", ["auto", NormalizedDamping()], ids=str)
@pytest.mark.parametrize("kind", [*KINDS, "sample"])
def test_a_mask_that_hides_nothing_changes_nothing(kind: str, damping: object) -> None:
    for shape in ((3, 1), (2, 5), (5, 2)):
        y = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        steps = []
        for mask in (None, torch.ones(shape, dtype=torch.bool)):
            leaf = y.clone().requires_grad_()
            NewtonLoss(lambda y: y.pow(4).sum(1), kind, damping)(leaf, mask=mask).backward()
            steps.append(leaf.grad)
        torch.testing.assert_close(*steps)


def test_tiny_and_huge_losses_in_float32() -> None:
    """The squares of such curvatures are beyond float32."""
    y, target = Case(quartic, (7, 3), torch.float32).draw()
    plain = newton_target(quartic, y, target, damping="auto", curvature="hessian").step
    for scale in (1e-25, 1e25):
        assert_close(
            newton_target(scaled(quartic, scale), y, target, damping="auto", curvature="hessian").step, plain, 1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_compiles_without_a_graph_break(kind: str) -> None:
    y, target = Case(ripples, (7, 3)).draw()
    newton = NewtonLoss(ripples, kind, "auto", check=False)

    def gradient(function: Callable[..., Tensor]) -> Tensor:
        leaf = y.clone().requires_grad_()
        function(leaf, target).backward()
        return leaf.grad

    assert_close(gradient(torch.compile(newton, fullgraph=True, backend="eager")), gradient(newton), 1e-12)


def test_a_rule_may_give_a_length() -> None:
    y, target = Case(ripples, (7, 3)).draw()
    plain = newton_target(ripples, y, target, damping=2.0, curvature="hessian").step
    assert_close(
        newton_target(ripples, y, target, damping=lambda _: Damped(2.0, 3.0), curvature="hessian").step,
        3 * plain,
        1e-12,
    )
    with pytest.raises(ArgumentError, match="damping"):
        newton_target(ripples, y, target, damping=lambda _: Damped(2.0, -3.0), curvature="hessian")


def test_a_rule_made_from_this_one_is_asked() -> None:
    class Softer(NormalizedDamping):
        def __call__(self, expansion: Expansion) -> Damped:
            damping, length = super().__call__(expansion)
            return Damped(damping, length / 2)

    y, target = Case(ripples, (7, 3)).draw()
    step, softer = (
        newton_target(ripples, y, target, damping=rule, curvature="hessian").step for rule in ("auto", Softer())
    )
    assert_close(softer, step / 2, 1e-12)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan")])
def test_a_factor_is_positive(bad: float) -> None:
    with pytest.raises(ArgumentError, match="factor"):
        NormalizedDamping(bad)


def test_training_does_not_depend_on_the_unit_of_the_loss() -> None:
    """Ten steps of gradient descent, which unlike Adam forgives no factor."""
    x = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def trained(scale: float, kind: str) -> Tensor:
        network = nn.Linear(4, 3, dtype=torch.float64)
        with torch.no_grad():
            network.weight.copy_(torch.linspace(-1, 1, 12).reshape(3, 4))
            network.bias.zero_()
        newton = NewtonLoss(scaled(quartic, scale), kind, "auto")
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(10):
            optimizer.zero_grad()
            newton(network(x), torch.ones(20, 3, dtype=torch.float64)).backward()
            optimizer.step()
        return network.weight

    for kind in KINDS:
        assert_close(trained(1e-6, kind), trained(1e6, kind), 1e-9)
