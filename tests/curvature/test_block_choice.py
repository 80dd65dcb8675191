"""When the kernel of middle-sized systems is chosen, what it is given, and how it behaves on a GPU."""

from functools import partial

import pytest
import torch
from block_kernel import assert_step, brute_force, indefinite, normal
from torch import Tensor

import newton_losses as nl
from newton_losses.curvature import (
    Dense,
    Expansion,
    NormalizedDamping,
    RelativeDamping,
    fisher_step,
    newton_step,
)
from newton_losses.curvature import _block_step as block_step
from newton_losses.curvature import _fisher as fisher
from newton_losses.curvature._block_step import SIZES, block_kernels
from newton_losses.curvature._fisher import Solved, _plan
from newton_losses.nvrtc import CudaError
from on_cuda import capture, no_synchronisation
from paths.path_kernels import kernels_of


@pytest.fixture
def chosen(emulated, monkeypatch):
    """The choice of the kernel, as if the tensors here were on a GPU."""
    monkeypatch.setattr(fisher, "_fits_block", lambda *given: True)
    monkeypatch.setattr(block_step, "block_kernels", lambda gradient, unknowns: emulated(SIZES[0], gradient.dtype))
    return fisher._by_block


@pytest.mark.parametrize("unit", [3.0, torch.tensor(3.0)], ids=str)
def test_what_is_chosen_gets_everything(chosen, unit):
    gradient, value, kept, counter = normal(12, 30), normal(12), torch.arange(12) != 5, torch.tensor(1)
    value[2] = torch.nan
    for damping in (0.1, torch.tensor(0.1), NormalizedDamping()):
        found = chosen(gradient, value, _plan(damping), kept, True, counter, unit=unit)
        wanted = fisher_step(gradient, value, damping, kept=kept, mean=True)
        torch.testing.assert_close(found.rows, 3 * wanted.rows, rtol=1e-9, atol=1e-12)
        assert torch.equal(found.kept, wanted.kept)
        torch.testing.assert_close(found.value, value.nanmean())
    assert found.counted
    assert int(counter) == 1 + 3 * 2
    assert chosen(gradient, value, _plan(1e-80), kept, True, counter) is None


@pytest.mark.parametrize("kind", ["raw", "absolute", "clip", "definite"])
def test_what_is_chosen_knows_every_spectrum(chosen, kind):
    gradient, value, matrix = normal(9, 12), normal(9), indefinite(12)
    matrix = matrix @ matrix if kind == "definite" else matrix
    for damping in (0.1, RelativeDamping(0.5), NormalizedDamping()):
        found = chosen(gradient, value, _plan(damping), None, False, None, matrix, kind)
        if kind == "clip" and not isinstance(damping, float):
            assert found is None  # λ would be relative to what is clipped away
            continue
        expansion = Expansion(value, gradient, Dense(matrix, semidefinite=kind == "definite"))
        wanted = newton_step(expansion, damping, "raw" if kind == "definite" else kind)
        torch.testing.assert_close(found.rows, wanted.rows, rtol=1e-8, atol=1e-9)
        assert not found.counted


class Broken:
    def __init__(self, *given: object, **options: object) -> None:
        raise CudaError("NVRTC: nothing works today.")


def test_a_compiler_that_fails_is_reported_once(monkeypatch):
    """And a GPU that the kernel is not for is not worth a word."""
    properties = type("Properties", (), {"shared_memory_per_block_optin": 232_448})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(block_step, "compiler", lambda: True)
    monkeypatch.setattr(block_step, "Kernels", Broken)
    monkeypatch.setattr(block_step, "_kernels", {})
    gradient = normal(70, 144)
    with pytest.warns(UserWarning, match="70 unknowns could not be built; .* NVRTC: nothing works today"):
        assert block_kernels(gradient, 70) is None
    assert block_kernels(gradient, 70) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert block_kernels(gradient, 100) is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert block_kernels(gradient, 140) is None
    assert len(block_step._kernels) == 2


def on_gpu(gradient: Tensor) -> Tensor:
    if block_kernels(gradient.cuda(), min(gradient.shape)) is None:
        pytest.skip("not a GPU for this kernel")
    return gradient.cuda()


def one_kernel(function) -> None:
    function()
    assert [name for name in kernels_of(function) if "block_step" not in name] == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(block_step.TYPES))
@pytest.mark.parametrize("shape", [(70, 144), (128, 100)])
def test_a_step_on_a_gpu_is_one_kernel(shape, dtype):
    gradient = on_gpu(normal(*shape).to(dtype))
    value, counter, unit = gradient.square().sum(1), torch.tensor(0, device="cuda"), torch.tensor(2.0).to(gradient)
    options = {"mean": True, "counter": counter, "unit": unit, "kept": torch.ones(shape[0], dtype=torch.bool).cuda()}
    for damping in (0.1, torch.tensor(0.1, device="cuda"), RelativeDamping()):
        one_kernel(lambda damping=damping: fisher_step(gradient, value, damping, **options))
    assert_step(Solved(*(x.cpu() for x in fisher_step(gradient, value, 0.1)[:3])), brute_force(gradient.cpu(), 0.1))
    with torch.autocast("cuda", torch.bfloat16):
        again = fisher_step(gradient, value, 0.1)
    assert torch.equal(again.rows, fisher_step(gradient, value, 0.1).rows)
    turned = gradient.mT.contiguous().mT
    assert torch.equal(fisher_step(turned, value, 0.1).rows, again.rows)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "damping"), [("raw", 0.1), ("raw", 1e4), ("absolute", NormalizedDamping()), ("clip", 0.1)]
)
def test_a_stored_matrix_on_a_gpu_equals_the_operators(kind, damping):
    gradient, value, matrix = on_gpu(normal(70, 144).float()), normal(70).float(), indefinite(144)
    gradient[3, 0] = torch.nan
    expansion = Expansion(value, gradient.cpu(), Dense(matrix))
    wanted = newton_step(expansion, damping, kind)
    found = newton_step(Expansion(value.cuda(), gradient, Dense(matrix.cuda())), damping, kind)
    assert torch.equal(found.kept.cpu(), wanted.kept)
    torch.testing.assert_close(found.rows.cpu(), wanted.rows, rtol=1e-4, atol=1e-5 * float(wanted.rows.abs().max()))
    if kind == "raw":
        given = Expansion(value.cuda(), gradient, Dense(matrix.cuda()))
        names = kernels_of(lambda: newton_step(given, damping, kind))
        assert sum("block_step" in name for name in names) == 1
        assert not [name for name in names if "getrf" in name or "trsm" in name]


@pytest.mark.gpu
def test_it_is_captured_and_nothing_waits():
    gradient = on_gpu(normal(70, 144).float())
    value = gradient.square().sum(1)
    for damping in (0.1, torch.tensor(0.1)):
        wanted = fisher_step(gradient, value, damping)
        with no_synchronisation():
            graph, found = capture(lambda damping=damping: fisher_step(gradient, value, damping))
        graph.replay()
        assert torch.equal(found.rows, wanted.rows)


@pytest.mark.gpu
def test_before_it_is_compiled_a_graph_takes_the_operators(monkeypatch):
    gradient = on_gpu(normal(70, 144).float())
    wanted = fisher_step(gradient, None, 0.1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    from newton_losses.curvature._fisher import _by_operators

    _by_operators(gradient, None, _plan(0.1), None, False)  # the libraries behind it have to be loaded
    torch.cuda.synchronize()
    monkeypatch.setattr(block_step, "_kernels", {})
    with torch.cuda.graph(graph):
        found = fisher_step(gradient, None, 0.1)
    assert block_step._kernels == {}
    graph.replay()
    torch.testing.assert_close(found.rows, wanted.rows, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("kept", [False, True])
def test_it_is_compiled_without_a_break(kept):
    gradient = on_gpu(normal(70, 144).float())
    value, mask = gradient.square().sum(1), torch.arange(70, device="cuda") != 5 if kept else None
    step = partial(fisher_step, damping=0.1, kept=mask, mean=True)
    compiled = torch.compile(lambda g, v: step(g, v).rows, fullgraph=True)
    torch.testing.assert_close(compiled(gradient, value), step(gradient, value).rows)


@pytest.mark.gpu
def test_a_newton_loss_launches_few_kernels_more():
    y, target = (normal(128, 100, seed=seed).float().cuda() for seed in (0, 1))
    on_gpu(y)
    y.requires_grad_()

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return torch.sin(y - target).square().sum(1)

    def kernels(function) -> int:
        for _ in range(3):
            function(y, target).backward()
        return len(kernels_of(lambda: function(y, target).backward()))

    plain = kernels(lambda y, target: loss(y, target).mean())
    assert kernels(nl.NewtonLoss(loss, "fisher", damping=0.1)) <= plain + 10
