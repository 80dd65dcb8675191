"""The Fisher of lists in its short forms, NumPy's and Triton's, against its operators and against the matrix itself."""

import itertools
import math

import pytest
import torch

import newton_losses as nl
from newton_losses.curvature import Expansion, RelativeDamping, exchangeable_fisher, newton_step
from newton_losses.curvature._step import _by_operators
from operators import Operators
from triton_interpreter import DEVICE, on_cuda_alone, run_interpreted

DAMPINGS = [0.1, RelativeDamping(0.5), nl.NormalizedDamping(2.0)]


@pytest.mark.slow
def test_in_the_interpreter():
    run_interpreted(__file__)


def spread(y, mask=None):
    """A loss of lists that is not blind to their mean; what does not exist has no part in it."""
    cubes = (y - 0.3).abs().pow(3)
    return (cubes if mask is None else torch.where(mask, cubes, 0.0)).sum(1)


def lists(samples, outputs, *, masked, dtype=torch.float64):
    generator = torch.Generator().manual_seed(samples + outputs)
    y = torch.randn(samples, outputs, generator=generator, dtype=dtype)
    mask = torch.rand(samples, outputs, generator=generator) < 0.7 if masked else None
    if mask is not None:
        mask[0] = False  # an empty list
    return y, mask


def gradients(samples, outputs, *, masked, dtype=torch.float64):
    y, mask = lists(samples, outputs, masked=masked, dtype=dtype)
    gradient = 3 * (y - 0.3).abs() * (y - 0.3)
    return (gradient if mask is None else torch.where(mask, gradient, 0.0)), mask


@pytest.mark.parametrize("damping", [*DAMPINGS, "auto"], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_a_bad_sample_goes_another_way_to_the_same_step(damping, masked):
    """With one, operators do the work; without, NumPy does."""
    y, mask = lists(7, 5, masked=masked)
    bad = torch.cat([y, torch.full((1, 5), torch.inf)])
    bad_mask = None if mask is None else torch.cat([mask, torch.ones(1, 5, dtype=torch.bool)])
    found = []
    for outputs, exists in ((y, mask), (bad, bad_mask)):
        newton = nl.NewtonLoss(spread, damping=damping, exchangeable=True, on_nonfinite="ignore", check=False)
        for _ in range(3):  # the first one sets the unit
            outputs = outputs.clone().requires_grad_()
            (step,) = torch.autograd.grad(newton(outputs, mask=exists) if masked else newton(outputs), outputs)
        found.append(step[:7])
        assert newton.skipped == 3 * (len(outputs) - 7)
    assert torch.isfinite(found[0]).all()
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=0)


def test_both_infinities_in_one_list_are_no_warning_of_numpy():
    """A warning is an error in these tests."""

    def loss(y):
        return y[:, 0].sqrt() - y[:, 1].sqrt() + y[:, 2]  # at zero, slopes of ∞ and −∞

    newton = nl.NewtonLoss(loss, exchangeable=True, check=False, on_nonfinite="ignore")
    for lowest in (1.0, 1.0, 0.0):
        y = torch.ones(4, 3)
        y[1] = lowest
        newton(y.requires_grad_()).backward()
    assert y.grad.isfinite().all()
    assert newton.skipped == 1


@pytest.mark.parametrize("outputs", [1, 2, 6])
def test_equal_to_the_matrix_averaged_over_all_orders(outputs):
    gradient, _ = gradients(8, outputs, masked=False)
    average = torch.zeros(outputs, outputs, dtype=torch.float64)
    orders = list(itertools.permutations(range(outputs)))
    for order in orders:
        turned = gradient[:, order]
        average += turned.mT @ turned / len(gradient) / len(orders)
    expansion = Expansion(torch.zeros(8).double(), gradient, exchangeable_fisher(gradient))
    wanted = torch.linalg.solve(average + 0.1 * torch.eye(outputs, dtype=torch.float64), gradient.mT).mT
    torch.testing.assert_close(newton_step(expansion, 0.1).rows, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("algorithm", ["softsort", "neuralsort", "logistic", "cauchy"])
def test_a_sorting_loss_gets_its_gradient_times_one_number(algorithm):
    """A shift of all scores changes nothing, so only one eigenvalue acts: to Adam the default is the plain loss."""
    loss = nl.sorting.SortingLoss(algorithm)
    scores, values = torch.randn(2, 20, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores.requires_grad_()
    (plain,) = torch.autograd.grad(loss(scores, values).mean(), scores)
    newton = nl.NewtonLoss(loss)
    for _ in range(2):
        (step,) = torch.autograd.grad(newton(scores, values), scores)
        torch.testing.assert_close(step, plain * (step.norm() / plain.norm()), rtol=1e-9, atol=1e-12)


def test_lists_cost_no_more_operators_than_the_fisher():
    def counted(**options):
        newton, outputs = nl.NewtonLoss(spread, **options), torch.randn(8, 5).requires_grad_()
        for _ in range(3):
            newton(outputs).backward()
        with Operators() as operators:
            newton(outputs).backward()
        return operators.count

    assert counted(exchangeable=True) <= counted() + 2


@pytest.mark.parametrize("damping", [0.1, RelativeDamping(0.5)], ids=str)
def test_samples_that_are_not_kept_have_no_say(damping):
    gradient, _ = gradients(7, 4, masked=False)
    kept, value = torch.arange(7) != 2, torch.zeros(7).double()
    for fisher in (exchangeable_fisher(gradient, kept), exchangeable_fisher(gradient, kept, value=value)):
        torch.testing.assert_close(fisher.dense(), exchangeable_fisher(gradient[kept]).dense())
        wanted = Expansion(value[kept], gradient[kept], exchangeable_fisher(gradient[kept]))
        found = newton_step(Expansion(value, gradient, fisher), damping).rows[kept]
        torch.testing.assert_close(found, newton_step(wanted, damping).rows, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("damping", [*DAMPINGS, "auto"], ids=str)
def test_a_gradient_of_what_does_not_exist_is_none(damping):
    """A loss that brings its own expansion need not know about the mask."""

    class Own:
        def expand(self, y, *, curvature, mask):
            gradient = 3 * (y - 0.3).abs() * (y - 0.3)
            return Expansion(spread(y), gradient, gradient.mT @ gradient / len(y) if curvature else None)

    y, mask = lists(7, 5, masked=True)
    found = []
    for loss in (Own(), spread):
        newton = nl.NewtonLoss(loss, damping=damping, exchangeable=True, check=False)
        for _ in range(2):
            leaf = y.clone().requires_grad_()
            newton(leaf, mask=mask).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-13)
    assert not found[0][~mask].any()


def test_nothing_is_made_until_somebody_looks():
    gradient, _ = gradients(4, 3, masked=False)
    fisher = exchangeable_fisher(gradient)
    assert "among" not in vars(fisher)
    assert fisher.among > 0
    assert {"among", "common", "lists", "freedom"} <= vars(fisher).keys()
    with pytest.raises(AttributeError, match="beyond"):
        fisher.beyond  # noqa: B018


CASES = list(itertools.product([(1, 1), (5, 3), (40, 10), (3, 300)], [False, True], [*DAMPINGS, math.nan]))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter is NumPy, which warns about what is not finite
@pytest.mark.parametrize(("shape", "masked", "damping"), CASES, ids=[str(i) for i in range(len(CASES))])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_kernel_equals_the_operators(shape, masked, damping, dtype):
    from newton_losses.curvature._fisher import _plan
    from newton_losses.curvature._lists_triton import launch_lists

    gradient, mask = gradients(*shape, masked=masked, dtype=dtype)
    value = gradient.square().sum(1)
    if len(value) > 3:
        gradient[1, 0], value[2] = torch.inf, torch.nan
    damping = torch.tensor(damping) if isinstance(damping, float) and math.isnan(damping) else damping
    expansion = Expansion(value, gradient, exchangeable_fisher(gradient, mask=mask, value=value))
    wanted = _by_operators(expansion, damping, "raw", True)
    plan, counter = _plan(damping), torch.zeros((), dtype=torch.int64, device=DEVICE)
    there = [None if one is None else one.to(DEVICE) for one in (gradient, value, mask, plan.tensor)]
    rule = plan.number, plan.factor, plan.normalized
    unit = torch.tensor(0.5, dtype=dtype, device=DEVICE)
    rows, kept, numbers = launch_lists(*there, *rule, True, counter, unit)
    digits = {"rtol": 1e-11, "atol": 1e-15} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(rows.cpu(), wanted.rows * 0.5, **digits)
    assert torch.equal(kept.cpu(), wanted.kept)
    assert counter.item() == (~wanted.kept).sum()
    torch.testing.assert_close(numbers[0].cpu(), wanted.count)
    usable = value[value.isfinite()]
    torch.testing.assert_close(numbers[1].cpu(), usable.mean(), rtol=1e-6, atol=0)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("factor", [0.0, 1e-90, 1e90])
def test_the_kernel_takes_gradients_of_any_size_however_they_are_stored(factor):
    from newton_losses.curvature._lists_triton import launch_lists

    gradient, mask = gradients(5, 3, masked=True)
    value, rule = torch.zeros(5).double(), nl.NormalizedDamping(2.0)
    usual = newton_step(Expansion(value, gradient, exchangeable_fisher(gradient, mask=mask)), rule)
    there = ((factor * gradient).mT.contiguous().mT.to(DEVICE), value.to(DEVICE), mask.mT.contiguous().mT.to(DEVICE))
    rows, kept, _ = launch_lists(*there, None, 0.0, rule.factor, True, False, None, None)
    wanted = usual.rows if factor else torch.zeros_like(gradient)  # in their own unit, gradients have no size
    torch.testing.assert_close(rows.cpu(), wanted, rtol=1e-10, atol=1e-13)
    assert kept.all()


@pytest.mark.gpu
@on_cuda_alone
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
@pytest.mark.parametrize("masked", [False, True])
def test_lists_on_a_gpu_add_a_few_kernels(masked):
    y, mask = lists(32, 10, masked=masked, dtype=torch.float32)
    there, named = y.cuda(), {} if mask is None else {"mask": mask.cuda()}
    steps = {}
    for device, outputs, options in (("cpu", y, {} if mask is None else {"mask": mask}), ("cuda", there, named)):
        newton = nl.NewtonLoss(spread, exchangeable=True).to(device)
        for _ in range(3):
            leaf = outputs.clone().requires_grad_()
            (steps[device],) = torch.autograd.grad(newton(leaf, **options), leaf)
    torch.testing.assert_close(steps["cuda"].cpu(), steps["cpu"], rtol=1e-4, atol=1e-6)

    def launched(loss):
        leaf = there.clone().requires_grad_()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            loss(leaf, **named).mean().backward()
            torch.cuda.synchronize()
        kernels = (event for event in profile.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)
        return [event.key for event in kernels for _ in range(event.count)]

    with_newton, plain = launched(newton), launched(spread)
    # The unit, the step, and the product on the way back; and zeros for what does not exist, in two: torch fills a
    # tensor with the number 0 before it chooses.
    assert len(with_newton) <= len(plain) + (6 if masked else 4), f"{with_newton} beside {plain}"


@pytest.mark.parametrize("exchangeable", [False, True])
@pytest.mark.parametrize("padding", [0.0, 100.0])
def test_a_loss_that_forgets_its_mask_leaks_nothing_into_the_step(padding, exchangeable):
    """Gradients of outputs that do not exist, which are infinite here at 0, count neither in C, λ nor ρ."""
    y, mask = lists(16, 5, masked=True)

    def leaking(y):
        return spread(y, mask) + torch.where(mask, 0.0, y.abs().sqrt()).sum(1)

    options = {"curvature": "fisher", "exchangeable": exchangeable, "mask": mask}
    wanted = nl.newton_target(spread, y, mask, **options).step
    found = nl.newton_target(leaking, torch.where(mask, y, padding), **options).step
    assert (found[~mask] == 0).all()
    torch.testing.assert_close(found[mask], wanted[mask], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_a_list_of_one_item_has_no_difference_for_a_small_damping_to_enlarge(masked: bool) -> None:
    """(F + λI)⁻¹g = g/(F + λ), as without `exchangeable`, where g/λ has no digit of it."""
    y = torch.tensor([[300.0, 0.0], [100.0, 0.0], [-200.0, 0.0]])[:, : 2 if masked else 1].requires_grad_()
    mask, found = (torch.tensor([[True, False]]).expand(3, 2) if masked else None), []
    for exchangeable in (True, False):
        newton = nl.NewtonLoss(lambda y: 1e4 * y.square().sum(1), damping=1e-3, exchangeable=exchangeable, check=False)
        found.append(torch.autograd.grad(newton(y) if mask is None else newton(y, mask=mask), y)[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=0)
