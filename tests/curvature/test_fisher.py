"""The step with the empirical Fisher: few operations on a CPU, one kernel on CUDA, and operators elsewhere, all alike.

The tests marked `gpu` run on CUDA, and, but for those that need a device, in Triton's interpreter on the CPU too.
"""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

import newton_losses as nl
from newton_losses.curvature import (
    Dense,
    Expansion,
    NormalizedDamping,
    RelativeDamping,
    empirical_fisher,
    fisher_step,
    host_step,
    newton_step,
)
from newton_losses.curvature._fisher import LARGEST_ITERATION, _by_kernel, _plan, fisher_kernel
from on_cuda import capture, no_synchronisation
from operators import Operators
from triton_interpreter import DEVICE, on_cuda_alone, run_interpreted

# The interpreter is numpy, which warns about what is not finite.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SHAPES = [(1, 1), (1, 7), (7, 1), (5, 5), (100, 10), (128, 32), (20, 64), (3, 150), (60, 144), (150, 33)]
DAMPINGS = [0.1, 1e-4, NormalizedDamping(), NormalizedDamping(0.01), RelativeDamping(2.0)]


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def brute_force(gradient: Tensor, damping: object) -> Tensor:
    """By the formula, in float64."""
    gradient = gradient.double()
    fisher = gradient.mT @ gradient / len(gradient)
    spread = float(fisher.norm()) / math.sqrt(len(fisher))
    number = damping if isinstance(damping, float) else damping.factor * spread
    step = torch.linalg.solve(fisher + number * torch.eye(len(fisher), dtype=torch.float64), gradient.mT).mT
    return step * number / gradient.square().mean().sqrt() if isinstance(damping, NormalizedDamping) else step


def assert_step(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    close = {"rtol": tolerance, "atol": tolerance * float(wanted.abs().max())}
    torch.testing.assert_close(found.cpu().to(dtype), wanted.to(dtype), **close)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("damping", DAMPINGS, ids=repr)
@pytest.mark.parametrize("shape", SHAPES)
def test_float32_is_as_exact_as_float64(shape, damping, dtype):
    """At the tolerance that the gradients themselves have, also where the system is solved in float32."""
    gradient = normal(*shape).to(dtype)
    wanted = brute_force(gradient, damping)
    value = gradient.square().sum(1)
    for way in (partial(host_step, empirical_fisher(gradient)), fisher_step):
        found = way(gradient, value, damping)
        assert_step(found.rows, wanted, dtype)
        assert int(found.count) == shape[0]
        mean = way(gradient, value, damping, mean=True)
        assert_step(mean.rows, wanted / shape[0], dtype)


@pytest.mark.parametrize("damping", [NormalizedDamping(), RelativeDamping(), 0.1], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nothing_leaves_the_range_of_numbers(damping, dtype):
    """A loss in other units takes the same step, up to those units, as far as a float reaches."""
    gradient = normal(20, 4)
    wanted = brute_force(gradient, damping)
    for power in (-100, -60, 60, 100) if dtype == torch.float64 else (-30, -15, 15, 30):
        scale = 10.0**power
        rule = 0.1 * scale**2 if isinstance(damping, float) else damping
        if isinstance(rule, float) and not 1e-300 < rule < 1e300:
            continue
        found = fisher_step((gradient * scale).to(dtype), None, rule)
        unit = 1.0 if isinstance(damping, NormalizedDamping) else 1 / scale
        assert_step(found.rows.double() / unit, wanted, dtype)


def spoiled(samples: int = 12, outputs: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients, values and a mask in which samples 2, 4 and 5 are bad, for three reasons."""
    gradient, value = normal(samples, outputs), normal(samples)
    gradient[2, 1] = torch.inf
    value[4] = torch.nan
    kept = torch.ones(samples, dtype=torch.bool)
    kept[5] = False
    return gradient, value, kept


@pytest.mark.parametrize("damping", DAMPINGS, ids=repr)
@pytest.mark.parametrize("outputs", [5, 30])
def test_bad_samples_have_no_say(outputs, damping):
    gradient, value, kept = spoiled(outputs=outputs)
    good = [0, 1, 3, 6, 7, 8, 9, 10, 11]
    found = fisher_step(gradient, value, damping, kept=kept)
    assert found.kept.nonzero().flatten().tolist() == good
    assert int(found.count) == 9
    assert_step(found.rows[good], brute_force(gradient[good], damping), torch.float64)
    assert not found.rows[[2, 4, 5]].any()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_damping_that_cannot_be_leaves_all_samples_out(bad):
    found = fisher_step(normal(6, 3), None, torch.tensor(bad))
    assert not found.kept.any()
    assert not found.rows.any()


def test_a_call_is_few_operations():
    """The surrogate, the step and the gradient: what the loss itself takes is not counted."""
    y, target = normal(2, 128, 10, dtype=torch.float32)
    y.requires_grad_()

    def operations(step) -> int:
        step()
        with Operators(views=False) as counted:
            step()
        return counted.count

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return torch.sin(y - target).square().sum(1)

    newton = nl.NewtonLoss(loss, "fisher")
    plain = operations(lambda: loss(y, target).mean().backward())
    assert operations(lambda: newton(y, target).backward()) <= plain + 16
    assert operations(lambda: loss(nl.inject_fisher(y), target).mean().backward()) <= plain + 16


@pytest.mark.slow
def test_in_the_interpreter():
    run_interpreted(__file__)


def by_kernel(gradient, value, damping, kept=None, mean=False, counter=None):
    given = (None if one is None else one.to(DEVICE) for one in (gradient, value))
    mask = None if kept is None else kept.to(DEVICE)
    return _by_kernel(*given, _plan(damping), mask, mean, counter)


# Few of them: each is a kernel to compile.
IN_THE_KERNEL = [
    ((1, 7), NormalizedDamping(), torch.float64), ((100, 10), NormalizedDamping(), torch.float32),
    ((100, 10), 0.1, torch.float64), ((150, 33), NormalizedDamping(0.01), torch.float32),
    ((60, 144), 1e-4, torch.float32), ((60, 144), RelativeDamping(2.0), torch.float64),
    ((70, 144), NormalizedDamping(), torch.float32), ((130, 100), NormalizedDamping(0.1), torch.float32),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize(("shape", "damping", "dtype"), IN_THE_KERNEL)
def test_the_kernel_is_exact(shape, damping, dtype, mean):
    gradient = normal(*shape).to(dtype)
    value = gradient.square().sum(1)
    wanted = brute_force(gradient, damping)
    assert min(shape) <= LARGEST_ITERATION
    found = by_kernel(gradient, value, damping, mean=mean)
    assert_step(found.rows, wanted / shape[0] if mean else wanted, dtype)
    assert found.kept.all()
    assert int(found.count) == shape[0]
    torch.testing.assert_close(found.value.cpu(), value.mean())


@pytest.mark.gpu
@pytest.mark.parametrize("damping", [0.1, NormalizedDamping()], ids=repr)
@pytest.mark.parametrize("outputs", [5, 30])
def test_the_kernel_contains_bad_samples(outputs, damping):
    gradient, value, kept = spoiled(outputs=outputs)
    wanted = fisher_step(gradient, value, damping, kept=kept)
    counter = torch.tensor(7, device=DEVICE)
    found = by_kernel(gradient, value, damping, kept, counter=counter)
    assert torch.equal(found.kept.cpu(), wanted.kept)
    assert_step(found.rows, wanted.rows, torch.float64)
    assert int(found.count) == 9
    assert int(counter) == 7 + 3
    assert found.counted
    torch.testing.assert_close(found.value.cpu(), value[value.isfinite()].mean())


@pytest.mark.gpu
@pytest.mark.parametrize(("samples", "outputs"), [(80, 100), (100, 80)])
def test_the_iteration_contains_bad_samples(samples, outputs):
    gradient, value, kept = spoiled(samples, outputs)
    gradient, value = (1e-30 * gradient).float(), value.float()
    wanted = brute_force(gradient[kept & value.isfinite() & gradient.isfinite().all(1)], NormalizedDamping())
    counter = torch.tensor(7, device=DEVICE)
    found = by_kernel(gradient, value, NormalizedDamping(), kept, counter=counter)
    assert_step(found.rows.cpu()[found.kept.cpu()], wanted, torch.float32)
    assert not found.rows[~found.kept].any()
    assert int(found.count) == samples - 3
    assert int(counter) == 7 + 3
    torch.testing.assert_close(found.value.cpu(), value[value.isfinite()].mean())
    zero = by_kernel(torch.zeros(samples, outputs), None, NormalizedDamping())
    assert zero.kept.all()
    assert not zero.rows.any()


@pytest.mark.gpu
@pytest.mark.parametrize(("samples", "outputs"), [(80, 100), (100, 80)])
def test_the_iteration_is_exact_for_small_outputs_beside_large_ones(samples, outputs):
    gradient = normal(samples, outputs)
    gradient *= torch.logspace(0, -30, outputs, dtype=torch.float64) if samples < outputs else 1
    gradient *= torch.logspace(0, -30, samples, dtype=torch.float64)[:, None] if samples >= outputs else 1
    found = by_kernel(gradient.float(), None, NormalizedDamping())
    along = 0 if samples < outputs else 1
    wanted = brute_force(gradient.float(), NormalizedDamping())
    error = (found.rows.cpu() - wanted).abs().amax(along) / wanted.abs().amax(along)
    assert float(error.max()) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "kind"), [(1, "absolute"), (5, "definite"), (5, "clip"), (20, "absolute")])
def test_the_kernel_with_a_stored_matrix(size, kind):
    """Against the operators, which are tested elsewhere; with a sample that is not finite, and fewer than unknowns."""
    matrix = normal(size, size)
    matrix = matrix @ matrix.mT if kind == "definite" else matrix + matrix.mT
    for samples in (4, 150):
        gradient, value = normal(samples, size + 1)[:, :size], normal(samples)
        gradient[2, 0] = torch.nan
        for damping in (0.1, NormalizedDamping()):
            expansion = Expansion(value, gradient, Dense(matrix, semidefinite=kind == "definite"))
            wanted = newton_step(expansion, damping, "raw" if kind == "definite" else kind)
            given = (gradient.to(DEVICE), value.to(DEVICE), _plan(damping), None, False, None, matrix.to(DEVICE), kind)
            found = _by_kernel(*given)
            assert torch.equal(found.kept.cpu(), wanted.kept)
            assert_step(found.rows, wanted.rows, torch.float64)
            torch.testing.assert_close(found.value.cpu(), value.mean())


@pytest.mark.gpu
def test_the_kernel_where_there_is_nothing():
    zero = by_kernel(torch.zeros(6, 3), None, NormalizedDamping())
    assert zero.kept.all()
    assert not zero.rows.any()
    none = by_kernel(torch.full((6, 3), torch.nan), torch.full((6,), torch.nan), NormalizedDamping())
    assert not none.kept.any()
    assert none.value.isnan()
    assert not by_kernel(torch.zeros(6, 3), None, RelativeDamping()).kept.any()
    for bad in (0.0, -1.0, math.nan, math.inf):
        assert not by_kernel(normal(6, 3), None, torch.tensor(bad, device=DEVICE)).kept.any()


@pytest.mark.gpu
def test_the_operator_is_what_it_says():
    gradient, value, _ = (one.to(DEVICE) for one in spoiled())
    torch.library.opcheck(fisher_kernel, (gradient, value, None, 0.0, 1.0, True, True))
    torch.library.opcheck(fisher_kernel, (gradient, None, torch.tensor(0.1, device=DEVICE), 0.0, 0.0, False, False))


@pytest.mark.gpu
@on_cuda_alone
@pytest.mark.parametrize("shape", [(128, 10), (64, 1000), (100, 200), (20_000, 10)])
def test_a_newton_loss_on_a_device_equals_that_of_a_cpu(shape):
    y, target = normal(*shape, dtype=torch.float32), normal(*shape[::-1], dtype=torch.float32).mT.contiguous()
    target[1, 0] = torch.nan

    def loss(y, target):
        return torch.sin(y - target).square().sum(1)

    for options in ({}, {"damping": 0.1}, {"damping": torch.tensor(0.1)}, {"reduction": "none"}):
        found = []
        for device in ("cpu", "cuda"):
            newton = nl.NewtonLoss(loss, "fisher", **options)
            here = y.to(device, copy=True).requires_grad_()
            value = newton(here, target.to(device))
            value.backward()
            found.append((value.detach().cpu(), here.grad.cpu(), newton.skipped.cpu()))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
        assert int(found[0][2]) == 1


@pytest.mark.gpu
@on_cuda_alone
def test_nothing_waits_and_all_is_captured():
    gradient, value, kept = (one.cuda() for one in spoiled())
    for damping in (0.1, NormalizedDamping(), torch.tensor(0.1)):
        wanted = fisher_step(gradient, value, damping, kept=kept)
        with no_synchronisation():
            graph, found = capture(lambda damping=damping: fisher_step(gradient, value, damping, kept=kept))
        graph.replay()
        torch.testing.assert_close(found.rows, wanted.rows)


@pytest.mark.gpu
@on_cuda_alone
@pytest.mark.slow
def test_compiled_as_one_graph():
    gradient, value, _ = (one.cuda() for one in spoiled())
    compiled = torch.compile(lambda g, v: fisher_step(g, v, NormalizedDamping(), mean=True).rows, fullgraph=True)
    torch.testing.assert_close(
        compiled(gradient, value), fisher_step(gradient, value, NormalizedDamping(), mean=True).rows
    )


@pytest.mark.parametrize("shape", [(6, 2), (2, 6)])
@pytest.mark.parametrize("damping", [-1.0, 0.0, math.inf])
def test_a_damping_that_is_not_positive_leaves_every_sample_out(damping: float, shape: tuple[int, int]) -> None:
    y = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    newton = nl.NewtonLoss(lambda y: y.pow(4).sum(1), "fisher", torch.tensor(damping), on_nonfinite="ignore")
    newton(y).backward()
    assert y.grad.abs().sum() == 0
    assert newton.skipped == len(y)


@pytest.mark.parametrize("damping", [0.5, NormalizedDamping()], ids=str)
def test_a_brought_fisher_of_some_samples_steps_with_these(damping: object) -> None:
    gradient = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = torch.tensor([True, False, True, True])
    found = newton_step(Expansion(torch.zeros(4), gradient, empirical_fisher(gradient, kept)), damping)
    few = gradient[kept]
    wanted = newton_step(Expansion(torch.zeros(3), few, empirical_fisher(few)), damping)
    assert found.kept.tolist() == kept.tolist()
    torch.testing.assert_close(found.rows[kept], wanted.rows)


@pytest.mark.parametrize(("samples", "outputs"), [(8, 3), (3, 8), (5, 5), (20, 10)])
def test_a_damping_that_is_lost_beside_the_curvature_keeps_no_wrong_step(samples, outputs):
    """Whether such a matrix can be factorised is chance: 1 in 50 could, and all of their steps were wrong."""
    for seed in range(40):
        torch.manual_seed(seed)
        along, direction = torch.randn(samples, 1).double(), torch.randn(1, outputs).double()
        gradient, damping = 1e8 * along * direction, 10.0 ** -(seed % 8 + 1)
        found = fisher_step(gradient, None, damping)
        exact = gradient / (damping + 1e16 * along.square().mean() * direction.square().sum())
        off = (found.rows - exact).norm(dim=1) / exact.norm(dim=1)
        assert (off[torch.ones(samples, dtype=torch.bool) if found.kept is None else found.kept] < 0.1).all()


def test_a_damping_below_every_output_is_not_lost():
    """Outputs in units from 1e-8 to 1e8 make an ill-conditioned matrix that can be solved to the last digit."""
    units = 10.0 ** torch.arange(-8, 9, 4).double()
    gradient = torch.diag(units)
    found = fisher_step(gradient, None, 1e-20)
    assert found.kept is None or found.kept.all()
    torch.testing.assert_close(found.rows.diagonal(), units / (units.square() / 5 + 1e-20), rtol=1e-9, atol=0)
