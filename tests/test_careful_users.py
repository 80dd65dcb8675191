"""What a careful user will hit: precision, accumulation, compilers, transforms, odd sizes, memory."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import newton_losses
from cases import Case, assert_close, brute_force_step, mse, quartic, ripples
from newton_losses import ArgumentError, InjectFisher, NewtonLoss, inject_fisher, newton_loss, newton_target
from newton_losses.sorting import SortingLoss

KINDS = ["hessian", "fisher"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_outputs_have_float32_curvature(kind: str, dtype: torch.dtype) -> None:
    case = Case(ripples, (6, 4), dtype)
    y, target = case.draw()
    y.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = NewtonLoss(case.loss, kind, damping=2.0)(y, target.float())
    assert loss.dtype == torch.float32
    loss.backward()
    step = brute_force_step(case, y.detach().float(), target.float(), kind, 2.0)
    assert y.grad.dtype == dtype
    # only the gradient on its way out is rounded to the outputs' own precision
    assert_close(y.grad, step / 6, torch.finfo(dtype).eps)


def test_autocast_does_not_reach_into_the_loss() -> None:
    """A matrix product inside a loss would become bfloat16 under autocast."""
    mixing = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    y = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))

    def loss(y: Tensor) -> Tensor:
        return (y @ mixing).pow(2).sum(1)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = newton_target(loss, y, damping=1.0, curvature="hessian")
    assert_close(found.step, newton_target(loss, y, damping=1.0, curvature="hessian").step, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_scaled_newton_loss_has_a_scaled_gradient(kind: str) -> None:
    """Gradient accumulation, weights in a sum of losses, GradScaler: the Newton loss is linear in them."""
    case = Case(ripples, (5, 3))
    y, target = case.draw()
    y.requires_grad_()
    newton = NewtonLoss(case.loss, kind, damping=2.0)
    (plain,) = torch.autograd.grad(newton(y, target), y)
    (scaled,) = torch.autograd.grad(newton(y, target) * 65536, y)
    assert_close(scaled, plain * 65536, 1e-12)


@pytest.mark.parametrize("kind", [*KINDS, "sample"])
@pytest.mark.parametrize("damping", ["auto", 1.0])
def test_gradient_accumulation(kind: str, damping: object) -> None:
    """Micro-batches have their own curvature; that of the whole batch needs all outputs before the first backward."""
    network = nn.Linear(4, 3).double()
    generator = torch.Generator().manual_seed(0)
    x, target = (torch.randn(12, size, dtype=torch.float64, generator=generator) for size in (4, 3))
    wanted = torch.autograd.grad(NewtonLoss(quartic, kind, damping)(network(x), target), network.weight)[0]
    # As docs/choosing.md says.
    with torch.no_grad():
        outputs = torch.cat([network(part) for part in x.split(4)])
    outputs.requires_grad_()
    NewtonLoss(quartic, kind, damping)(outputs, target).backward()
    for part, step in zip(x.split(4), outputs.grad.split(4), strict=True):
        network(part).backward(step)
    assert_close(network.weight.grad, wanted, 1e-12)
    # The usual way is not the same. In units of the run it is near; with a number, lengths follow each F.
    newton, found = NewtonLoss(quartic, kind, damping), torch.zeros_like(wanted)
    for part, goal in zip(x.split(4), target.split(4), strict=True):
        found += torch.autograd.grad(newton(network(part), goal) / 3, network.weight)[0]
    assert 1e-3 < (found - wanted).norm() / wanted.norm() < (1 if damping == "auto" else 20)
    if damping == "auto":
        assert nn.functional.cosine_similarity(found.flatten(), wanted.flatten(), dim=0) > 0.8


def step_of(network: nn.Module, newton: NewtonLoss, x: Tensor, target: Tensor) -> Tensor:
    return newton(network(x), target)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spectrum", ["raw", "absolute"])
def test_compiles_without_a_graph_break(kind: str, spectrum: str) -> None:
    torch._dynamo.reset()
    network, (y, target) = nn.Linear(3, 3).double(), Case(ripples, (5, 3)).draw()
    newton = NewtonLoss(ripples, kind, damping=2.0, spectrum=spectrum)
    step_of(network, newton, y, target).backward()
    wanted = network.weight.grad.clone()
    network.zero_grad()
    compiled = torch.compile(step_of, fullgraph=True, backend="aot_eager")
    compiled(network, newton, y, target).backward()
    assert_close(network.weight.grad, wanted, 1e-10)


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.HuberLoss()])
def test_a_hessian_compiles_of_losses_with_a_backward_of_their_own(loss: nn.Module) -> None:
    """In forward mode, their targets' tangents have no memory: reading those ended the process."""
    torch._dynamo.reset()
    y, target = Case(mse, (5, 3)).draw()
    newton = NewtonLoss(loss, "hessian", damping=2.0)
    gradients = []
    for call in (newton, torch.compile(newton, fullgraph=True, backend="aot_eager")):
        leaf = y.clone().requires_grad_()
        call(leaf, target).backward()
        gradients.append(leaf.grad)
    assert_close(gradients[1], gradients[0], 1e-10)
    assert_close(torch.func.grad(newton)(y, target), gradients[0], 1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduced_loss_compiles_for_batches_of_other_sizes(reduction: str) -> None:
    """The second one makes the number of samples a symbol."""
    torch._dynamo.reset()
    newton = NewtonLoss(lambda y, t: getattr(quartic(y, t), reduction)(), "hessian", reduction=reduction)
    compiled = torch.compile(newton, fullgraph=True, backend="aot_eager")
    for count in (8, 5, 9):
        y, target = Case(quartic, (count, 3)).draw()
        gradients = []
        for call in (newton.eval(), compiled.eval()):
            leaf = y.clone().requires_grad_()
            call(leaf, target).backward()
            gradients.append(leaf.grad)
        assert_close(gradients[1], gradients[0], 1e-10)


def test_inject_fisher_compiles_without_a_graph_break() -> None:
    torch._dynamo.reset()
    y, target = Case(quartic, (5, 3)).draw()

    def loss(y: Tensor) -> Tensor:
        return quartic(inject_fisher(y, 0.7), target).mean()

    leaf, other = y.clone().requires_grad_(), y.clone().requires_grad_()
    loss(leaf).backward()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(other).backward()
    assert_close(other.grad, leaf.grad, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_functional_step_compiles(kind: str) -> None:
    torch._dynamo.reset()
    y, target = Case(ripples, (5, 3)).draw()
    step = torch.func.grad(lambda y: NewtonLoss(ripples, kind, damping=2.0)(y, target))
    assert_close(torch.compile(step, fullgraph=True, backend="aot_eager")(y), step(y), 1e-10)


def test_a_compiled_functional_inject_fisher_is_right_or_refused() -> None:
    """The compiler takes the gradient of the identity there, and leaves out the step without a word."""
    y, target = Case(quartic, (5, 3)).draw()
    step = torch.func.grad(lambda y: quartic(inject_fisher(y, 0.7), target).mean())
    torch._dynamo.reset()
    assert_close(torch.compile(step, backend="aot_eager")(y), step(y), 1e-10)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"inject_fisher inside a compiled torch\.func\.grad"):
        torch.compile(step, fullgraph=True, backend="aot_eager")(y)


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_has_the_value_or_is_refused(kind: str) -> None:
    y, target = Case(ripples, (5, 3)).draw()
    newton = NewtonLoss(ripples, kind)
    with pytest.raises(ArgumentError, match=r"torch\.export cannot record"):
        torch.export.export(newton, (y, target))
    with torch.no_grad():
        assert_close(torch.export.export(newton, (y, target)).module()(y, target), newton(y, target), 1e-12)
    network = nn.Sequential(nn.Linear(3, 3).double(), InjectFisher())
    assert_close(torch.export.export(network, (y,)).module()(y), network(y), 1e-12)


def test_inject_fisher_is_refused_in_a_replica_of_data_parallel() -> None:
    """A replica would take the gradients of a part of the batch for those of all: 1.9 and 8.1 times too long."""
    replica = InjectFisher()._replicate_for_data_parallel()
    with pytest.raises(ArgumentError, match="on what the parallel model returns"):
        replica(torch.ones(2, 3))


@pytest.mark.parametrize("factor", [1e80, 1e150, 1e-80, 1e-100, 1e-150])
@pytest.mark.parametrize("few", [False, True])
def test_no_factor_that_float64_holds_changes_the_default_step(factor: float, few: bool) -> None:
    y, target = Case(quartic, (3, 5) if few else (5, 3)).draw()
    found = []
    for kind, scale in [(kind, scale) for kind in KINDS for scale in (1.0, factor)]:
        newton, leaf = NewtonLoss(lambda y, t, s=scale: s * quartic(y, t), kind), y.clone().requires_grad_()
        newton(leaf, target).backward()
        assert int(newton.skipped) == 0
        found.append(leaf.grad)
    for scale in (1.0, factor):
        leaf = y.clone().requires_grad_()
        (scale * quartic(inject_fisher(leaf), target)).mean().backward()
        found.append(leaf.grad)
    for plain, scaled in zip(found[::2], found[1::2], strict=True):
        assert_close(scaled, plain, 1e-10)


@pytest.mark.parametrize("damping", [np.float32(2), np.float64(2), np.int64(2)], ids=repr)
def test_numbers_of_numpy_compile_as_those_of_python(damping: object) -> None:
    torch._dynamo.reset()
    y, target = Case(ripples, (5, 3)).draw()
    compiled = torch.compile(NewtonLoss(ripples, "fisher", damping, check=False), fullgraph=True, backend="aot_eager")
    assert_close(compiled(y, target), NewtonLoss(ripples, "fisher", 2.0)(y, target), 1e-12)
    injected = inject_fisher(y.requires_grad_(), damping, loss_scale=damping)
    assert torch.equal(injected, y)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_func_over_the_model(kind: str) -> None:
    network, (y, target) = nn.Linear(3, 3).double(), Case(ripples, (5, 3)).draw()
    newton = NewtonLoss(ripples, kind, damping=2.0)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return newton(torch.func.functional_call(network, parameters, (y,)), target)

    found = torch.func.grad(loss)(dict(network.named_parameters()))
    torch.func.vmap(torch.func.grad(lambda y: newton(y, target)))(network(y).detach()[None])
    assert newton.check  # the loss is checked in the first call that is not transformed
    newton(network(y), target).backward()
    assert not newton.check
    assert_close(found["weight"], network.weight.grad, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_an_ensemble_by_vmap(kind: str) -> None:
    """Stacked weights of several models: each gets the Newton loss of its own batch."""
    y, target = Case(ripples, (5, 3)).draw()
    weights = torch.randn(4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(weight: Tensor) -> Tensor:
        return newton_loss(ripples, y @ weight, target, curvature=kind, damping=2.0)

    stacked = torch.func.vmap(torch.func.grad(loss))(weights)
    alone = torch.stack([torch.func.grad(loss)(weight) for weight in weights])
    assert_close(stacked, alone, 1e-10)
    assert_close(torch.func.vmap(loss)(weights), torch.stack([loss(weight) for weight in weights]), 1e-10)


def test_inject_fisher_under_torch_func() -> None:
    y, target = Case(quartic, (5, 3)).draw()
    leaf = y.clone().requires_grad_()
    quartic(inject_fisher(leaf, 0.7), target).mean().backward()
    found = torch.func.grad(lambda y: quartic(inject_fisher(y, 0.7), target).mean())(y)
    assert_close(found, leaf.grad, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0,), (0, 2, 2)])
def test_an_empty_batch_has_zero_loss_and_gradient(kind: str, shape: tuple[int, ...]) -> None:
    y = torch.zeros(shape, requires_grad=True)
    loss = NewtonLoss(mse, kind)(y, torch.zeros(shape))
    loss.backward()
    assert loss.item() == 0
    assert y.grad.shape == shape
    leaf = torch.zeros(shape, requires_grad=True)
    InjectFisher(0.1)(leaf).sum().backward()
    assert leaf.grad.shape == shape


def test_inside_no_grad_the_value_is_there() -> None:
    y, target = Case(ripples, (5, 3)).draw()
    with torch.no_grad():
        assert_close(newton_loss(ripples, y, target, curvature="hessian"), ripples(y, target).mean(), 1e-12)
    with torch.inference_mode():
        assert_close(NewtonLoss(ripples, curvature="hessian")(y.clone(), target), ripples(y, target).mean(), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_steps_leave_no_growth(kind: str) -> None:
    """No tensor survives a step but the optimizer's own: hooks, graphs and caches would show here."""
    network = nn.Linear(4, 3)
    newton = NewtonLoss(ripples, kind, damping=5.0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    x, target = torch.randn(8, 4), torch.zeros(8, 3)

    def steps(count: int) -> int:
        for _ in range(count):
            optimizer.zero_grad()
            newton(network(x), target).backward()
            optimizer.step()
        gc.collect()
        return sum(1 for thing in gc.get_objects() if type(thing) in (torch.Tensor, nn.Parameter))

    start = steps(10)
    assert steps(1000) <= start


def test_matrix_free_hessian_at_ten_thousand_outputs_stays_under_two_gigabytes() -> None:
    """In its own process, because the peak of this one may be older than the test."""
    program = (
        "import resource, torch, newton_losses as nl\n"
        "torch.set_num_threads(1)\n"
        "y = torch.randn(8, 10_000, generator=torch.Generator().manual_seed(0))\n"
        "loss = lambda y: (y[:, 1:] * y[:, :-1]).sin().sum(1) + y.pow(4).sum(1)\n"
        "found = nl.newton_target(loss, y, curvature='hessian', damping=50.0)\n"
        "assert type(found.curvature).__name__ == 'Products'\n"
        "left = found.curvature.product(found.step) + 50.0 * found.step - found.gradient\n"
        "print(float(left.norm() / found.gradient.norm()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    source = str(Path(newton_losses.__file__).parents[1])
    out = subprocess.check_output([sys.executable, "-c", program], text=True, env=os.environ | {"PYTHONPATH": source})
    residual, peak = map(float, out.split())
    assert residual < 1e-5
    assert peak / 2**20 < 2.0, f"{peak / 2**20:.2f} GiB"


@pytest.mark.parametrize("kind", ["hessian", "fisher"])
def test_the_first_call_of_a_loss_with_its_own_expansion_may_be_vectorised(kind: str) -> None:
    scores, values = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(0)).unbind()
    newton = NewtonLoss(SortingLoss("softsort"), curvature=kind)
    found = torch.func.vmap(newton)(scores, values)
    torch.testing.assert_close(found, torch.stack([newton(*one) for one in zip(scores, values, strict=True)]))


@pytest.mark.parametrize("damping", ["auto", 0.1])
@pytest.mark.parametrize("kind", ["hessian", "fisher", "sample"])
def test_every_step_may_be_inside_a_checkpoint(kind: str, damping: object) -> None:
    """Also the first, which calls the loss more often: a checkpoint counts what is saved, and computes once more."""
    network, x, target = nn.Linear(4, 3), torch.randn(8, 4), torch.randn(8, 3)
    newton, plain = (NewtonLoss(quartic, kind, damping) for _ in range(2))
    for _ in range(3):
        network.zero_grad()
        checkpoint(lambda x: newton(network(x), target), x, use_reentrant=False).backward()
        assert network.weight.grad is not None
        found = network.weight.grad.clone()
        network.zero_grad()
        plain(network(x), target).backward()
        assert network.weight.grad is not None
        # The unit of the run takes in a batch when it is computed once more, too.
        direction, wanted = (one / one.norm() for one in (found, network.weight.grad))
        torch.testing.assert_close(direction, wanted, rtol=1e-4, atol=1e-6)


def test_a_loss_that_changes_its_outputs_in_place_is_told_how_not_to() -> None:
    def masked_in_place(y: Tensor, exists: Tensor) -> Tensor:
        y[~exists] = -1e4
        return -y.log_softmax(1)[:, 0]

    y, exists = torch.randn(6, 3, requires_grad=True), torch.ones(6, 3, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="leaf Variable") as raised:
        NewtonLoss(masked_in_place)(y, exists)
    assert "Begin it with y = y.clone()." in raised.value.__notes__[0]
