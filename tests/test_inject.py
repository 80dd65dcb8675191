"""`inject_fisher`: the explicit z* in a backward pass, whatever scales the loss."""

import resource
import time

import pytest
import torch
from torch import Tensor
from torch.amp import GradScaler

from cases import EXACT, Case, assert_close, brute_force_step, quartic
from newton_losses import (
    ArgumentError,
    DerivativeError,
    InjectFisher,
    NormalizedDamping,
    RelativeDamping,
    inject_fisher,
    newton_target,
)

CASE = Case(quartic, (5, 3))


def injected(case: Case, y: Tensor, target: Tensor, *, factor: Tensor | float = 1.0, **options: object) -> Tensor:
    y = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(case.loss(inject_fisher(y, 0.7, **options), target).mean() * factor, y)
    return gradient


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_equals_the_explicit_target(case: Case) -> None:
    y, target = case.draw()
    found = newton_target(case.loss, y, target, curvature="fisher", damping=0.7)
    assert_close(injected(case, y, target), (y - found.target) / len(y), 1e-10)
    step = brute_force_step(case, y, target, "fisher", 0.7)
    assert_close(injected(case, y, target), step.reshape(y.shape) / len(y), 1e-10)


def test_is_the_papers_formula() -> None:
    """Algorithm 2 of the paper: g (N gᵀg + λI)⁻¹ on the gradient of a mean."""
    y, target = CASE.draw()
    leaf = y.clone().requires_grad_()
    (g,) = torch.autograd.grad(CASE.loss(leaf, target).mean(), leaf)
    wanted = g @ torch.linalg.inv(g.mT @ g * len(g) + 0.7 * torch.eye(3, dtype=torch.float64))
    assert_close(injected(CASE, y, target), wanted, 1e-10)


def test_sum_reduction() -> None:
    y, target = CASE.draw()
    y.requires_grad_()
    (gradient,) = torch.autograd.grad(CASE.loss(inject_fisher(y, 0.7, reduction="sum"), target).sum(), y)
    assert_close(gradient, brute_force_step(CASE, y.detach(), target, "fisher", 0.7), 1e-10)
    with pytest.raises(ArgumentError, match="'mean' or a 'sum'"):
        inject_fisher(y, 0.7, reduction="none")
    with pytest.raises(ArgumentError, match="process_group"):
        inject_fisher(y, 0.7, process_group="everybody")


@pytest.mark.parametrize("factor", [1e-3, 65536.0])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_scaled_loss_comes_out_as_if_unscaled(factor: float, as_tensor: bool) -> None:
    y, target = CASE.draw()
    scale = torch.tensor(factor, dtype=torch.float64) if as_tensor else factor
    assert_close(injected(CASE, y, target, factor=factor, loss_scale=scale) / factor, injected(CASE, y, target), 1e-10)


def test_grad_scaler_comes_out_as_if_unscaled() -> None:
    y, target = CASE.draw()
    scaler = GradScaler("cpu", init_scale=2.0**16)
    leaf = y.clone().requires_grad_()
    scaler.scale(CASE.loss(inject_fisher(leaf, 0.7, loss_scale=scaler), target).mean()).backward()
    assert_close(leaf.grad / 2.0**16, injected(CASE, y, target), 1e-10)


def test_grad_scaler_still_sees_an_overflow_and_skips_the_step() -> None:
    weight = torch.ones(2, 3, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), GradScaler("cpu", init_scale=2.0**16)
    y = inject_fisher(weight * 1.0, 0.7, loss_scale=scaler)
    scaler.scale((y * torch.tensor([[1.0], [torch.inf]])).sum(1).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert_close(weight, torch.ones(2, 3), 0)
    assert scaler.get_scale() < 2.0**16


def test_forward_is_the_identity_and_evaluation_costs_nothing() -> None:
    y = torch.randn(4, 3)
    module = InjectFisher(0.1)
    with torch.no_grad():
        assert torch.equal(module(y), y)
    assert not module(y).requires_grad
    assert module.state_dict() == {}


@pytest.mark.parametrize(("damping", "dtype"), [(0.7, torch.float64), ("auto", torch.float32)])
def test_a_second_derivative_is_refused(damping: float | str, dtype: torch.dtype) -> None:
    """What leaves is cut from the graph: it would be silently wrong."""
    y, target = Case(quartic, (5, 3), dtype).draw()
    y.requires_grad_()
    (gradient,) = torch.autograd.grad(quartic(inject_fisher(y, damping), target).mean(), y, create_graph=True)
    quartic(inject_fisher(y, damping), target).mean().backward()
    assert_close(gradient, y.grad, 0 if dtype == torch.float64 else 1e-6)
    with pytest.raises(DerivativeError, match="inject_fisher"):
        gradient.square().sum().backward()
    # Behind a linear loss nothing that arrives depends on anything: the second derivative is zero, and right.
    (gradient,) = torch.autograd.grad(inject_fisher(y, damping).sum(), y, create_graph=True)
    assert not gradient.requires_grad


def test_module_counts_the_samples_that_it_leaves_out() -> None:
    module = InjectFisher(0.7)
    y, target = CASE.draw()
    wanted = injected(CASE, y[:4], target[:4])
    leaf = y.clone().requires_grad_()
    values = CASE.loss(module(leaf), target)
    (values * torch.tensor([1, 1, 1, 1, torch.nan])).mean().backward()
    assert int(module.skipped) == 1
    assert leaf.grad[4].abs().sum() == 0
    assert_close(leaf.grad[:4], wanted, 1e-10)


def test_large_outputs_stay_small_in_memory_and_time() -> None:
    """m = 100,000 and N = 64: an m×m matrix would take 40 GB.

    The time is that of the processor, on one thread: other processes on the machine do not count.
    """
    y = torch.randn(64, 100_000, generator=torch.Generator().manual_seed(0), requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    inject_fisher(y, 0.1).square().sum(1).mean().backward()
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    assert grown < 1.0, f"{grown:.2f} GiB"
    assert seconds < 1.0, f"{seconds:.2f} s"


def test_a_damping_in_a_float32_tensor_costs_a_float64_step_no_digits():
    found = []
    for damping in (torch.tensor(2337.8088), float(torch.tensor(2337.8088))):
        y = torch.tensor([[-0.8], [0.3], [-0.2]], dtype=torch.float64, requires_grad=True)
        inject_fisher(y, damping).square().sum(1).mean().backward()
        found.append(y.grad)
    torch.testing.assert_close(*found, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_scale_in_a_tensor_costs_a_float64_step_no_digits(dtype: torch.dtype, reduction: str) -> None:
    found = []
    for scale in (torch.tensor(3, dtype=dtype), 3.0):
        y = torch.tensor([[-0.8], [0.3], [-0.2], [0.7]], dtype=torch.float64, requires_grad=True)
        injected_y = inject_fisher(y, 0.7, loss_scale=scale, reduction=reduction)
        (3 * getattr(injected_y.square().sum(1), reduction)()).backward()
        found.append(y.grad)
    torch.testing.assert_close(*found, rtol=1e-14, atol=0)


def test_a_scale_in_a_tensor_is_a_scale_in_every_batch() -> None:
    """The second batch is measured in the unit of the first, whichever way it goes."""
    y, target = CASE.draw()
    modules = InjectFisher(loss_scale=2.0), InjectFisher(loss_scale=torch.tensor(2.0, dtype=torch.float64))
    for size in (1.0, 3.0):
        found = []
        for module in modules:
            leaf = (size * y).requires_grad_()
            (2 * CASE.loss(module(leaf), target).mean()).backward()
            found.append(leaf.grad)
        assert_close(found[1], found[0], 1e-12)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_without_a_scaler_a_bad_sample_gets_nothing(as_tensor: bool) -> None:
    y, target = CASE.draw()
    wanted = injected(CASE, y[:4], target[:4])
    leaf = y.clone().requires_grad_()
    injected_y = inject_fisher(leaf, 0.7, loss_scale=torch.ones((), dtype=torch.float64) if as_tensor else 1.0)
    # A mean over five, of which four remain.
    (CASE.loss(injected_y, target) * torch.tensor([1, 1, 1, 1, torch.nan])).mean().backward()
    assert not leaf.grad[4].any()
    assert_close(leaf.grad[:4], wanted, 1e-10)


def test_one_output_of_one_sample_is_a_batch() -> None:
    """Also with a rule that takes the long way."""
    y = torch.full((1, 1), 2.0, requires_grad=True)
    (3 * inject_fisher(y, lambda _: 0.5)).sum().backward()
    torch.testing.assert_close(y.grad, torch.tensor([[3 / (3**2 + 0.5)]]))


@pytest.mark.parametrize("options", [{}, {"loss_scale": 0.25}, {"curvature": "sample"}, {"damping": 0.7}], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(8, 3), (3, 8)])
def test_float32_gets_the_step_of_float64(shape: tuple[int, int], reduction: str, options: dict[str, object]) -> None:
    """The default in float32 takes the shortest way on a CPU; float64 does not, nor does anything but the default."""
    y = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for dtype in (torch.float32, torch.float64):
        leaf = y.to(dtype).requires_grad_()
        getattr(inject_fisher(leaf, reduction=reduction, **options).pow(4).sum(1), reduction)().backward()
        found.append(leaf.grad.double())
    assert_close(found[0], found[1], 1e-5)


@pytest.mark.parametrize("curvature", ["fisher", "sample"])
@pytest.mark.parametrize("damping", ["auto", NormalizedDamping(), RelativeDamping(), 0.7], ids=str)
@pytest.mark.parametrize("build", [inject_fisher, lambda y, damping, **options: InjectFisher(damping, **options)(y)])
def test_a_loss_multiplied_by_a_negative_number_goes_uphill(build, damping: object, curvature: str) -> None:
    y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    found = []
    for scale in (2.0, -2.0):
        leaf = y.clone().requires_grad_()
        (scale * build(leaf, damping, loss_scale=scale, curvature=curvature).pow(4).sum(1).mean()).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[0], -found[1])
    assert float((found[0] * y).sum()) > 0
