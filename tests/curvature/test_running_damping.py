"""damping="auto" with a memory: the optimum stays where it is, steps shrink near it, and one sample stills no other."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import newton_losses as nl
from cases import Case, quartic, ripples
from newton_losses.curvature import (
    Dense,
    Expansion,
    NormalizedDamping,
    RunningDamping,
    empirical_fisher,
    exchangeable_fisher,
    newton_step,
    settle,
)
from newton_losses.curvature import _running as running
from triton_interpreter import DEVICE, run_interpreted

KINDS = ("hessian", "fisher")


def steps(loss: object, y: Tensor, batches: list[Tensor], **options: object) -> list[Tensor]:
    """The gradients that one module sends back for outputs `y` `(m,)` that all samples share, batch after batch."""
    newton = nl.NewtonLoss(loss, check=False, **options)
    found = []
    for batch in batches:
        outputs = y.expand(len(batch), -1).clone().requires_grad_()
        found.append(torch.autograd.grad(newton(outputs, batch), outputs)[0])
    return found


def pull(loss: object, y: Tensor, population: Tensor, size: int, **options: object) -> float:
    """What an epoch in batches of `size` sums to at `y`, over the sum of the lengths; 0 at a fixed point."""
    batches = list(population.split(size))
    known = max(1, 100 // len(batches))
    found = steps(loss, y, (known + 1) * batches, **options)[known * len(batches) :]
    found = torch.stack([step.sum(0) * len(step) for step in found])
    return float(found.sum(0).norm() / found.norm(dim=1).sum())


def cross_entropy(y: Tensor, target: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(y, target, reduction="none").sum(1)


@pytest.mark.parametrize("share", [0.7, 0.85])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 32])
def test_the_optimum_of_an_intercept_does_not_depend_on_the_batch_size(size: int, share: float) -> None:
    """A logistic regression without inputs: at the share of ones all gradients cancel."""
    generator = torch.Generator().manual_seed(0)
    ones = (torch.randperm(160, generator=generator) < 160 * share).double()[:, None]
    best = torch.tensor([share], dtype=torch.float64).logit()
    for kind in KINDS if size == 4 else KINDS[1:]:
        assert pull(cross_entropy, best, ones, size, curvature=kind) < 0.01
    # The rule of each batch alone has its fixed point elsewhere, or none.
    if size <= 8:
        assert pull(cross_entropy, best, ones, size, curvature="fisher", damping=NormalizedDamping()) > 0.05


@pytest.mark.parametrize("size", [1, 8])
def test_the_optimum_of_a_noisy_quadratic_stays(size: int) -> None:
    """Skewed noise around a minimum with eigenvalues from 0.1 to 10."""
    scales = torch.logspace(-1, 1, 6, dtype=torch.float64)
    noise = torch.empty(128, 6, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(0))
    noise = noise - noise.mean(0)

    def loss(y: Tensor, centre: Tensor) -> Tensor:
        return (scales * (y - centre).square()).sum(1) / 2

    at = torch.zeros(6, dtype=torch.float64)
    # ρ drifts by a per cent in an epoch of this length.
    assert pull(loss, at, noise, size, curvature="hessian") < 0.02
    assert pull(loss, at, noise, size, curvature="hessian", damping=NormalizedDamping()) > 0.1


@pytest.mark.parametrize("kind", [*KINDS, "sample"])
def test_near_a_minimum_steps_shrink(kind: str) -> None:
    """So that Adam at a constant rate arrives."""
    scales = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)

    def ends(damping: object) -> float:
        y = torch.ones(1, 3, dtype=torch.float64, requires_grad=True)
        newton = nl.NewtonLoss(lambda y: (scales * y.square()).sum(1), kind, damping, check=False)
        optimizer = torch.optim.Adam([y], lr=0.05)
        for _ in range(300):
            optimizer.zero_grad()
            newton(y).backward()
            optimizer.step()
        return float(y.detach().square().sum())

    assert ends("auto") < 1e-9
    assert ends(NormalizedDamping()) > 1e-7


def test_a_smaller_last_batch_steps_as_far() -> None:
    """With fewer samples than outputs, gradients are nearly orthogonal."""
    slopes = torch.eye(144, dtype=torch.float64)[:70]

    def loss(y: Tensor, slope: Tensor) -> Tensor:
        return (slope * y).sum(1)

    for kind in ("fisher", "sample"):
        full, last = steps(loss, slopes[0], [slopes, slopes[:10]], curvature=kind)
        torch.testing.assert_close(10 * last.norm(dim=1), 70 * full[:10].norm(dim=1))


def usual_and(slopes: Tensor, kind: str, before: int = 20) -> list[Tensor]:
    """What batches of usual size send back, and then one of these `slopes`."""
    generator = torch.Generator().manual_seed(0)
    usual = [torch.randn(len(slopes), 4, generator=generator, dtype=torch.float64) for _ in range(before)]
    return steps(lambda y, slope: (slope * y).sum(1), slopes[0], [*usual, slopes, *usual], curvature=kind)


@pytest.mark.parametrize("kind", [*KINDS, "sample"])
@pytest.mark.parametrize("size", [1e3, 1e12])
def test_a_sample_that_explodes_does_not_still_the_others(kind: str, size: float) -> None:
    slopes = torch.randn(32, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    calm = usual_and(slopes, kind)
    exploded = slopes.clone()
    exploded[3] *= size
    wild = usual_and(exploded, kind)
    others = torch.arange(32) != 3
    # They keep their lengths, up to what the Fisher takes along the direction of the large one.
    ratio = wild[20][others].norm(dim=1) / calm[20][others].norm(dim=1)
    assert ratio.min() > 0.5
    assert ratio.max() < 2.5
    # It moves by more than they do, but not by its size; and the next batches are hardly in another unit.
    assert wild[20][3].norm() < 100 * calm[20].norm(dim=1).mean()
    for after in (21, 39):
        ratio = wild[after].norm() / calm[after].norm()
        assert 0.7 < ratio < 1.01


def test_the_first_batch_may_explode() -> None:
    slopes = torch.randn(32, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slopes[16:] = 0  # half of the samples have no gradient
    exploded = slopes.clone()
    exploded[3] *= 1e9
    calm, wild = (usual_and(one, "fisher", before=0) for one in (slopes, exploded))
    later = [steps(lambda y, s: (s * y).sum(1), slopes[0], [one, *[slopes] * 200], curvature="fisher")[-1]
             for one in (slopes, exploded)]  # fmt: skip
    assert torch.isfinite(wild[0]).all()
    assert calm[0].abs().max() > 0
    assert 0.4 < later[1].norm() / later[0].norm() <= 1.01


@pytest.mark.parametrize("curvature", ["fisher", "sample"])
def test_the_module_that_is_injected_remembers_too(curvature: str) -> None:
    """In the unit of the samples' own losses: neither the batch's size nor a scale of the loss enters."""
    inject = nl.InjectFisher(curvature=curvature, loss_scale=1024.0)
    newton = nl.NewtonLoss(quartic, curvature, check=False)
    for count, scale in ((7, 1.0), (3, 0.2), (9, 5.0), (7, 1e4)):
        y, target = Case(quartic, (count, 3)).draw(count)
        y, other = ((scale * y).requires_grad_() for _ in range(2))
        newton(y, target).backward()
        (1024 * quartic(inject(other), target).mean()).backward()
        torch.testing.assert_close(other.grad / 1024, y.grad)
    torch.testing.assert_close(inject.running_square, newton.running_square)


@pytest.mark.parametrize(
    "build", [lambda d: nl.NewtonLoss(ripples, "fisher", d), nl.InjectFisher], ids=["loss", "inject"]
)
def test_the_scale_is_saved_moves_and_keeps_its_precision(build) -> None:
    module = build("auto")
    assert module.state_dict()["running_square"].tolist() == [0, 0]
    module.running_square.fill_(0.123456789012345)
    other = build("auto")
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.running_square, module.running_square)
    for changed in (
        copy.deepcopy(module).half(),
        copy.deepcopy(module).to(torch.bfloat16),
        copy.deepcopy(module).cpu(),
    ):
        assert torch.equal(changed.running_square, module.running_square)
    # A checkpoint of another damping, or of before, still loads; and one with a scale loads where none is kept.
    assert "running_square" not in build(0.1).state_dict()
    other.load_state_dict(build(0.1).state_dict())
    build(0.1).load_state_dict(module.state_dict())
    nn.Sequential(nn.Linear(2, 2), build("auto")).load_state_dict(nn.Sequential(nn.Linear(2, 2)).state_dict())


@pytest.mark.parametrize("state", [(math.nan, 1), (-1, 1), (1, -1), (math.inf, 1), (1, 0), (0, 1)], ids=str)
def test_a_scale_that_cannot_be_is_not_loaded(state) -> None:
    """Gradients were NaN from then on, and nothing was counted as skipped."""
    modules = nn.Sequential(nn.Linear(2, 2), nl.NewtonLoss(ripples))
    damaged = {**modules.state_dict(), "1.running_square": torch.tensor(state, dtype=torch.float64)}
    with pytest.raises(RuntimeError, match=r"1\.running_square is .* Is the file damaged\? Without this entry"):
        modules.load_state_dict(damaged)
    assert modules[1].running_square.tolist() == [0, 0]
    del damaged["1.running_square"]
    modules.load_state_dict(damaged)


@pytest.mark.parametrize("exchangeable", [False, True])
def test_only_training_changes_the_scale(exchangeable: bool) -> None:
    y, target = Case(ripples, (7, 3)).draw()
    newton = nl.NewtonLoss(ripples, "fisher", check=False, exchangeable=exchangeable)
    newton(y.clone().requires_grad_(), target)
    known = newton.running_square.clone()
    assert known[1] > 0
    with torch.no_grad():
        newton(3 * y, target)
    torch.func.grad(lambda y: newton(y, target))(3 * y)
    newton.eval()
    large = (3 * y).requires_grad_()
    found = torch.autograd.grad(newton(large, target), large)[0]
    assert torch.equal(newton.running_square, known)
    newton.train()
    assert not torch.allclose(
        torch.autograd.grad(nl.newton_loss(ripples, large, target, curvature="fisher"), large)[0], found
    )
    newton(large, target)
    assert not torch.equal(newton.running_square, known)
    newton(torch.zeros(0, 3, requires_grad=True), torch.zeros(0, 3))  # says nothing of a size
    assert newton.running_square[1] < 0.003


@pytest.mark.parametrize("kind", ["fisher", "sample", "hessian"])
def test_a_compiler_keeps_it_as_well(kind: str) -> None:
    """And operators, which it sees alone, do what NumPy does elsewhere."""
    newton = nl.NewtonLoss(ripples, kind, check=False)
    compiled = torch.compile(copy.deepcopy(newton), fullgraph=True, backend="eager")
    for seed, scale in enumerate((1.0, 0.3, 40.0)):
        y, target = Case(ripples, (7, 3)).draw(seed)
        y = (scale * y).requires_grad_()
        wanted, found = (torch.autograd.grad(form(y, target), y)[0] for form in (newton, compiled))
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(compiled.running_square, newton.running_square)


def test_the_rule_by_name() -> None:
    assert repr(RunningDamping(2.0)) == "RunningDamping(factor=2.0)"
    assert RunningDamping() == nl.NewtonLoss(ripples, curvature="hessian")._rule
    assert RunningDamping() != NormalizedDamping()
    assert nl.NewtonLoss(ripples, damping=NormalizedDamping(), curvature="hessian").running_square is None
    assert math.isclose(
        nl.NewtonLoss(ripples, damping=RunningDamping(3), curvature="hessian").options["damping"].factor, 3
    )


def test_gradients_that_are_only_rounding_do_not_set_the_unit():
    """Most samples of the first batch are at their minimum, up to rounding: the others say what is usual."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(64, 4, dtype=torch.float64, generator=generator)
    weight = torch.ones(64, 1, dtype=torch.float64)
    weight[:40] = 1e-17
    newton = nl.NewtonLoss(lambda y, weight: (weight * (y - 1).square()).sum(1))
    found = []
    for _ in range(2):
        leaf = y.clone().requires_grad_()
        newton(leaf, weight).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (7, 3), (33, 200), (200, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_kernel_does_the_same(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """With a sample that explodes, one that is not finite, one without a finite value, and none of these."""
    from newton_losses.curvature._settle_triton import launch_settle

    generator = torch.Generator().manual_seed(0)
    for spoil, masked in ((False, False), (True, False), (False, True), (True, True)):
        gradient, value = torch.randn(shape, generator=generator, dtype=dtype), torch.zeros(shape[0], dtype=dtype)
        mask = torch.rand(shape, generator=generator) < 0.7 if masked else None
        gradient = gradient if mask is None else torch.where(mask, gradient, 0.0)
        if spoil and shape[0] > 5:
            gradient[1] *= 1e6
            gradient[3, 0], value[4] = math.nan, math.inf
        for state in ([0.0, 0.0], [0.2, 0.3], [1e-9, 0.3], [7.0, 0.3]):
            known, fresh = (torch.tensor(state, dtype=torch.float64) for _ in range(2))
            form = None if mask is None else exchangeable_fisher(gradient, mask=mask, value=value)
            wanted = settle(Expansion(value, gradient, form), "fisher", known, update=True)
            known_there = fresh.to(DEVICE)
            constants = running.DECAY, running.LIMIT, running.GROWTH
            there = (None if one is None else one.to(DEVICE) for one in (gradient, value, mask))
            bounded, factor = launch_settle(*there, known_there, True, *constants)
            torch.testing.assert_close(bounded.cpu(), wanted.expansion.gradient, equal_nan=True)
            torch.testing.assert_close(float(factor), float(wanted.factor), rtol=1e-5, atol=1e-6)
            if state[1] > 0 or not spoil:  # the first batch of all has its own rule, outside of the kernel
                torch.testing.assert_close(known_there.cpu(), known)


def test_the_kernel_in_the_interpreter() -> None:
    run_interpreted(__file__)


@pytest.mark.parametrize("kind", ["hessian", "fisher", "sample"])
def test_the_unit_of_the_loss_changes_nothing_where_a_sample_explodes(kind: str) -> None:
    """In the first batch, where the others are the measure, and in a later one, where the run is."""
    y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for scale in (1.0, 1e-6, 1e6):
        newton = nl.NewtonLoss(lambda y, factor, scale=scale: scale * factor * y.pow(4).sum(1), kind)
        for place in (0, 7, 3):
            factor, leaf = torch.ones(8, dtype=torch.float64), y.clone().requires_grad_()
            factor[place] = 1e4
            newton(leaf, factor).backward()
            found.append(leaf.grad)
    for one, *others in zip(*(found[start : start + 3] for start in (0, 3, 6)), strict=True):
        for other in others:
            torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kind", ["hessian", "fisher", "sample"])
def test_a_batch_without_gradients_or_finite_samples_does_not_enter_the_scale(kind: str) -> None:
    y, target = Case(quartic, (6, 3)).draw()
    newton = nl.NewtonLoss(quartic, kind, on_nonfinite="ignore")
    newton(y.clone().requires_grad_(), target).backward()
    before = newton.running_square.clone()
    for other in (y, y * torch.nan):
        newton(y.clone().requires_grad_(), other).backward()
        assert torch.equal(newton.running_square, before)


@pytest.mark.parametrize("state", [torch.ones(3), torch.ones(()), [1.0, 1.0]], ids=str)
def test_what_is_no_scale_is_refused_in_the_words_of_torch(state: object) -> None:
    with pytest.raises(RuntimeError, match="running_square"):
        nl.NewtonLoss(quartic).load_state_dict({"running_square": state})


@pytest.mark.parametrize(
    ("count", "exploded", "is_bounded"), [(10, 1, True), (10, 2, False), (11, 2, True), (11, 3, False)]
)
def test_a_first_batch_is_bounded_by_the_gradient_that_a_tenth_exceed(count, exploded, is_bounded) -> None:
    gradient = torch.ones(count, 1, dtype=torch.float64)
    gradient[:exploded] = 1e6
    newton = nl.NewtonLoss(lambda y: (y * gradient).sum(1))
    newton(torch.zeros(count, 1, dtype=torch.float64, requires_grad=True))
    total, weight = newton.running_square.tolist()
    largest = 1e4 if is_bounded else 1e12
    assert total / weight == pytest.approx((count - exploded + exploded * largest) / count)


@pytest.mark.parametrize("kind", ["fisher", "sample"])
def test_a_sample_without_a_value_does_not_enter_the_scale(kind: str) -> None:
    """Although it has a gradient."""
    slope, value, scales = torch.tensor([[1.0], [2.0], [1.0]]), torch.tensor([0.0, 0.0, torch.nan]), []
    for count in (2, 3):
        newton = nl.NewtonLoss(lambda y, slope, value: (slope * y).sum(1) + value, kind)
        for samples, size in ((2, 1.0), (count, 1.5)):
            newton(torch.zeros(samples, 1, requires_grad=True), size * slope[:samples], value[:samples])
        scales.append(newton.running_square)
    torch.testing.assert_close(*scales)


def test_a_scale_that_cannot_be_is_an_error_however_loosely_it_is_loaded() -> None:
    with pytest.raises(RuntimeError, match="which no training leaves behind"):
        nl.NewtonLoss(quartic).load_state_dict({"running_square": torch.tensor([-1.0, 1.0])}, strict=False)


def test_the_step_of_a_first_batch_with_one_that_explodes_is_in_its_own_unit() -> None:
    """The run's unit begins without that sample; this batch has no other unit to be measured in."""
    gradient = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    gradient[0] *= 1e6
    state = torch.zeros(2, dtype=torch.float64)
    found = settle(Expansion(torch.zeros(30), gradient), "fisher", state, update=True)
    assert float(found.factor) == 1
    assert state[0] / state[1] < 1e-3 * gradient.square().mean()


def test_a_stored_fisher_that_knows_its_samples_is_stretched_as_their_gradients_are() -> None:
    gradient = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fisher, value = empirical_fisher(gradient), torch.zeros(2, dtype=torch.float64)

    def step(curvature: object, rule: NormalizedDamping) -> Tensor:
        return newton_step(Expansion(value, gradient, curvature), rule).rows

    counted = Dense(fisher.dense(), semidefinite=True, count=torch.tensor(2.0, dtype=torch.float64))
    torch.testing.assert_close(step(counted, RunningDamping()), step(fisher, RunningDamping()))
    # A sample that is not finite takes another way to the same step.
    bad = Expansion(torch.zeros(3), torch.cat([gradient, torch.full((1, 4), torch.nan).double()]), counted)
    torch.testing.assert_close(newton_step(bad, RunningDamping()).rows[:2], step(counted, RunningDamping()))
    uncounted = Dense(fisher.dense(), semidefinite=True)
    torch.testing.assert_close(step(uncounted, RunningDamping()), step(fisher, NormalizedDamping()))
    stretched = NormalizedDamping(1.0, stretch=math.sqrt(2))
    torch.testing.assert_close(step(fisher, stretched), step(fisher, RunningDamping()))


def test_a_first_batch_whose_squares_overflow_leaves_no_unit_behind() -> None:
    newton = nl.NewtonLoss(lambda y, size: size * y.square().sum(1), check=False, on_nonfinite="ignore")
    y = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    for size in (1e200, 1.0):
        (gradient,) = torch.autograd.grad(newton(y, size), y)
        assert gradient.isfinite().all()
    assert newton.running_square.isfinite().all()
    assert newton.running_square[0] > 0
