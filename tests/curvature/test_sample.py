"""curvature="sample": each sample's own part of the empirical Fisher, against gᵢ/(λ + ‖gᵢ‖²/N) in float64."""

import math

import pytest
import torch
from torch import Tensor

import newton_losses as nl
from cases import EXACT, Case, brute_force, quartic
from newton_losses.curvature import (
    Damped,
    Expansion,
    NormalizedDamping,
    OwnParts,
    RelativeDamping,
    damped_solve,
    expand,
    newton_step,
)
from newton_losses.smoothing import SmoothedLoss
from newton_losses.sorting import SortingLoss
from operators import Operators

BATCH = NormalizedDamping()


def own_rule(_: object) -> Damped:
    return Damped(0.7, 3.0)


def name_of_rule(rule: object) -> str:
    """The same in every process, which the address of a function is not."""
    return getattr(rule, "__name__", str(rule))


DAMPINGS = [0.3, torch.tensor(0.3), RelativeDamping(2.0), BATCH, NormalizedDamping(0.1), own_rule]


def closed_form(gradient: Tensor, damping: object) -> Tensor:
    """The step of each sample, by its formula."""
    count, size = gradient.shape
    own = gradient.square().sum(1) / count
    spread, length = float((own.square().sum() / size).sqrt()), 1.0
    if callable(damping):
        number = 0.7 if not hasattr(damping, "factor") else damping.factor * spread
        length = 3.0 if not hasattr(damping, "factor") else 1.0
    else:
        number = float(damping)
    if isinstance(damping, NormalizedDamping):
        length = number / float(gradient.square().mean().sqrt())
    return length * gradient / (number + own)[:, None]


def step(gradient: Tensor, damping: object = BATCH, **options: object) -> Tensor:
    """That of a loss with these gradients."""
    y = torch.zeros_like(gradient, requires_grad=True)
    loss = nl.NewtonLoss(lambda y: (y * gradient).sum(1), "sample", damping, **options)
    loss(y).backward()
    return y.grad


@pytest.mark.parametrize("damping", DAMPINGS, ids=name_of_rule)
@pytest.mark.parametrize("case", EXACT[:16], ids=str)
def test_the_closed_form(case: Case, damping: object) -> None:
    y, target = case.draw()
    gradient = brute_force(case, y, target).gradient.reshape(len(y), -1)
    wanted = closed_form(gradient, damping).reshape(y.shape)
    y.requires_grad_()
    nl.NewtonLoss(case.loss, "sample", damping)(y, target).backward()
    torch.testing.assert_close(y.grad, wanted / len(y), rtol=1e-10, atol=1e-12)
    found = nl.newton_target(case.loss, y, target, curvature="sample", damping=damping)
    torch.testing.assert_close(found.step.reshape(y.shape), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("damping", [0.3, BATCH, RelativeDamping(2.0), own_rule], ids=name_of_rule)
def test_injected(damping: object, reduction: str) -> None:
    y, target = Case(EXACT[0].loss, (7, 3)).draw()
    y.requires_grad_()
    values = (nl.inject_fisher(y, damping, curvature="sample", reduction=reduction) - target).pow(4).sum(1)
    getattr(values, reduction)().backward()
    wanted = closed_form(4 * (y.detach() - target) ** 3, damping)
    torch.testing.assert_close(y.grad, wanted / (7 if reduction == "mean" else 1))
    module = nl.InjectFisher(damping, curvature="sample")
    assert "sample" in repr(module)
    with pytest.raises(nl.ArgumentError, match="'fisher' or 'sample'"):
        nl.inject_fisher(y, curvature="hessian")


def test_it_is_the_fisher_of_orthogonal_gradients() -> None:
    gradient = torch.diag(torch.tensor([1.0, 3.0, 0.2, 5.0], dtype=torch.float64))
    y, fisher = (torch.zeros(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    nl.NewtonLoss(lambda y: (y * gradient).sum(1), "fisher", BATCH)(fisher).backward()
    nl.NewtonLoss(lambda y: (y * gradient).sum(1), "sample", BATCH)(y).backward()
    torch.testing.assert_close(y.grad, fisher.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_scale_of_the_loss_changes_the_normalised_step(dtype: torch.dtype) -> None:
    gradient = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = step(gradient).to(dtype)
    powers = (-100, -30, 30, 100) if dtype == torch.float64 else (-30, -20, 20, 30)
    for power in powers:
        torch.testing.assert_close(step((gradient * 10.0**power).to(dtype)), wanted)
        number = 10.0 ** (2 * power)
        found = step((gradient * 10.0**power).to(dtype), number)
        torch.testing.assert_close(found.double() * 10.0**power, step(gradient, 1.0), rtol=1e-5, atol=1e-8)


def test_a_bad_sample_takes_no_part() -> None:
    gradient = torch.randn(6, 3, dtype=torch.float64)
    spoiled = torch.cat([gradient, torch.full((1, 3), math.nan, dtype=torch.float64)])
    found = step(spoiled)
    torch.testing.assert_close(found[:6], step(gradient))
    assert found[6].tolist() == [0, 0, 0]
    assert step(torch.zeros(3, 2)).tolist() == [[0, 0]] * 3
    assert step(torch.zeros(0, 2)).shape == (0, 2)


@pytest.mark.parametrize("damping", [-1.0, 0.0, math.inf])
def test_a_damping_that_is_not_positive_leaves_every_sample_out(damping: float) -> None:
    newton = nl.NewtonLoss(lambda y: y.sum(1), "sample", torch.tensor(damping), check=False, on_nonfinite="ignore")
    y = torch.zeros(3, 2, requires_grad=True)
    newton(y).backward()
    assert y.grad.abs().sum() == 0
    assert newton.skipped == 3


def test_outputs_that_do_not_exist_count_nowhere() -> None:
    """Lists of 3 and of 2 items, padded with anything, are those of their own outputs."""
    gradient = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, math.inf]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    y = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)

    def loss(y: Tensor) -> Tensor:
        return torch.where(mask, y * torch.where(mask, gradient, 0.0), 0.0).sum(1)

    nl.NewtonLoss(loss, "sample", BATCH)(y, mask=mask).backward()
    own = torch.tensor([14.0, 41.0], dtype=torch.float64) / 2
    number = (own.square().sum() / 2.5).sqrt()  # 2.5 outputs a list
    unit = math.sqrt((14 + 41) / 5)
    wanted = number / unit * torch.where(mask, gradient, 0.0) / (number + own)[:, None] / 2
    torch.testing.assert_close(y.grad, wanted)
    exchanged = y.detach().clone().requires_grad_()
    nl.NewtonLoss(loss, "sample", BATCH, exchangeable=True)(exchanged, mask=mask).backward()
    torch.testing.assert_close(exchanged.grad, y.grad)


def test_losses_that_bring_their_own_expansion() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, values = (torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    loss = SortingLoss("softsort", temperature=1.0)
    found = nl.newton_target(loss, scores, values, curvature="sample", damping=BATCH)
    torch.testing.assert_close(found.step, closed_form(loss.expand(scores, values, curvature=None).gradient, BATCH))
    for call in (lambda s: s.expand(scores, curvature="sample"), lambda s: expand(s, scores, curvature="sample")):
        smoothed = SmoothedLoss(lambda y: y.square().sum(1), num_samples=4, generator=generator.manual_seed(1))
        found = call(smoothed)
        assert isinstance(found.curvature, OwnParts)
        own = found.gradient.square().sum(1) / 6
        torch.testing.assert_close(found.curvature.mean_square(), own.square().sum() / 4)


def test_the_form_as_matrices() -> None:
    gradient, rows = torch.randn(2, 5, 3, dtype=torch.float64)
    parts = OwnParts(gradient)
    matrices = gradient[:, :, None] * gradient[:, None, :] / 5
    torch.testing.assert_close(parts.dense(), matrices.sum(0))
    torch.testing.assert_close(parts.product(rows), (matrices @ rows[:, :, None]).squeeze(-1))
    torch.testing.assert_close(parts.product(rows[:2]), rows[:2] @ matrices.sum(0))
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(
        damped_solve(parts, rows, 0.2), torch.linalg.solve(matrices + 0.2 * eye, rows[:, :, None]).squeeze(-1)
    )


def test_under_a_compiler_and_a_transform() -> None:
    gradient = torch.randn(5, 3)

    def newton(y: Tensor) -> Tensor:
        return nl.newton_loss(lambda y: (y * gradient).sum(1), y, curvature="sample")

    wanted = closed_form(gradient, BATCH) / 5
    torch.testing.assert_close(torch.func.grad(newton)(torch.zeros(5, 3)), wanted)
    compiled = torch.compile(torch.func.grad(newton), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(torch.zeros(5, 3)), wanted)


def test_any_rows_are_solved_with_each_samples_own_part() -> None:
    """Also where a gradient is zero, or small: its part is then next to nothing beside λ."""
    generator = torch.Generator().manual_seed(0)
    gradient, rows = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    gradient[0], gradient[1] = 0.0, gradient[1] / 100
    matrices = gradient[:, :, None] * gradient[:, None, :] / 4 + 0.5 * torch.eye(3, dtype=torch.float64)
    wanted = torch.linalg.solve(matrices, rows)
    torch.testing.assert_close(damped_solve(OwnParts(gradient), rows, 0.5), wanted)


def test_the_matrix_of_a_single_sample() -> None:
    assert OwnParts(torch.tensor([[3.0, 4.0]])).dense().tolist() == [[9.0, 12.0], [12.0, 16.0]]


def test_a_rule_sees_the_values_of_the_losses() -> None:
    case = Case(quartic, (4, 3))
    y, target = case.draw()
    found, wanted = (
        nl.newton_target(quartic, y, target, curvature="sample", damping=damping).step
        for damping in (lambda expansion: 1 + expansion.value.mean(), 1 + float(quartic(y, target).mean()))
    )
    torch.testing.assert_close(found, wanted)


def test_a_sample_counts_if_its_value_and_all_of_its_gradient_are_finite() -> None:
    gradient, value = torch.tensor([[1.0, torch.inf], [1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.0, torch.nan, 0.0])
    parts = OwnParts(gradient, value)
    assert parts.usable().tolist() == [False, False, True]
    assert parts.dense().tolist() == [[9.0, 12.0], [12.0, 16.0]]


def test_the_scale_of_masked_parts_is_over_the_outputs_that_exist() -> None:
    gradient = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    # Eigenvalues 5/2 and 9/2, each with N = 2 samples, over three outputs.
    assert OwnParts(gradient, mask=mask).mean_square().item() == pytest.approx((2.5**2 + 4.5**2) * 2 / 3)


@pytest.mark.parametrize("kind", ["fisher", "sample"])
def test_a_step_of_which_one_entry_is_out_of_range_is_none(kind: str) -> None:
    gradient = torch.tensor([[1e-40, 1.4e-45]])  # a step of 10⁴⁰ and 10³⁵
    found = nl.newton_target(lambda y: (y * gradient).sum(1), torch.zeros(1, 2), curvature=kind, damping=1e-100)
    assert not found.kept.any()
    assert not found.step.any()


def test_the_default_damping_of_few_samples_sees_only_the_outputs_that_exist() -> None:
    y = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).double()
    exists = torch.arange(6) < 4

    def gradient(outputs: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
        leaf = outputs.clone().requires_grad_()
        nl.NewtonLoss(lambda y: (y**4).sum(1), "sample")(leaf, **options).backward()
        assert leaf.grad is not None
        return leaf.grad

    masked = gradient(y, mask=exists.expand(3, 6))
    torch.testing.assert_close(masked[:, :4], gradient(y[:, :4]))


def test_parts_that_are_not_just_those_of_the_gradients() -> None:
    """In an expansion that somebody else made, or several processes together."""
    gradient = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    value, ones = torch.tensor([0.0, math.nan]), torch.ones(2)
    mask = torch.tensor([[True, True], [False, False]])
    sums = torch.tensor([626.0, 26.0, 8.0, 4.0], dtype=torch.float64)  # of four samples
    wanted = {
        "all": (OwnParts(gradient), [[3 / 13, 4 / 13], [0, 1]]),
        "value": (OwnParts(gradient, value), [[3 / 25.5, 4 / 25.5], [0, 0]]),
        "mask": (OwnParts(gradient, mask=mask), [[3 / 25.5, 4 / 25.5], [0, 1 / 1.5]]),
        "ranks": (OwnParts(gradient, sums=sums), [[3 / 6.75, 4 / 6.75], [0, 1 / 0.75]]),
        "half": (OwnParts(gradient.bfloat16()), [[3 / 13, 4 / 13], [0, 1]]),
        "others": (OwnParts(gradient.flip(0)), [[0, 1], [3 / 13, 4 / 13]]),
    }
    for name, (parts, rows) in wanted.items():
        own = parts.gradient if name == "half" else gradient
        found = newton_step(Expansion(ones, own, parts), 0.5).rows.float()
        digits = 1e-2 if name == "half" else 1e-6  # 8 bits, or 24
        torch.testing.assert_close(found, torch.tensor(rows), rtol=digits, atol=0)


def test_a_large_batch_on_a_cpu_takes_few_operators() -> None:
    """It is documented as the cheapest curvature: a handful of passes over the gradients, and none in float64."""
    gradient = torch.randn(2**10, 2**9, generator=torch.Generator().manual_seed(0))
    newton = nl.NewtonLoss(lambda y: (y * gradient).sum(1), "sample", check=False)
    for _ in range(2):
        y = torch.zeros_like(gradient, requires_grad=True)
        newton(y).backward()
    y = torch.zeros_like(gradient, requires_grad=True)
    with Operators(views=False) as operators:
        newton(y).backward()
    assert operators.count <= 15


@pytest.mark.parametrize(("count", "size"), [(4, 65_536), (2, 1_000_000)])
def test_sums_over_many_outputs_keep_their_digits(count: int, size: int) -> None:
    """Added up in float32 one behind the other, equal numbers lose three of them."""
    gradient = torch.full((count, size), 0.1)
    gradient[1] *= 3
    form = OwnParts(gradient)
    for damping in (0.3, BATCH):
        found = newton_step(Expansion(torch.zeros(count), gradient, form), damping).rows
        wide = gradient.double()
        exact = newton_step(Expansion(torch.zeros(count).double(), wide, OwnParts(wide)), damping).rows
        torch.testing.assert_close(found.double(), exact, rtol=2e-6, atol=0.0)
