"""Damping as a number, a tensor and a rule."""

import numpy as np
import pytest
import torch

from cases import Case, assert_close, brute_force_step, quartic, ripples
from newton_losses import ArgumentError, Expansion, NewtonLoss, NormalizedDamping, RelativeDamping, newton_target
from newton_losses.curvature import Damped, Dense, LowRank, Products


@pytest.mark.parametrize(
    "bad",
    [
        0,
        -1.0,
        float("nan"),
        float("inf"),
        "much",
        None,
        True,
        np.True_,
        torch.ones(2),
        torch.tensor(True),
        torch.tensor(1j),
    ],
)
def test_what_cannot_be_a_damping_is_refused(bad: object) -> None:
    with pytest.raises(ArgumentError, match="damping"):
        NewtonLoss(ripples, damping=bad, curvature="hessian")


@pytest.mark.parametrize("number", [2, np.float64(2), np.float32(2), np.int64(2), torch.tensor(2), torch.tensor(2.0)])
def test_any_kind_of_number_is_a_damping(number: object) -> None:
    y, target = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).double()
    wanted = newton_target(ripples, y, target, damping=2.0, curvature="hessian")
    assert_close(newton_target(ripples, y, target, damping=number, curvature="hessian").step, wanted.step, 1e-12)
    assert_close(
        newton_target(ripples, y, target, damping=lambda _: number, curvature="hessian").step, wanted.step, 1e-12
    )


@pytest.mark.parametrize("rule", [NormalizedDamping, RelativeDamping])
@pytest.mark.parametrize("number", [2, np.float64(2), np.float32(2), np.int64(2)])
def test_any_kind_of_number_is_a_factor(rule: type, number: object) -> None:
    assert (rule(number), type(rule(number).factor)) == (rule(2.0), float)


def test_numpys_number_as_a_factor_compiles() -> None:
    """It stopped torch's compiler, which takes it for an array."""
    y, target = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).double()
    newton, wanted = (
        NewtonLoss(ripples, damping=NormalizedDamping(number), value="quadratic", check=False, curvature="hessian")
        for number in (np.float32(2), 2.0)
    )
    torch._dynamo.reset()  # it compiles one function so many times and no more, whoever asks
    compiled = torch.compile(newton, fullgraph=True, backend="eager")
    assert_close(compiled(y, target), wanted(y, target), 1e-12)
    torch._dynamo.reset()


def test_a_rule_is_any_callable() -> None:
    y, target = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).double()

    def by_gradient(expansion: Expansion) -> torch.Tensor:
        return expansion.gradient.square().mean()

    found = newton_target(ripples, y, target, damping=by_gradient, curvature="hessian")
    wanted = newton_target(ripples, y, target, damping=float(found.gradient.square().mean()), curvature="hessian")
    assert_close(found.step, wanted.step, 1e-12)
    as_tensor = newton_target(ripples, y, target, damping=found.gradient.square().mean(), curvature="hessian")
    assert_close(as_tensor.step, wanted.step, 1e-12)


def test_relative_damping_is_the_root_mean_square_eigenvalue() -> None:
    factor = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = factor.mT @ factor
    wanted = 2 * torch.linalg.eigvalsh(matrix).square().mean().sqrt()
    for form in (Dense(matrix), LowRank(factor), matrix):
        assert_close(RelativeDamping(2.0)(Expansion(None, None, form)), wanted, 1e-12)
    estimate = RelativeDamping(2.0)(Expansion(None, None, Products(lambda v: v @ matrix, 5, matrix)))
    assert 0.5 < float(estimate / wanted) < 2  # eight random signs: an estimate


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_relative_damping_leaves_the_hessian_step_alone_when_the_loss_is_scaled(scale: float) -> None:
    y, target = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).double()
    plain = newton_target(ripples, y, target, damping=RelativeDamping(), curvature="hessian")
    scaled = newton_target(
        lambda y, t: scale * ripples(y, t), y, target, damping=RelativeDamping(), curvature="hessian"
    )
    assert_close(scaled.step, plain.step, 1e-10)


def test_relative_damping_without_curvature_leaves_the_step_out() -> None:
    found = newton_target(lambda y: y.sum(1), torch.ones(2, 3), damping=RelativeDamping(), curvature="hessian")
    assert not found.kept.any()
    assert found.step.abs().sum() == 0


@pytest.mark.parametrize("shape", [(3, 7), (7, 3)])
def test_a_rule_may_return_a_plain_number(shape: tuple[int, int]) -> None:
    case = Case(quartic, shape)
    y, target = case.draw()
    found = newton_target(case.loss, y, target, damping=lambda expansion: 0.7)
    assert_close(found.step, brute_force_step(case, y, target, "fisher", 0.7), 1e-10)


@pytest.mark.parametrize("length", [1.0, 2.0])
@pytest.mark.parametrize("kind", ["hessian", "fisher", "sample"])
def test_a_rule_may_return_a_length_beside_its_damping(kind: str, length: float) -> None:
    y, target = Case(quartic, (3, 7)).draw()
    found, plain = (
        newton_target(quartic, y, target, curvature=kind, damping=damping).step
        for damping in (lambda expansion: Damped(0.7, length), 0.7)
    )
    assert_close(found, length * plain, 1e-12)


def test_what_is_neither_a_number_nor_a_rule_is_told_what_there_is() -> None:
    with pytest.raises(ArgumentError, match="a rule that maps an expansion to one, got 'much'"):
        NewtonLoss(quartic, damping="much")


def test_a_group_that_cannot_be_is_refused_when_a_loss_is_made() -> None:
    with pytest.raises(ArgumentError, match="process_group"):
        NewtonLoss(quartic, process_group="everybody")
